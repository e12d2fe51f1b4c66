"""Reports of a gang and its launches: to people and programs (`event_log.py`), and to the control plane."""

from __future__ import annotations

import os
import shlex
import signal
import time
from collections.abc import Mapping, Sequence

from understudy_launcher.agent_client import AgentLine
from understudy_launcher.command import group_sizes
from understudy_launcher.decide import Decision
from understudy_launcher.event_log import Events
from understudy_launcher.evidence_findings import cause_line, findings, first_failed, fitted, text_of
from understudy_launcher.launch import Launch
from understudy_launcher.launch_over import MANY_SILENT_SECONDS, MANY_SLOW_SECONDS, LaunchEnd
from understudy_launcher.launch_result import History, Rules
from understudy_launcher.node_list import by_reason, counted, fold
from understudy_launcher.options import Options, Resume
from understudy_launcher.outcomes import EXIT_REQUEUE
from understudy_wire.addresses import with_port
from understudy_wire.errors import ProtocolError

REASON_CHARACTERS_MAX = 2000
LINE_CHARACTERS_MAX = 300
UNWELL_MAX = 64
BLAMED_MAX = 512
"""Nodes of a launch, in its message to the control plane."""


SHARE_OUTPUT = "UNDERSTUDY_SHARE_OUTPUT"
"""0: what ranks write, and their stacks, are not reported. As in `understudy.link`: a test compares them."""


class Reports:
    def __init__(self, options: Options, names: Sequence[str], events: Events, line: AgentLine) -> None:
        """`names` are the allocation's nodes."""
        self._options = options
        self._names = names
        self._events = events
        self._line = line
        self._unwell: dict[str, str] = {}

    # -- the gang ----------------------------------------------------------------------------------------------

    def state(
        self,
        launch: Launch,
        phase: str,
        spares: Sequence[str],
        rules: Rules,
        *,
        ended_well: bool,
        asks_requeue: bool,
    ) -> None:
        """Only the control plane gets this."""
        nodes_min = rules.nodes_min if rules.may_shrink else self._options.nodes
        self._line.report(
            {
                "type": "launcher",
                "job_id": self._line.job_id,
                "restart_count": self._line.restart_count,
                "launch": launch.number,
                "phase": phase,
                "seats": launch.seats,
                "spares": tuple(spares),
                "lost": self._lost(launch, spares),
                "nodes_min": nodes_min,
                "group_sizes": group_sizes(self._options.command),
                "unwell": self._unwell,
                "ranks_per_node": launch.ranks_per_node(self._options),
                "nodes_packed": "",
                "ended_well": ended_well,
                "asks_requeue": asks_requeue,
            }
        )

    def checkpoint_asked(self, received: signal.Signals) -> None:
        message = "the ranks get the signal to write a checkpoint; nothing more is started"
        self._events.report("checkpoint_asked", f"{received.name}: {message}", signal=received.name)

    def asked_to_end(self, received: signal.Signals, at_once: bool) -> None:
        message = f"the ranks get SIGTERM, and SIGKILL after {self._options.term_seconds:g} s"
        if at_once:
            message = "everything is killed now"
        self._events.report("signal", f"{received.name}: {message}", signal=received.name)

    def shrunk(self, seats: Sequence[str]) -> None:
        message = f"there is no other node for the gang now: continuing with {counted(len(seats), 'node')}"
        self._events.report("shrunk", message, seats=seats)

    def waiting(self, seconds: float, *, for_a_node: bool, again: bool) -> None:
        """`again`: none of its nodes is bad."""
        then = "starting it on the same nodes again" if again else f"ending with exit code {EXIT_REQUEUE}"
        if for_a_node:
            message = f"waiting up to {seconds:g} s for a node to come back"
        else:
            message = f"waiting {seconds:g} s for the job to be requeued, then {then}"
        self._events.report("waiting", message, seconds=seconds)

    def done(self, exit_code: int) -> None:
        self._events.note("ended", exit_code=exit_code)

    def trouble(self) -> None:
        """Once. Without an agent the gang goes on."""
        trouble = self._line.trouble()
        if trouble:
            message = f"no control plane watches this gang ({trouble}): the launcher works on its own"
            self._events.report("no_agent", message)

    def _report(self, event: str, launch: Launch, message: str, **fields: object) -> None:
        self._events.report(event, f"launch {launch.number}: {message}", launch=launch.number, **fields)

    def _lost(self, launch: Launch, spares: Sequence[str]) -> tuple[str, ...]:
        there = set(spares)
        return tuple(node for node in launch.outside(self._names) if node not in there)

    def started_again(self, launch: Launch, why: str) -> None:
        message = f"the launcher was ended by {why}; another one goes on with launch {launch.number}"
        self._events.report("launcher_started_again", message, launch=launch.number, why=why)

    def rejoined(self, launch: Launch, missing: Sequence[str]) -> None:
        message = f"{len(launch.seats) - len(missing)} of {len(launch.seats)} seats are connected again"
        lost = f"; lost: {fold(missing)}" if missing else ""
        self._events.report("rejoined", message + lost, launch=launch.number, missing=list(missing))

    # -- its seats ---------------------------------------------------------------------------------------------

    def seat(self, node: str, generation: int) -> None:
        self._events.note("seat", node=node, generation=generation)

    def warm(self, node: str, generation: int, failed: object) -> None:
        """Its imports are done. `failed`: which of them failed, and why."""
        self._events.note("warm", node=node, generation=generation, failed=failed)
        if failed:
            self._events.report("preload_failed", f"{node}: --preload: {failed}", node=node)

    def protocol_error(self, node: str, error: ProtocolError) -> None:
        self._events.report("protocol", f"the seat on {node}: {error}", node=node)

    # -- a launch begins ---------------------------------------------------------------------------------------

    def ordered(self, launch: Launch) -> None:
        self._events.note("ordered", launch=launch.number, seats=launch.seats, generation=launch.step.generation)

    def cannot_start(self, why: str) -> None:
        self._events.report("cannot_start", f"{why}; its own message is above", why=why)

    def checked(self, failed: Mapping[str, str], impossible: Mapping[str, str], heeded: bool) -> None:
        """`heeded`: nodes that failed are not used."""
        command, count = self._options.selfcheck, len(failed)
        self._unwell = dict(list(failed.items())[:UNWELL_MAX]) if heeded else {}
        for node, why in failed.items() if heeded else ():
            message = f"{node}: its self-check failed: {why}; run `{command}` there, or ask sbatch for --exclude={node}"
            self._events.report("selfcheck_failed", message, node=node, why=why)
        if failed and not heeded:
            node, why = next(iter(failed.items()))
            message = f"the self-check failed on {count} nodes ({node}: {why}): these are most, so none is left out"
            self._events.report("selfcheck_ignored", f"{message}; try `{command}` on one of them", nodes=[*failed])
        if impossible:
            node, why = next(iter(impossible.items()))
            message = (
                f"the self-check could not run on {counted(len(impossible), 'node')} ({node}: {why}); they are used"
            )
            self._events.report("selfcheck_impossible", message, nodes=[*impossible])

    def arranged(self, launch: Launch, in_place: Sequence[str]) -> None:
        """Other nodes, or another order of them, than replacing in place would give."""
        moved = [f"{new} instead of {old}" for old, new in zip(in_place, launch.seats, strict=True) if old != new]
        message = f"groups of ranks stay in one domain: {', '.join(moved)}"
        self._report("arranged", launch, message, in_place=in_place, seats=launch.seats)

    def begun(self, launch: Launch, spares: Sequence[str], restore: tuple[int, str] | None) -> None:
        """`restore`: step and path that its ranks restore, while no control plane answers."""
        master = launch.step.links[launch.seats[0]]
        nodes, each = len(launch.seats), launch.ranks_per_node(self._options)
        where = f"{each} on each of {nodes} nodes" if nodes > 1 else "on 1 node"
        message = f"{counted(nodes * each, 'rank')}, {where} ({fold(launch.seats)})"
        standing_by = counted(len(spares), "spare") + (f" ({fold(spares)})" if spares else "")
        self._report(
            "launch",
            launch,
            f"{message}; {standing_by}",
            seats=launch.seats,
            spares=spares,
            warm=sum(node in launch.step.warm for node in launch.seats),
            master=with_port(master.address, master.port),
            since_fault_seconds=None if launch.began_at is None else launch.since_fault(launch.began_at),
        )
        if restore is not None:
            message = (
                f"no control plane answers: its ranks restore step {restore[0]}, the newest checkpoint that it named"
            )
            self._report("restore_given", launch, message, step=restore[0], path=restore[1])
        self._line.announce(
            {
                "type": "launch_started",
                "job_id": self._line.job_id,
                "restart_count": self._line.restart_count,
                "launch": launch.number,
                "seats": launch.seats,
                "spares": tuple(spares),
                "at": time.time(),
                "lost": self._lost(launch, spares),
                "nodes_packed": "",
            }
        )

    def resumed(self, launch: Launch, resume: Resume, found: str | None) -> None:
        """`found`: what is known of its file; None: it is not there."""
        arguments = shlex.join(resume.arguments)
        message = f"begins: {resume.file} (--resume-if) is not there"
        if found is not None:
            message = f"continues from {resume.file} ({found}): {arguments} is appended to the command"
        appended = found is not None
        self._events.report("resume", f"launch {launch.number} {message}", launch=launch.number, appended=appended)

    def no_first_step(self, launch: Launch, seconds: float, earlier_seconds: float) -> None:
        message = (
            f"no step within {seconds:.0f} s, and an earlier launch needed {earlier_seconds:.0f} s. Its first node is "
            f"{launch.seats[0]}: a program that takes the address of rank 0 from SLURM_JOB_NODELIST waits for another "
            "node; use MASTER_ADDR and MASTER_PORT. It is not ended for this"
        )
        self._report("no_first_step", launch, message, seconds=round(seconds, 1))

    def started(self, launch: Launch, now: float) -> None:
        seconds = launch.since_fault(now)
        if seconds is None:
            self._events.note("started", launch=launch.number)
        else:
            message = f"all processes started, {seconds:.3f} s after the fault was noticed"
            self._report("started", launch, message, since_fault_seconds=seconds)

    def silent(self, launch: Launch, nodes: Sequence[str]) -> None:
        """They are not taken for lost."""
        message = (
            f"{len(nodes)} of {len(launch.seats)} nodes are silent ({fold(nodes)}), and the gang goes on: the network"
        )
        message += (
            " between them and the launcher is the likely cause, as steps are still made, or as they are too many to"
        )
        message += f" be replaced or share a switch; without steps they count as lost after {MANY_SILENT_SECONDS:g} s"
        self._report("silent", launch, message, nodes=nodes)

    # -- a launch ends -----------------------------------------------------------------------------------------

    def fault(self, launch: Launch, over: LaunchEnd) -> None:
        """Reports nothing where every rank ended well."""
        message = [by_reason(over.bad)] if over.bad else [str(one) for one in launch.failures[:1]]
        if over.restart_reason:
            message = [over.restart_reason]
        if over.hung_seconds:
            message.append(f"hung: no new step for {over.hung_seconds:.1f} s (--hang-seconds)")
        if message:
            self._events.report("fault", f"launch {launch.number}: {'; '.join(message)}", **launch.fault_fields(over))

    def evidence(self, launch: Launch, silent: Sequence[str]) -> None:
        """What the ranks of a launch that hangs were doing. `silent`: nodes that have shown nothing."""
        shown = [one for node in launch.seats for one in launch.shown.get(node, ())]
        found = findings(shown)
        summary = "; ".join(found) or "what its ranks were doing does not show who is missing"
        message = f"{summary} ({len(shown)} ranks on {len(launch.shown)} of {len(launch.seats)} nodes have answered)"
        text = text_of(shown, silent, found)
        self._report("evidence", launch, f"{message}; their stacks: {self._kept_in()}", silent=silent, text=text)
        self._announce_evidence(launch, "hang", summary, text)
        launch.shown.clear()

    def last_words(self, launch: Launch) -> None:
        """What ranks that have failed wrote last."""
        failures = [one for one in launch.failures if one.rank in launch.last_words]
        blocks = [f"=== {one}\n{launch.last_words[one.rank]}".rstrip() for one in failures]
        first = next((one for one in failures if launch.last_words[one.rank].strip()), None)
        text = fitted("\n\n".join(blocks))
        if first is None:
            return
        rank, _ = first_failed(launch.last_words[first.rank]) or (first.rank, first.status)
        line = cause_line(launch.last_words[first.rank], rank)[:LINE_CHARACTERS_MAX]
        summary = f"rank {rank} on {first.node} wrote last: {line}"
        message = f"{summary}; the last lines of all that failed: {self._kept_in()}"
        self._report("last_words", launch, message, text=text)
        self._announce_evidence(launch, "crash", summary, text)

    def _kept_in(self) -> str:
        places = []
        if self._line.connected and os.environ.get(SHARE_OUTPUT) != "0":
            places.append(f"`understudy job evidence {self._line.job_id}`")
        if self._options.events is not None:
            places.append(str(self._options.events.absolute()))
        return " and ".join(places) or "kept nowhere, as there is neither an agent nor --events FILE"

    def _announce_evidence(self, launch: Launch, kind: str, summary: str, text: str) -> None:
        """The control plane gets it unless the user keeps it to the job's own output."""
        if os.environ.get(SHARE_OUTPUT) == "0":
            return
        self._line.announce(
            {
                "type": "launch_evidence",
                "job_id": self._line.job_id,
                "restart_count": self._line.restart_count,
                "launch": launch.number,
                "kind": kind,
                "at": time.time(),
                "summary": fitted(summary[:REASON_CHARACTERS_MAX]),
                "text": text,
            }
        )

    def slow_to_die(self, launch: Launch, nodes: Sequence[str]) -> None:
        message = f"ranks on {len(nodes)} of {len(launch.seats)} nodes outlive SIGKILL: the nodes are not the cause"
        message += f"; waiting up to {MANY_SLOW_SECONDS:g} s"
        self._report("slow_to_die", launch, message, nodes=nodes)

    def decision(self, launch: Launch, decision: Decision, now: float) -> None:
        self._report(
            "decision",
            launch,
            decision.reason,
            row=decision.row,
            action=decision.action,
            seats=decision.seats,
            blamed=dict(decision.blamed),
            cleared=decision.cleared,
            exit_code=decision.exit_code,
            ending_seconds=round(now - launch.over_at, 4),
        )

    def ended(self, launch: Launch, decision: Decision, before: History) -> None:
        """How it ended and what it cost; only for the control plane. `before`: the history without this launch."""
        launch.end_reported = True
        first = launch.failures[0] if launch.failures else None
        self._line.announce(
            {
                "type": "launch_ended",
                "job_id": self._line.job_id,
                "restart_count": self._line.restart_count,
                "launch": launch.number,
                "table_row": decision.row,
                "reason": decision.reason[:REASON_CHARACTERS_MAX],
                "at": time.time(),
                "progressed": launch.progressed,
                "counted": decision.history.without_progress > (0 if launch.progressed else before.without_progress),
                "cause": decision.cause,
                "failed_node": first.node if first else "",
                "rank": first.rank if first else None,
                "status": first.status if first else None,
                "blamed": tuple(decision.blamed)[:BLAMED_MAX],
            }
        )
