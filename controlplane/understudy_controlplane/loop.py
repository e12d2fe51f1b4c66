"""One tick: read Slurm, record it, look, record agents, detect, decide, record decisions, recover.

Nothing here judges or acts by itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

import structlog

from understudy_controlplane.agent_recorder import AgentRecorder
from understudy_controlplane.clock import JUMP_SECONDS, Clock, ClockWatch
from understudy_controlplane.config import Mode
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide.approvals import unnoted
from understudy_controlplane.decide.failures import Failures, failed_decisions
from understudy_controlplane.decide.hangs import questions
from understudy_controlplane.decide.incidents import incident_news, with_fabric
from understudy_controlplane.decide.job_notes import job_notes
from understudy_controlplane.decide.judge import judge
from understudy_controlplane.decide.maintenance import next_of
from understudy_controlplane.decide.recovery_recheck import Course, course
from understudy_controlplane.decide.requests_in_force import endings
from understudy_controlplane.decide.transitions import follow_all
from understudy_controlplane.decide.unrecorded_decisions import Recorded, noted_together
from understudy_controlplane.decide.verdicts_and_orders import Consequences, consequences
from understudy_controlplane.detect import DETECTORS, detect
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.finding import DetectorDetail, Finding, failures, faults_by_node
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.recovery import ProposalEnding, Recovery, RecoveryKind
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.stage_summary import summary
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.live.pulse import FailedDetector, Pulse
from understudy_controlplane.live.telemetry import Telemetry
from understudy_controlplane.live.verdicts import Verdicts
from understudy_controlplane.observe.observer import Observer
from understudy_controlplane.recover.compute_tests import ComputeTests
from understudy_controlplane.recover.runner import Runner
from understudy_controlplane.recover.saves import Saves
from understudy_controlplane.slurm_recorder import SlurmRecorder
from understudy_controlplane.store.database import StoreError, cause_of
from understudy_controlplane.store.database_lock import DatabaseTaken, Lead
from understudy_controlplane.store.stores import Stores
from understudy_wire.stages import StageResult

log = structlog.get_logger()

IDLE_TICK_SECONDS = 0.5
RECOVERING_TICK_SECONDS = 0.1
SOON_SHARE = 0.25
"""Share of the interval between readings of Slurm, if one is asked for."""

FAULTS_APART_SECONDS = 1.0
"""Readings of Slurm for reported faults begin this far apart, and APART_FACTOR times as far as they take: a user's
program can have the driver log one after the other, and a large fleet always has some harmless line.
"""

SLOW_SECONDS = 0.5
APART_FACTOR = 4.0
"""Readings of Slurm that take longer than that, as with tens of thousands of jobs, begin that many times as far apart
as they take: slurmctld and the loop have other work. No effect waits for that, it has a reading of its own.
"""

TICKETS_AGE_MAX_SECONDS = 5.0
"""Oldest tickets that `/metrics` shows."""

RECORDED_SECONDS = 7 * 24 * HOUR_SECONDS
"""How far back a new process looks for decisions that were recorded already."""


class Loop:
    """One thread runs it. What it remembers between ticks can be read back from the database or from Slurm."""

    def __init__(  # noqa: PLR0913, PLR0917 - its parts, each there once
        self,
        observer: Observer,
        slurm_recorder: SlurmRecorder,
        agent_recorder: AgentRecorder,
        stores: Stores,
        directory: JobDirectory,
        telemetry: Telemetry,
        launchers: Launchers,
        runner: Runner,
        saves: Saves,
        current: CurrentConfig,
        clock: Clock,
        lead: Lead,
    ) -> None:
        self._lead = lead
        self.taken: DatabaseTaken | None = None  # why `run` has ended
        self.ended = threading.Event()
        self.observer = observer
        self.detectors = DETECTORS
        self._slurm_recorder = slurm_recorder
        self._agent_recorder = agent_recorder
        self._stores = stores
        self._directory = directory
        self._telemetry = telemetry
        self._launchers = launchers
        self._runner = runner
        compute_tests = ComputeTests(telemetry.compute_tests)
        self.periodic: Mapping[str, Callable[[Snapshot, Sequence[Finding]], None]] = {
            "maintenance": lambda snapshot, _: self._look_after_maintenance(snapshot),
            "endings": lambda snapshot, _: self._end_requests(snapshot),
            "stages": lambda snapshot, _: self._look_at_stages(snapshot),
            "saves": lambda snapshot, _: saves.tick(snapshot, self.pulse.meters),
            "compute_tests": compute_tests.tick,
            "hang_questions": lambda snapshot, findings: telemetry.hang_questions.replace(
                questions(snapshot, findings)
            ),
            "job_notes": lambda snapshot, findings: telemetry.job_notes.replace(job_notes(snapshot, findings)),
        }
        """What a round does besides judging and recovering."""
        self._failed_periodic: set[str] = set()
        self._current = current
        self._clock = clock
        self._clock_watch = ClockWatch(clock)
        self._recorded = Recorded.from_journal(stores.journal.keys_since(clock.now() - RECORDED_SECONDS))
        ahead = stores.seconds_ahead(clock.now())
        self._missed_reports = False
        self._set_back_by = ahead if ahead >= JUMP_SECONDS else 0.0  # less: the control plane before had another clock
        """Seconds by which the clock was set back, and the times in the database were not."""
        self._wake = threading.Event()
        self._read_soon = self._fault_came = False
        self._read_for_fault_at = -FAULTS_APART_SECONDS  # by the monotonic clock
        self._stop = threading.Event()
        self.pulse = Pulse(slurm=observer.reading)
        self.verdicts = Verdicts()
        self._running: frozenset[int] = frozenset()  # recoveries, in the tick before
        self._tickets_read_at = 0.0
        self._stages: dict[str, tuple[StageResult, ...]] | None = None  # None: not read yet
        self._validated: set[str] = set()

    def run(self) -> None:
        """Ticks until `stop`. A tick that fails is logged and shown by `/healthz`; the next one may work. Where another
        control plane has the lead, it ends the process.
        """
        recovering = False
        while not self._stop.is_set():
            try:
                self._lead.check()
                recovering = self.tick(recovering)
            except DatabaseTaken as taken:
                self.taken = taken
                break
            except Exception as error:
                self.pulse.errors_total += 1
                failed = cause_of(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
                # The trace once for ticks that fail alike: a full disk needs no gigabytes of it.
                log.exception("tick_failed", error=failed, exc_info=failed != self.pulse.last_error)
                self.pulse.last_error = failed
            self.pulse.turns += 1
            self._wake.wait(RECOVERING_TICK_SECONDS if recovering else IDLE_TICK_SECONDS)
            self._wake.clear()
        self.ended.set()
        if self.taken is not None:
            log.error("lead_lost", error=str(self.taken))
            os.kill(os.getpid(), signal.SIGTERM)

    def wake(self) -> None:
        """Something happened: do not wait for the next tick's time."""
        self._wake.set()

    def read_soon(self) -> None:
        """A process that has just started waits for a reading of Slurm that shows its job."""
        self._read_soon = True
        self.wake()

    def fault_came(self) -> None:
        """Something may have failed: the next tick begins with a reading of Slurm, so that it acts without a second.

        All of Slurm is read: slurmctld sends all nodes to a scontrol that shows one (info_node.c), and all jobs to a
        squeue that shows those of one node (squeue.c).
        """
        self._fault_came = True
        self.wake()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()

    def refuses_nodes(self) -> bool:
        """True if agents and launchers are to go to another control plane. What they report meanwhile is missed."""
        refuses = self._lead.is_cut_off()
        self._missed_reports |= refuses
        return refuses

    def tick(self, recovering: bool = False) -> bool:
        """Returns whether a recovery has to be looked at again soon."""
        self._current.follow()
        self.pulse.config_problems = self._current.problems()
        self._look_at_clock()
        if self._missed_reports and not self._lead.is_cut_off():
            self._missed_reports = False
            self.observer.begin()
            self._forget_reports()
        if self.refuses_nodes():
            raise StoreError("the database does not confirm that this control plane leads: it hears and judges no node")
        begun = self._clock.now()
        self._look_at_tickets(begun)
        snapshot, findings, decisions, beside = self._judge(self._age_max_seconds(recovering))
        noted = snapshot.operator.acting
        if noted is None or (snapshot.mode is Mode.ACT) is not (noted.since is not None) or unnoted(snapshot):
            self._note_mode(snapshot)
            snapshot, findings, decisions, beside = self._judge(self._age_max_seconds(recovering))
        if any(one.plan for one in decisions) and (snapshot.slurm.read_at or 0.0) < begun:
            # About to act: on Slurm as it is now, not as it was a moment before. A gang may have started meanwhile.
            snapshot, findings, decisions, beside = self._judge(0.0)
        if self._missed_reports:  # this round waited for the database, and took the nodes it refused for silent
            return recovering
        self.pulse.last_error = ""
        self._do_periodic(snapshot, findings)
        recorded = self._record(decisions, findings, snapshot, beside.endings)
        recoveries = self._stores.recoveries.running() if recorded else snapshot.recoveries
        self._count_ended(recoveries)
        acting = self._may_act(snapshot)
        if acting:
            running = {recovery.id for recovery in recoveries}
            self._runner.begin_round(running, self.observer.view, beside.turns)
            policy = self._current.config.straggler
            all(self._advance(one, partial(course, one, snapshot, findings, decisions, policy)) for one in recoveries)
        else:
            self._runner.unreadable()
        self.pulse.last_tick_at = self._clock.now()
        self.pulse.tick_seconds = self.pulse.last_tick_at - begun
        self.pulse.meters.tick_seconds.observe(self.pulse.tick_seconds)
        self.pulse.ticks_total += 1
        return acting and self._runner.hurries(recoveries)

    def _age_max_seconds(self, recovering: bool) -> float:
        """Oldest reading of Slurm that is used. A reading that was asked for comes sooner, but any user can ask."""
        soon, fault = self._read_soon, self._fault_is_due()
        if soon:  # cleared only where it was seen: another thread sets it
            self._read_soon = False
        usual = self._current.config.slurm.poll_interval_seconds * (SOON_SHARE if soon else 1.0)
        took = self.pulse.slurm.usual_seconds
        return max(
            RECOVERING_TICK_SECONDS if recovering or fault else usual,
            took * APART_FACTOR if took > SLOW_SECONDS else 0.0,
        )

    def _fault_is_due(self) -> bool:
        """One has come that waits for a reading; one that comes too soon after another waits for its turn."""
        now = self._clock.monotonic()
        apart = max(FAULTS_APART_SECONDS, self.pulse.slurm.usual_seconds * APART_FACTOR)
        if not self._fault_came or now - self._read_for_fault_at < apart:
            return False
        self._fault_came, self._read_for_fault_at = False, now
        return True

    def _look_at_clock(self) -> None:
        """A clock that was set makes every age in memory wrong."""
        jump = self._clock_watch.jump_seconds()
        if jump != 0.0:
            self._set_back_by += max(-jump, 0.0)
            self.pulse.clock_jumps_total += 1
            log.error(
                "clock_set",
                jump_seconds=round(jump, 1),
                remedy="nothing is begun before all nodes were heard again; "
                "let a time service keep this machine's clock",
            )
            self.observer.clock_was_set(jump)
            self._forget_reports()
        if self._set_back_by:  # last: a database that does not answer is asked again in the next round
            self._stores.set_times_back(self._clock.now(), self._set_back_by)
            self._set_back_by = 0.0

    def _forget_reports(self) -> None:
        """All nodes have to be heard again, as after a start."""
        self._telemetry.forget()
        self._launchers.forget()
        self._runner.unreadable()

    def _may_act(self, snapshot: Snapshot) -> bool:
        """A recovery begun before stays where it is in mode observe, and is shown as running."""
        objection, before = self._lead.objection(), self.pulse.objection
        self.pulse.objection, self.pulse.leading = objection, self._lead.leading()
        if objection and not before:
            log.warning("changes_stopped", reason=objection, remedy="it goes on by itself when that is over")
        elif before and not objection:
            log.info("changes_resumed")
        return snapshot.mode is not Mode.OBSERVE and not snapshot.slurm.error and not objection

    def _note_mode(self, snapshot: Snapshot) -> None:
        """What was known by then waits for an operator's approval. The first note finds a control plane that begins, or
        one that acted before there were notes.
        """
        acts, noted = snapshot.mode is Mode.ACT, snapshot.operator.acting
        if noted is not None and noted.since is not None and acts:
            still = {one.id for one in snapshot.incidents.values()}
            known = {number: rules for number, rules in noted.known.items() if number in still} | unnoted(snapshot)
            self._stores.requests.note_acting(acts, noted.since, known)
            return
        known = {} if noted is None else {one.id: frozenset(one.rules) for one in snapshot.incidents.values()}
        self._stores.requests.note_acting(acts, snapshot.now, known)
        log.info("mode_changed", mode=snapshot.mode.value)

    def _look_at_tickets(self, now: float) -> None:
        if not 0 <= now - self._tickets_read_at < TICKETS_AGE_MAX_SECONDS:
            self._tickets_read_at = now
            self.pulse.tickets_opened_at = self._stores.tickets.open_tickets()

    def _look_at_stages(self, snapshot: Snapshot) -> None:
        """What `/metrics` shows of them: of all nodes at first, then of those whose validations have ended."""
        names = self._validated if self._stages is not None else set(snapshot.nodes)
        if not names:
            return
        self._stages = {**(self._stages or {}), **dict.fromkeys(names, ())}
        for one in self._stores.stages.newest(*names):
            self._stages[one.node] = (*self._stages[one.node], one.result)
        self._validated = set()
        of_nodes = (results for name, results in self._stages.items() if name in snapshot.nodes)
        self.pulse.stages = summary(chain.from_iterable(of_nodes))

    def _look_after_maintenance(self, snapshot: Snapshot) -> None:
        """Its requests are taken up by the next round, like those of operators."""
        for one in snapshot.operator.maintenances:
            due = next_of(snapshot, one)
            if due.stages != one.stages or due.releases or due.move or due.is_over:
                self._stores.maintenance.proceed(one, due, self._clock.now())
                log.info("maintenance", number=one.id, holds=due.holds, releases=due.releases, is_over=due.is_over)

    def _end_requests(self, snapshot: Snapshot) -> None:
        """The next round takes up the request to return the node."""
        for ending in endings(snapshot):
            if self._stores.requests.end(ending, self._clock.now()):
                words = {"action": ending.verb.value, "number": ending.request, "reason": ending.why}
                log.info("request_ended", node=ending.node, **words)

    def _do_periodic(self, snapshot: Snapshot, findings: Sequence[Finding]) -> None:
        """What fails there does not hold up recoveries. It is logged once while it goes on failing."""
        failed: set[str] = set()
        for name, do in self.periodic.items():
            try:
                do(snapshot, findings)
            except DatabaseTaken:
                raise
            except Exception as error:
                failed.add(name)
                self.pulse.last_error = f"{name}: {type(error).__name__}: {error}"
                self.pulse.errors_total += 1
                if name not in self._failed_periodic:
                    log.exception("part_failed", part=name)
        self._failed_periodic = failed

    def _count_ended(self, running: Sequence[Recovery]) -> None:
        now_running = frozenset(recovery.id for recovery in running)
        for recovery_id in self._running - now_running:
            ended = self._stores.recoveries.find(recovery_id)
            if ended is not None:
                self.pulse.meters.note_ended(ended)
                if ended.plan.kind is RecoveryKind.VALIDATE:
                    self._validated.update(ended.plan.nodes)
        self._running = now_running

    def _advance(self, recovery: Recovery, its_course: Callable[[], Course]) -> bool:
        """True if to go on with others: a recovery that runs into something unforeseen does not hold them up."""
        self.pulse.turns += 1
        try:
            return self._runner.advance(recovery, its_course())
        except Exception as error:
            self.pulse.errors_total += 1
            self.pulse.last_error = f"recovery {recovery.id}: {type(error).__name__}: {error}"
            log.exception("recovery_failed", recovery=recovery.id)
            return True

    def look(self, slurm_age_max_seconds: float) -> Snapshot:
        """Everything known now. Slurm is read again when the newest reading is older than given.

        What Slurm shows is recorded first: the snapshot shows new nodes and jobs with their records.
        """
        view = self.observer.read_slurm(slurm_age_max_seconds)
        if view is not None:
            self.pulse.meters.slurm_read_seconds.observe(self.pulse.slurm.seconds)
            self._slurm_recorder.record(view, self._turn)
        observation = self.observer.look(view)
        self.pulse.meters.note_kernel_events(observation.new_events, observation.snapshot.now)
        self._agent_recorder.record(observation)
        return observation.snapshot

    def _turn(self) -> None:
        self.pulse.turns += 1

    def _judge(self, slurm_age_max_seconds: float) -> tuple[Snapshot, list[Finding], list[Decision], Consequences]:
        snapshot = self.look(slurm_age_max_seconds)
        findings = detect(snapshot, self._current.config, self.detectors)
        since = {one.key: one.since for one in self.pulse.needs}
        snapshot = with_fabric(snapshot, findings)
        snapshot = snapshot.with_round(replace(snapshot.round, waiting_since=since))
        self.pulse.snapshot, self.pulse.faults = snapshot, faults_by_node(findings)
        self.pulse.meters.note_snapshot(snapshot)
        failures = Failures(snapshot.now)
        beside = consequences(snapshot, self._current.config, failures)
        if beside.unfit is not None:
            self.verdicts.set(beside.unfit, snapshot.slurm.read_at)
        self._launchers.replace_orders(beside.orders)
        config = self._current.config
        decisions, self.pulse.needs = judge(snapshot, findings, config, failures, self.pulse.needs)
        known = [*findings, *failed_decisions(decisions)]
        self._note_failures(known)
        return snapshot, known, decisions, beside

    def _note_failures(self, findings: Iterable[Finding]) -> None:
        """What `/healthz` and `/metrics` show of detectors and decisions that fail; one that goes on failing is logged
        once.
        """
        failed: dict[str, FailedDetector] = {}
        for finding in findings:
            if not isinstance(one := finding.detail, DetectorDetail):
                continue
            failed[one.label] = FailedDetector(one.effect, finding.summary)
            self.pulse.errors_total += 1
            self.pulse.meters.detectors_failed.labels(one.label if one.is_decision else one.detector).inc()
            if one.label not in self.pulse.failed_detectors:
                event = "decision_failed" if one.is_decision else "detector_failed"
                log.error(event, part=one.detector, error=finding.summary, detail=", ".join(one.raised_in))
        self.pulse.failed_detectors = failed

    def _record(
        self,
        decisions: list[Decision],
        findings: list[Finding],
        snapshot: Snapshot,
        ended_proposals: Sequence[ProposalEnding],
    ) -> bool:
        """Returns whether there was anything new: incidents and recoveries are then others than in the snapshot."""
        now = self._clock.now()
        concerned = {one.subject for one in decisions} & snapshot.nodes.keys()
        records = {name: snapshot.nodes[name].record for name in concerned}
        changes, refused = follow_all(records, decisions, now)
        for one in refused:
            self.pulse.errors_total += 1
            self.pulse.last_error = f"transition refused: {one.why}"
            log.error("transition_refused", row=one.decision.row, subject=one.decision.subject, error=one.why)
        news = self._recorded.news(changes)
        noted = noted_together(news)
        if news:
            rows: dict[JobKey, int] = {
                key: row for key in snapshot.jobs if (row := self._directory.row_of(key.job_id)) is not None
            }
            self._stores.journal.record(noted, now, rows, looked_at=snapshot.now)
        whole = not failures(findings)
        self._recorded = self._recorded.after(decisions, news, now, whole=whole)
        for decision in (one.decision for one in noted if one.noted):
            self.pulse.meters.decisions.labels(decision.action.value, decision.because.value).inc()
            log.info(
                "decision",
                row=decision.row,
                subject=decision.subject,
                action=decision.action.value,
                because=decision.because.value,
                reason=decision.reason,
            )
        self._stores.recoveries.end_proposals(ended_proposals, now)
        incidents = self._stores.incidents.open_incidents() if news else snapshot.incidents
        of_incidents = incident_news(snapshot, findings, incidents)
        self._stores.incidents.add_evidence(of_incidents.evidence)
        self._stores.incidents.close(of_incidents.over, snapshot.now)
        return bool(news)
