"""The launcher: one gang, launch after launch, until it is done or cannot go on.

Belongs here: the loop and its phases; joining seats, verdicts and Slurm's word into pictures for `watch`, and carrying
out what `decide` says. Must not: judging by itself, or waiting for anything without a bound.
"""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Mapping
from enum import StrEnum

from agents.launch import watch
from agents.launch.agent_line import AgentLine, Gang
from agents.launch.decide import CAUSES, EXIT_REQUEUE, Action, Decision, Ledger, OutOfSpares, decide, inherit
from agents.launch.events import Events
from agents.launch.hub import Hub, SeatLink, silence_of
from agents.launch.launch import Launch
from agents.launch.nodes import Nodes
from agents.launch.options import Options
from agents.launch.progress import Progress
from agents.launch.protocol import Message, ProtocolError, number
from agents.launch.steps import Step, Steps
from agents.launch.watch import Over

EXIT_NODES_MISSING = 69
EXIT_CANNOT_START = 70
TURN_SECONDS = 0.05
PROGRESS_SECONDS = 0.5
PROBE_SECONDS = 15.0
START_ATTEMPTS_MAX = 3
RESTART_ATTEMPTS_MAX = 30
START_AGAIN_SECONDS = 2.0
STEP_END_SECONDS = 2.0
"""For srun to end when most seats have hung up: then the step was ended, and not these nodes."""
REASON_CHARACTERS_MAX = 2000
VERDICT_SECONDS = 0.5
"""A rank that fails may be the first that is heard of a broken GPU: so long the control plane has for a verdict, or the
gang would be started on that GPU once more.
"""
SCANCEL_AFTER_SECONDS = 0.3
"""Seats end their ranks in milliseconds. Where only such are left that say nothing at all, Slurm is asked to. A seat
that speaks is killing already, and alone can say when nothing is left.
"""
SILENT_SECONDS = 0.5
"""A seat that is killing speaks twice a second."""
WARNED_TWICE_SECONDS = 2.0
"""Slurm's word to the steps and that to the batch script may be one and the same."""


class Phase(StrEnum):
    SEATING = "seating"
    RUNNING = "running"
    ENDING = "ending"
    WAITING = "waiting"
    LEAVING = "leaving"
    DONE = "done"


class Launcher:
    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each there once
        self,
        options: Options,
        nodes: Nodes,
        hub: Hub,
        steps: Steps,
        events: Events,
        progress: Progress,
        line: AgentLine,
    ) -> None:
        self._options = options
        self._nodes = nodes
        self._hub = hub
        self._steps = steps
        self._events = events
        self._progress = progress
        self._line = line
        self._took_over = False
        self._seating_seconds = 0.0
        """What the first step needed until every node had answered."""
        self._failed_steps = 0
        self._ledger = Ledger()
        self._best_step: int | None = None
        self._standby: Step | None = None
        self._phase = Phase.SEATING
        self._launch: Launch
        self._exit_code = 0
        self._until = 0.0
        self._looked_at_progress = 0.0
        self._probed_at = 0.0
        self._rearm_at = 0.0
        self._signals: list[signal.Signals] = []
        self._warned = False
        self._warned_at = 0.0
        self._ending_for: signal.Signals | None = None

    # -- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The exit code. Raises OSError where srun cannot be started."""
        self._hear_signals()
        self._order(self._first_seats(), 0, None)
        turns = {
            Phase.SEATING: self._seat,
            Phase.RUNNING: self._watch,
            Phase.ENDING: self._end,
            Phase.WAITING: self._wait_for_a_node,
            Phase.LEAVING: self._leave,
        }
        while self._phase is not Phase.DONE:
            for link, message in self._hub.wait(TURN_SECONDS if self._phase is not Phase.ENDING else 0.005):
                self._hear(link, message)
            self._heed_signals()
            self._talk()
            self._notice_bad_spares()
            turns[self._phase]()
            self._steps.tidy()
        self._talk()
        return self._exit_code

    def _first_seats(self) -> tuple[str, ...]:
        """Good nodes first; where they are too few, what to do about that follows when the others turn out bad."""
        bad = self._nodes.condemned()
        return tuple(sorted(self._nodes.names, key=lambda node: node in bad)[: self._options.nodes])

    def _hear_signals(self) -> None:
        ours, kernels = socket.socketpair()
        ours.setblocking(False)
        kernels.setblocking(False)
        self._sockets = (ours, kernels)
        signal.set_wakeup_fd(kernels.fileno(), warn_on_full_buffer=False)
        self._hub.watch(ours)
        for name in (signal.SIGTERM, signal.SIGINT, self._options.checkpoint_signal):
            signal.signal(name, lambda received, _: self._signals.append(signal.Signals(received)))
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def _heed_signals(self) -> None:
        while self._signals:
            received = self._signals.pop(0)
            if received != self._options.checkpoint_signal or self._is_the_end(received):
                self._end_for(received)
            elif received != signal.SIGTERM or not self._warned:
                self._ask_for_checkpoint(received)

    def _is_the_end(self, received: signal.Signals) -> bool:
        """SIGTERM as a warning: at the end of the grace time there is another one."""
        late = time.monotonic() - self._warned_at > WARNED_TWICE_SECONDS
        return received == signal.SIGTERM and (self._ending_for is not None or (self._warned and late))

    def _ask_for_checkpoint(self, received: signal.Signals) -> None:
        self._warned, self._warned_at = True, time.monotonic()
        words = "the ranks are asked for a checkpoint; nothing is started any more"
        self._events.tell("checkpoint_asked", f"{received.name}: {words}", signal=received.name)
        if self._phase is Phase.RUNNING:
            self._signal_ranks(received)
        elif self._phase in (Phase.SEATING, Phase.WAITING):
            self._exit_code = EXIT_REQUEUE
            self._start_leaving()

    def _end_for(self, received: signal.Signals) -> None:
        if self._phase is Phase.LEAVING:
            return
        again = self._ending_for is not None
        self._ending_for = received
        self._exit_code = 128 + received
        if self._phase is Phase.RUNNING and not again:
            seconds = self._options.term_seconds
            words = f"{received.name}: the ranks get SIGTERM, and SIGKILL after {seconds:g} s"
            self._events.tell("signal", words, signal=received.name)
            self._until = time.monotonic() + seconds
            self._signal_ranks(signal.SIGTERM)
        else:
            self._events.tell("signal", f"{received.name}: everything is ended now", signal=received.name)
            self._start_leaving()

    def _signal_ranks(self, which: signal.Signals) -> None:
        for node in self._launch.seats:
            link = self._launch.step.link(node)
            if link is not None:
                self._hub.say(link, "signal", number=int(which))

    # -- what is heard -----------------------------------------------------------------------------------------

    def _hear(self, link: SeatLink, message: Message) -> None:
        step = self._steps.of(link)
        if step is None or link.node not in step.nodes:
            return
        try:
            self._understand(step, link, message)
        except ProtocolError as error:
            self._events.tell("protocol", f"the seat on {link.node}: {error}", node=link.node)

    def _understand(self, step: Step, link: SeatLink, message: Message) -> None:
        node, launch = link.node, self._launch
        match message["what"]:
            case "hello":
                self._welcome(step, link)
            case "lost":
                step.lost.add(node)
                step.lost_at = time.monotonic()
            case "warm":
                step.warm.add(node)
                self._events.note("warm", node=node, generation=step.generation, failed=message.get("failed"))
                if message.get("failed"):
                    self._events.tell("preload_failed", f"{node}: --preload: {message['failed']}", node=node)
            case "started" if step is launch.step:
                launch.started.add(node)
                if len(launch.started) == len(launch.seats):
                    self._tell_started()
            case "exited" if step is launch.step:
                launch.note_exit(node, number(message, "local_rank"), number(message, "status"), time.monotonic())
            case "gone" if step is launch.step:
                launch.gone.add(node)
                if "port" in message:
                    link.port = number(message, "port")
            case "signalled" if step.retired_at is None:
                self._hear_warning(number(message, "number"))

    def _hear_warning(self, received: int) -> None:
        """Slurm's word to a step. What else somebody sends to a step is not for us."""
        if received == self._options.checkpoint_signal and not self._warned and self._ending_for is None:
            self._ask_for_checkpoint(self._options.checkpoint_signal)

    def _welcome(self, step: Step, link: SeatLink) -> None:
        step.links[link.node] = link
        step.step_id = link.step
        self._events.note("seat", node=link.node, generation=step.generation)
        if step.probe:
            self._nodes.find_again(link.node)
            self._steps.retire(step)
            return
        if self._options.preload and not step.retired_at:
            processes = self._options.procs_per_node or link.gpus or 1
            self._hub.say(link, "prepare", processes=processes, torchrun=self._options.torchrun)
        if step is self._standby and link.node not in self._launch.seats:
            self._steps.leave(self._launch.step, link.node)  # the older standby there

    # -- the control plane --------------------------------------------------------------------------------------

    def _talk(self) -> None:
        """Says what the gang is, hears what is ordered. Without an agent the gang goes on all the same."""
        rules, seats = self._options.rules, self._launch.seats
        spares = self._spares()
        may_shrink = rules.when_out_of_spares is OutOfSpares.SHRINK
        self._line.tell(
            Gang(
                self._launch.number,
                self._phase.value,
                seats,
                tuple(spares),
                tuple(node for node in self._nodes.names if node not in {*seats, *spares}),
                rules.nodes_min if may_shrink else self._options.nodes,
            )
        )
        self._hub.beside(self._line.turn())
        trouble = self._line.trouble()
        if trouble:
            words = f"nobody judges this gang's nodes from outside ({trouble}): it goes on by itself"
            self._events.tell("no_agent", words)
        if self._line.heard and not self._took_over:
            self._take_over()

    def _take_over(self) -> None:
        """What earlier allocations of this job have used up of its budget is used up."""
        self._took_over = True
        earlier, best = self._line.launches_without_progress, self._line.best_step
        self._events.note("heard", launches_without_progress=earlier, best_step=best)
        if self._ledger.ever_progressed:
            return
        self._ledger = inherit(self._ledger, earlier, best)
        if best is not None:
            self._best_step = max(best, self._best_step or 0)
        if earlier:
            maximum = self._options.rules.launches_without_progress_max
            words = f"before its requeue this job had {earlier} of {maximum} launches without progress; they count"
            self._events.tell("taken_over", words, launches_without_progress=earlier, best_step=best)

    # -- which nodes are bad -----------------------------------------------------------------------------------

    def _notice_bad_spares(self) -> None:
        """What happens to the gang's own nodes is the launch's affair."""
        step = self._standby or self._launch.step
        # While a node is absent, srun may end all of the step for its sake.
        if not step.retired_at and not step.absent:
            spares = [node for node in step.nodes if node not in self._launch.seats and node not in step.left]
            now = time.monotonic()
            # Where most hang up, somebody has ended the step.
            ended = watch.are_many(len(step.hung_up), len(step.nodes)) or now - step.lost_at < watch.SETTLE_SECONDS
            for node in spares if not ended else ():
                if node in step.hung_up:
                    self._nodes.lose(node, "its seat hung up", away=True)
            silent = {node: silence_of(link, now) for node, link in step.links.items() if link.open}
            for node, why in watch.lost_to_silence(silent, len(silent), self._options.silence_seconds).items():
                if node in spares:
                    self._nodes.lose(node, why, away=True)
        self._nodes.tell_changes(self._launch.seats)

    def _spares(self) -> list[str]:
        """Those that have a seat already come first."""
        step = self._standby or self._launch.step
        free = self._nodes.usable(without=self._launch.seats)
        return sorted(free, key=lambda node: step.link(node) is None)

    # -- seating -----------------------------------------------------------------------------------------------

    def _order(self, seats: tuple[str, ...], launch_number: int, fault_at: float | None) -> None:
        """The next launch, on these nodes, in the standbys that are there, or in a new step."""
        step, self._standby = self._standby, None
        if step is not None and not step.can_seat(seats):
            self._steps.retire(step)
            step = None
        if step is None:
            step = self._start_step()
        now = time.monotonic()
        self._launch = Launch(launch_number, seats, step, now, fault_at)
        self._phase = Phase.SEATING
        self._events.note("ordered", launch=launch_number, seats=seats, generation=step.generation)

    def _seat(self) -> None:
        launch, step = self._launch, self._launch.step
        condemned = self._nodes.condemned()
        bad = {node: condemned[node] for node in launch.seats if node in condemned}
        bad |= {node: "its seat hung up before the start" for node in launch.seats if node in step.lost}
        missing = [node for node in launch.seats if step.link(node) is None and node not in bad]
        age = time.monotonic() - launch.ordered_at
        ended = step.program.poll()
        if ended is not None and not step.links:
            self._try_again_or_give_up(ended, age)
        elif step.absent and (age > self._patience_seconds() or ended is not None):
            self._nodes.bar(step.absent)
            bad |= dict.fromkeys(missing, f"no seat there after {age:.1f} s")
            if not bad:
                self._steps.retire(step)
                self._order(launch.seats, launch.number, launch.fault_at)
        elif not bad and not step.absent:
            bad = launch.differing_gpus() if self._options.procs_per_node is None else {}
            if not bad:
                self._seating_seconds = self._seating_seconds or age
                self._go()
                return
        if bad:
            self._close(Over(bad))

    def _patience_seconds(self) -> float:
        """For seats to answer. At first Slurm may run a Prolog on each node; later it is known how long it takes."""
        if not self._seating_seconds:
            return self._options.seat_seconds
        return min(self._options.seat_seconds, max(3.0, 3 * self._seating_seconds))

    def _try_again_or_give_up(self, status: int, age: float) -> None:
        """Nobody answered and srun has ended: its options are refused, or slurmctld cannot be reached just now."""
        if age < START_AGAIN_SECONDS:
            return
        self._failed_steps += 1
        if self._failed_steps >= (START_ATTEMPTS_MAX if self._launch.number == 0 else RESTART_ATTEMPTS_MAX):
            words = f"srun ended with {status} before any node answered; its own words stand above"
            self._events.tell("cannot_start", words, status=status)
            self._exit_code = EXIT_CANNOT_START
            self._start_leaving()
        else:
            self._steps.retire(self._launch.step)
            self._order(self._launch.seats, self._launch.number, self._launch.fault_at)

    def _go(self) -> None:
        launch, step = self._launch, self._launch.step
        master = step.links[launch.seats[0]]
        launch.processes = self._options.procs_per_node or master.gpus or 1
        launch.went_at = time.monotonic()
        reached = self._progress.step(0.0)
        launch.note_step(reached, launch.went_at)  # of a launch before
        if launch.number == 0 and reached is not None:  # what an earlier job left in the file
            self._best_step = max(reached, self._best_step or 0)
        self._failed_steps = 0
        warm = sum(node in step.warm for node in launch.seats)
        restore = self._line.restore_point() if launch.number > 0 else None
        for node_rank, node in enumerate(launch.seats):
            self._hub.say(
                step.links[node],
                "go",
                launch=launch.number,
                nodes=len(launch.seats),
                node_rank=node_rank,
                processes=launch.processes,
                address=master.address,
                port=master.port,
                torchrun=self._options.torchrun,
                node_list=",".join(launch.seats),
                restore=restore,
            )
        if self._options.torchrun:
            self._launch.processes = 1  # what we see of each node is one torchrun
        spares = self._spares()
        words = f"launch {launch.number} on {len(launch.seats)} nodes ({', '.join(launch.seats)})"
        standing_by = f"{len(spares)} spares" + (f" ({', '.join(spares)})" if spares else "")
        self._events.tell(
            "launch",
            f"{words}; {standing_by}",
            launch=launch.number,
            seats=launch.seats,
            spares=spares,
            warm=warm,
            master=f"{master.address}:{master.port}",
            since_fault_seconds=launch.since_fault(launch.went_at),
        )
        lost = tuple(node for node in self._nodes.names if node not in {*launch.seats, *spares})
        if restore is not None:
            words = f"no control plane answers: its ranks go on from step {restore[0]}, the newest checkpoint it named"
            self._events.tell("restore_told", f"launch {launch.number}: {words}", step=restore[0], path=restore[1])
        self._line.notice("launch_started", launch=launch.number, seats=launch.seats, spares=tuple(spares), lost=lost)
        self._phase = Phase.RUNNING

    def _tell_started(self) -> None:
        launch = self._launch
        seconds = launch.since_fault(time.monotonic())
        if seconds is None:
            self._events.note("started", launch=launch.number)
        else:
            words = f"launch {launch.number}: all processes started, {seconds:.3f} s after the fault was known"
            self._events.tell("started", words, launch=launch.number, since_fault_seconds=seconds)

    # -- watching ----------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        now = time.monotonic()
        launch = self._launch
        age = launch.age(now)
        self._look_at_progress(now, age)
        picture = launch.picture(now, self._nodes.condemned())
        over = watch.judge(picture, self._options.silence_seconds, self._options.hang_seconds)
        if self._ending_for is not None:
            if over is not None or now >= self._until:
                self._start_leaving()
        elif over is not None:
            self._close(over)
        elif (anew := self._line.anew(launch.number)) is not None and not self._warned:
            self._close(Over({}, told=anew.reason, without=anew.without))
        elif age >= self._options.rearm_seconds and not self._warned and self._options.in_process_seconds is None:
            self._rearm(now)

    def _look_at_progress(self, now: float, age: float) -> None:
        if now - self._looked_at_progress < PROGRESS_SECONDS:
            return
        self._looked_at_progress = now
        step = self._progress.step(age)
        self._launch.note_step(step, now)
        if step is None or (self._best_step is not None and step <= self._best_step):
            return
        self._best_step = step
        self._launch.progressed = True

    def _rearm(self, now: float) -> None:
        """Standbys for the next launch, on every node: the survivors' interpreters shall be warm, too."""
        standby = self._standby
        if standby is None:
            if now >= self._rearm_at:
                self._standby = self._start_step()
        elif standby.program.poll() is not None or (
            standby.absent and now - standby.asked_at > self._options.seat_seconds
        ):
            if standby.links:  # else it is not for single nodes' sake
                self._nodes.bar(standby.absent)
            self._steps.retire(standby)
            self._standby, self._rearm_at = None, now + START_AGAIN_SECONDS

    def _start_step(self) -> Step:
        return self._steps.start(self._nodes.usable())

    # -- ending a launch ---------------------------------------------------------------------------------------

    def _close(self, over: Over) -> None:
        """The launch is over: its ranks are killed, everywhere."""
        now = time.monotonic()
        launch = self._launch
        self._look_at_progress(now + PROGRESS_SECONDS, launch.age(now))
        launch.close(over, now)
        for node in launch.seats if launch.went_at is not None else ():
            link = launch.step.link(node)
            if link is None:
                continue
            if self._options.in_process_seconds is not None and node not in over.bad and not over.of_a_hang:
                launch.keep_seconds = self._options.in_process_seconds
                self._hub.say(link, "keep")
            else:
                self._hub.say(link, "kill")
        words = [f"{node}: {why}" for node, why in over.bad.items()] or [str(one) for one in launch.failures[:1]]
        if over.told:
            words = [over.told]
        if over.hung_seconds:
            words.append(f"hung: no new step for {over.hung_seconds:.1f} s (--hang-seconds)")
        if words:
            self._events.tell("fault", f"launch {launch.number}: {'; '.join(words)}", **launch.fault_fields(over))
        self._phase = Phase.ENDING

    def _end(self) -> None:
        """Until no rank of it is left; a node that does not get there in time does not go on."""
        launch = self._launch
        assert launch.over is not None
        now = time.monotonic()
        unusable = self._nodes.unusable()
        waited = now - launch.over_at - launch.keep_seconds
        bad = dict(launch.over.bad)
        bad |= {node: unusable[node] for node in launch.seats if node in unusable and node not in bad}
        if launch.many_hung_up() and launch.step.killed_at is None:
            ended = launch.step.program.poll() is not None
            if not ended and waited < STEP_END_SECONDS:
                return
            if ended:  # all of the step, by somebody's hand: that is no node's fault
                bad = {node: why for node, why in bad.items() if node in unusable}
                self._judge(bad)
                return
        holding = launch.may_hold_ranks(now)
        silent = {node for node, seconds in holding.items() if seconds > SILENT_SECONDS}
        going_on = [node for node in holding if node not in bad]
        # A condemned node's old ranks could still write beside the new ones. One that is gone holds nobody up.
        in_time = now - launch.over_at <= self._options.kill_seconds
        waiting = [*going_on, *(node for node in holding if node in bad and node not in silent and in_time)]
        if waiting and waited > SCANCEL_AFTER_SECONDS and silent.issuperset(waiting):
            self._steps.kill(launch.step)
        if waiting and (waited <= self._options.kill_seconds or self._are_many_slow(going_on, now, waited)):
            return
        launch.stuck = set(going_on) - silent
        bad |= dict.fromkeys(going_on, f"its ranks outlived SIGKILL for {waited:.0f} s")
        bad |= {node: "its seat hung up" for node in launch.seats if node in launch.step.hung_up and node not in bad}
        if launch.failures and not bad and self._line.heard and time.monotonic() - launch.over_at < VERDICT_SECONDS:
            return
        self._judge(bad)

    def _are_many_slow(self, nodes: list[str], now: float, waited: float) -> bool:
        """Then it is not the nodes: it is waited on, and each that is left in the end has its whole time again."""
        launch = self._launch
        if watch.are_many(len(nodes), len(launch.seats)):
            if launch.slow_at is None:
                words = f"ranks on {len(nodes)} of {len(launch.seats)} nodes outlive SIGKILL: that is not the nodes"
                words += f"; waiting up to {watch.MANY_SLOW_SECONDS:g} s"
                self._events.tell("slow_to_die", f"launch {launch.number}: {words}", nodes=nodes)
            launch.slow_at = now
        patient = launch.slow_at is not None and now - launch.slow_at <= self._options.kill_seconds
        return bool(nodes) and patient and waited <= watch.MANY_SLOW_SECONDS

    def _judge(self, bad: Mapping[str, str]) -> None:
        launch = self._launch
        ended = launch.summary(bad, "the ranks were asked for a last checkpoint" if self._warned else "")
        decision = decide(ended, self._ledger, self._spares(), self._options.rules)
        if launch.went_at is not None:
            self._report_end(launch, ended.progressed, decision)
        self._ledger = decision.ledger
        self._events.tell(
            "decision",
            f"launch {launch.number}: {decision.reason}",
            launch=launch.number,
            row=decision.row,
            action=decision.action,
            seats=decision.seats,
            blamed=dict(decision.blamed),
            cleared=decision.cleared,
            exit_code=decision.exit_code,
            ending_seconds=round(time.monotonic() - launch.over_at, 4),
        )
        self._carry_out(decision)

    def _report_end(self, launch: Launch, progressed: bool, decision: Decision) -> None:
        launch.end_told = True
        first = launch.failures[0] if launch.failures else None
        self._line.notice(
            "launch_ended",
            launch=launch.number,
            row=decision.row,
            reason=decision.reason[:REASON_CHARACTERS_MAX],
            progressed=progressed,
            counted=decision.ledger.without_progress > (0 if progressed else self._ledger.without_progress),
            cause=CAUSES.get(decision.row, "program"),
            failed_node=first.node if first else "",
            rank=first.rank if first else None,
            status=first.status if first else None,
            blamed=tuple(decision.blamed),
        )

    def _carry_out(self, decision: Decision) -> None:
        launch = self._launch
        self._nodes.blame(decision.blamed, self._away(launch))
        if not self._keep_for(decision):
            self._steps.retire(launch.step)
        match decision.action:
            case Action.RELAUNCH | Action.SHRINK:
                if launch.went_at is None:  # nobody has seen this number
                    self._order(decision.seats, launch.number, launch.fault_at or launch.over_at)
                else:
                    self._order(decision.seats, launch.number + 1, launch.over_at)
            case Action.FINISH:
                self._exit_code = decision.exit_code
                self._start_leaving()
            case Action.WAIT:
                self._await(self._options.wait_for_node_seconds)
            case Action.POOL:
                self._exit_code = EXIT_REQUEUE
                self._await(self._options.wait_for_requeue_seconds)
            case Action.FAIL:
                self._exit_code = EXIT_NODES_MISSING
                self._start_leaving()

    def _away(self, launch: Launch) -> set[str]:
        """Nodes that are not to be reached, and so may come back. One that says that ranks are left may not."""
        now, links = time.monotonic(), launch.step.links
        silent = {node for node, link in links.items() if link.open and silence_of(link, now) > SILENT_SECONDS}
        return (launch.step.hung_up | silent) - launch.stuck

    def _keep_for(self, decision: Decision) -> bool:
        """Whether the next launch is in the same step, where some of its ranks still are. Then that is prepared."""
        launch = self._launch
        again = decision.action in (Action.RELAUNCH, Action.SHRINK) and launch.went_at is not None
        if self._options.in_process_seconds is None or not again or not launch.step.can_seat(decision.seats):
            return False
        if launch.over is not None and launch.over.of_a_hang:  # its seats have killed all that they had
            return False
        for node in launch.seats:
            if node not in decision.seats:
                self._steps.leave(launch.step, node)
        self._standby = launch.step
        return True

    # -- out of spares -----------------------------------------------------------------------------------------

    def _await(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._phase = Phase.WAITING
        if self._exit_code == EXIT_REQUEUE:
            words = f"waiting {seconds:g} s for the job to be requeued, then ending with exit code {EXIT_REQUEUE}"
        else:
            words = f"waiting up to {seconds:g} s for a node to come back"
        self._events.tell("waiting", words, seconds=seconds)

    def _wait_for_a_node(self) -> None:
        now = time.monotonic()
        if now >= self._until:
            self._exit_code = EXIT_REQUEUE
            self._start_leaving()
            return
        if self._exit_code == EXIT_REQUEUE:
            return
        unusable = self._nodes.unusable()
        bad = [node for node in self._launch.seats if node in unusable]
        spares = self._spares()
        if len(spares) >= len(bad):
            takes = dict(zip(bad, spares, strict=False))
            seats = tuple(takes.get(node, node) for node in self._launch.seats)
            self._order(seats, self._launch.number + 1, None)
        elif now - self._probed_at > PROBE_SECONDS:
            self._probed_at = now
            for node in self._nodes.to_be_probed():  # a step for each: one that is dead shall not hold up the others
                self._steps.retire_after(self._steps.start([node], probe=True), PROBE_SECONDS - 1)

    # -- the end -----------------------------------------------------------------------------------------------

    def _start_leaving(self) -> None:
        if self._launch.went_at is not None and not self._launch.end_told and self._ending_for is not None:
            reason = f"the job was ended by {self._ending_for.name}"
            self._report_end(self._launch, self._launch.progressed, Decision(20, Action.FINISH, reason, self._ledger))
        for node in self._launch.seats:
            link = self._launch.step.link(node)
            if link is not None:
                self._hub.say(link, "kill")
        self._steps.retire_all()
        self._phase = Phase.LEAVING

    def _leave(self) -> None:
        if self._steps.tidy():
            self._phase = Phase.DONE
            self._events.note("ended", exit_code=self._exit_code)
