"""The runner: advances open recoveries through the journal. Intent → effect → outcome, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide.peers import NO_TURNS, Turn
from understudy_controlplane.decide.recovery_recheck import (
    AS_PLANNED,
    Course,
    Ending,
    ended_by_its_gang,
    ended_by_its_owner,
    left_by_its_owner,
    overtaken_in_its_array,
    suspended_since_its_hang,
    undo_steps,
    undo_steps_of_failure,
)
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.gang import LAST_STEPS_SECONDS
from understudy_controlplane.fleet.recovery import (
    JOBS_ON_A_NODE,
    UNDOES,
    AllocationSwapPlan,
    DrainPlan,
    Plan,
    PoolSwapPlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
    job_of,
)
from understudy_controlplane.fleet.slurm import SlurmNode, SlurmView
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.recover.effect import Effect
from understudy_controlplane.recover.patience import Patience, rest_seconds
from understudy_controlplane.recover.step import Done, Failed, GangFacts, StepContext, Todo, Wait
from understudy_controlplane.recover.steps import STEPS
from understudy_controlplane.recover.tickets import Tickets
from understudy_controlplane.recover.timeouts import timeout_seconds
from understudy_controlplane.slurm.fenced import as_one_step
from understudy_controlplane.slurm.protocol import NotSent, Slurm, SlurmError, SlurmUnavailable, read_for_effects
from understudy_controlplane.slurm.slurmds import ask_slurmds
from understudy_controlplane.store.stores import Stores
from understudy_wire.stages import StageName, StageResult

log = structlog.get_logger()

ASK_AGAIN_SECONDS = 0.5

OBSERVATIONS_PER_ADVANCE_MAX = 50
"""Bound on the work of one call: a plan has about ten steps, each observed at most a few times."""


TRIES_MAX = 3
"""What is refused this often is not tried again, of steps that work on a node: the next rung is."""

ON_A_NODE = frozenset(
    {
        StepName.REBOOT_NODE,
        StepName.RESET_GPU,
        StepName.RUN_VALIDATION,
        StepName.TEST_NETWORK,
        StepName.RAISE_WEIGHT,
        StepName.RESTORE_WEIGHT,
    }
)

EFFECT_SECONDS = 1.0
"""How long the other recoveries wait for a call of one of them. Most take milliseconds; one may take its time-out."""

FRESH_SECONDS = 0.5
"""No effect follows from a reading of Slurm that is older, or from the loop's: then it is read again first, so that
what a person has changed since the decision counts.
"""

BEFORE_THE_JOB = frozenset({*UNDOES, StepName.DRAIN_NODES})
"""Steps that are right whatever has become of the job."""

WRITE_REASONS = frozenset(
    {StepName.DRAIN_NODES, StepName.DOWN_NODES, StepName.REQUEUE_JOB, StepName.REBOOT_NODE, StepName.LIFT_DRAIN}
)
"""Steps that may have set a reason in Slurm: the reason that is read back after them proves Understudy's ownership."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What steps work with."""

    slurm: Slurm
    answers: Callable[[SlurmNode], bool]  # whether this node's slurmd answers at its port
    launchers: Launchers
    sleep: Callable[[float], None] = time.sleep
    begin: Callable[[Callable[[], None]], Effect] = Effect
    objection: Callable[[], str] = str  # why nothing may be changed in Slurm now; empty: it may


class Runner:
    """One thread calls it. Holds nothing that is needed and that the journal and Slurm do not: it can be lost at any
    moment.
    """

    def __init__(self, effects: Effects, stores: Stores, current: CurrentConfig, clock: Clock) -> None:
        self._tickets = Tickets(stores.tickets, current, clock)
        self._slurm = effects.slurm
        self._answers = effects.answers
        self._sleep = effects.sleep
        self._begin_effect = effects.begin
        self._objection = effects.objection
        self._launchers = effects.launchers
        self._stores = stores
        self._current = current
        self._clock = clock
        self._patience = Patience()
        self._reading: SlurmView | None = None
        self._reading_is_own = False
        self._read_at = 0.0
        self._slurm_ahead_seconds = 0.0
        self._min_job_age_seconds = 0
        self._under_way: dict[int, tuple[RecoveryStep, Effect]] = {}
        """Recovery → its step as it was before the effect that is under way."""
        self._not_sent: dict[int, RecoveryStep] = {}
        """Recovery → its step as it was before an effect of which nothing was sent: it is to be that again."""
        self._refusals: dict[tuple[int, int], str] = {}
        self._turns = NO_TURNS
        self._answered: set[str] = set()

    def begin_round(
        self, running: Collection[int], view: SlurmView | None = None, turns: Mapping[str, Turn] = NO_TURNS
    ) -> None:
        """The recoveries of one round share a reading of Slurm, until one of them changes something: the loop's `view`
        where that is newer than what a recovery has seen or done. What is remembered of a recovery that is no longer
        running is forgotten. `turns`: of nodes whose network is tested with each other.
        """
        self._turns = turns
        new = view is not None and self._read_at < view.read_at and self._is_fresh(view.read_at)
        self._reading, self._reading_is_own = (view if new else None), False
        if view is not None:
            self._slurm_ahead_seconds = view.clock_ahead_seconds
            self._min_job_age_seconds = view.min_job_age_seconds
        self._patience.keep_only(running)
        self._under_way = {key: one for key, one in self._under_way.items() if key in running}
        self._not_sent = {key: one for key, one in self._not_sent.items() if key in running}
        self._refusals = {key: reason for key, reason in self._refusals.items() if key[0] in running}

    def advance(self, recovery: Recovery, course: Course = AS_PLANNED) -> bool:
        """Go as far as possible without waiting. That Slurm cannot be read is no failure: the next call goes on.

        Returns whether Slurm could be read: if not, others need not try right now.
        """
        if not self._is_free(recovery):
            return True
        if recovery.id in self._not_sent:
            recovery = recovery.with_step(self._take_back(recovery))
        self._answered.clear()
        goes_on = course.ending is None and not course.drain_forgotten
        if goes_on and self._patience.rests(recovery.id, self._clock.monotonic()):
            return True
        for _ in range(OBSERVATIONS_PER_ADVANCE_MAX):
            try:
                step = _next_step(recovery)
                ends = course.ending if step is not None and recovery.ends_as is None else None
                if ends is not None and step is not None and not self._has_verdict(recovery, step, ends):
                    recovery = self._end_early(recovery, ends)
                    step = _next_step(recovery)
                if step is None:
                    self._end(recovery)
                    return True
                moved = self._advance_step(recovery, step, course)
            except SlurmError as error:
                self.unreadable()
                log.warning("slurm_unreadable", recovery=recovery.id, error=str(error))
                return False
            if moved is None:
                return True
            recovery = moved
        return True

    def _has_verdict(self, recovery: Recovery, step: RecoveryStep, ending: Ending) -> bool:
        """True if a person cancels a test that has failed by now: what it has shown of the node stays true."""
        runs = step.name in JOBS_ON_A_NODE and step.status is StepStatus.INTENDED
        if ending.status is not RecoveryStatus.CANCELLED or not runs:
            return False
        found = STEPS[step.name].observe(self._context(recovery))
        return isinstance(found, Failed) and not found.never_began

    def hurries(self, recoveries: Iterable[Recovery]) -> bool:
        """True if one of them has to be looked at again before the loop's usual tick."""
        return self._patience.hurries((one.id for one in recoveries), self._clock.monotonic())

    def unreadable(self) -> None:
        """Slurm could not be read, or nothing was advanced: that time does not count against any step."""
        self._patience.interrupt()

    def _is_free(self, recovery: Recovery) -> bool:
        """True if no effect of the recovery is under way. One that hangs counts against its own step only."""
        if recovery.id not in self._under_way:
            return True
        step, effect = self._under_way[recovery.id]
        if effect.is_over(0.0):
            self._settle(recovery, step)
            return True
        self._patience.look(recovery.id, step.position, self._clock.now())
        return False

    def _advance_step(self, recovery: Recovery, step: RecoveryStep, course: Course) -> Recovery | None:
        """The recovery as it is now where it is worth looking again at once: its step has moved on. Else None."""
        context = self._context(recovery)
        if recovery.ends_as is None and step.name not in BEFORE_THE_JOB:
            job = context.job
            ending = (
                ended_by_its_owner(recovery, job)
                or ended_by_its_gang(recovery, job, context.ended_well)
                or overtaken_in_its_array(recovery, job)
                or suspended_since_its_hang(recovery, job)
                or left_by_its_owner(recovery, job, self._current.config.jobs.opt_in_word)
            )
            if ending is not None:
                return self._end_early(recovery, ending)
        drain = _lost_drain(recovery, context) if course.drain_forgotten and course.may_act else None
        if drain is not None:
            return self._take_up_again(recovery, drain, step)
        observation = STEPS[step.name].observe(context)
        match observation:
            case Done():
                return self._done(recovery, step, observation, context)
            case Failed(why, never_began, results):
                self._record_stages(recovery, results)
                return self._fail(recovery, step, why, never_began=never_began)
            case Todo() if not course.may_act:
                return None
            case Todo() | Wait():
                return self._wait_or_try(recovery, step, observation, context, course)

    def _wait_or_try(
        self, recovery: Recovery, step: RecoveryStep, observation: Todo | Wait, context: StepContext, course: Course
    ) -> Recovery | None:
        takes_long = isinstance(observation, Wait) and observation.may_take_long
        waited = self._patience.look(recovery.id, step.position, context.now, long=takes_long)
        timeout = timeout_seconds(step.name, observation, recovery.plan, self._current.config)
        if waited > timeout:
            refusal = self._refusals.get((recovery.id, step.position), "")
            return self._fail(
                recovery, step, f"not done after {timeout:.0f} s: {observation.why}{refusal and f' ({refusal})'}"
            )
        if isinstance(observation, Todo) and self._may_act(step, observation):
            return self._try(recovery, step, context, course)
        if isinstance(observation, Wait):
            rest = rest_seconds(waited, timeout, self._min_job_age_seconds)
            self._patience.rest(recovery.id, self._clock.monotonic() + rest)
        return None

    def _try(self, recovery: Recovery, step: RecoveryStep, context: StepContext, course: Course) -> Recovery | None:
        """Act, where what is needed for it stands and it has not been tried too often."""
        if not self._has_fresh_reading():
            return recovery
        undone = _undone(recovery, step, context)
        if undone is not None and undone.name is StepName.DRAIN_NODES and not course.drain_forgotten:
            return None  # a person may have lifted it: what follows from that is decided in the next round
        if undone is not None:
            return self._take_up_again(recovery, undone, step)
        if step.name in ON_A_NODE and step.attempts >= TRIES_MAX:
            reason = self._refusals.get((recovery.id, step.position), "its effect is not seen")
            why = f"tried {times(step.attempts)}: {reason}"
            never_began = step.name in JOBS_ON_A_NODE or step.name is StepName.TEST_NETWORK
            return self._fail(recovery, step, why, never_began=never_began)
        return self._act(recovery, step, context)

    def _take_up_again(self, recovery: Recovery, undone: RecoveryStep, needed_by: RecoveryStep) -> Recovery:
        if self._has_fresh_reading():
            log.warning("step_undone", recovery=recovery.id, step=undone.name.value, needed_by=needed_by.name.value)
            recovery = recovery.with_step(self._stores.recoveries.reopen(recovery.id, undone))
        return recovery

    def _has_fresh_reading(self) -> bool:
        """If not, the next look reads Slurm."""
        if self._reading_is_own and self._is_fresh(self._read_at):
            return True
        self._reading = None
        return False

    def _is_fresh(self, read_at: float) -> bool:
        return self._clock.now() - read_at <= FRESH_SECONDS

    def _act(self, recovery: Recovery, step: RecoveryStep, context: StepContext) -> Recovery | None:
        if self._objection():  # nothing would be sent: that is no try, and counts against no step
            self.unreadable()
            return None
        before, step = step, self._stores.recoveries.intend(recovery.id, step, self._clock.now())
        log.info("step_begun", recovery=recovery.id, step=step.name.value, tries=step.attempts)
        self._reading = None
        effect = self._begin_effect(lambda: as_one_step(lambda: STEPS[step.name].act(context, self._slurm)))
        self._under_way[recovery.id] = before, effect
        settled = effect.is_over(EFFECT_SECONDS) and self._settle(recovery, step)
        if recovery.id in self._not_sent:
            self._take_back(recovery)
        return recovery.with_step(step) if settled else None

    def _settle(self, recovery: Recovery, step: RecoveryStep) -> bool:
        """Returns whether the call was answered. If not, or if Slurm refused it, what Slurm shows next time counts:
        the call may have been carried out, or another did it first.
        """
        before, effect = self._under_way.pop(recovery.id)
        self._reading, self._read_at = None, self._clock.now()  # what was read before does not show the effect
        try:
            effect.check()
        except NotSent as error:
            log.warning("step_not_sent", recovery=recovery.id, step=step.name.value, error=str(error))
            self._not_sent[recovery.id] = before
            self.unreadable()
            return False
        except SlurmError as error:
            event = "step_unanswered" if isinstance(error, SlurmUnavailable) else "step_refused"
            self._refusals[recovery.id, step.position] = str(error)
            log.warning(event, recovery=recovery.id, step=step.name.value, error=str(error))
            return False
        return True

    def _take_back(self, recovery: Recovery) -> RecoveryStep:
        """The next look tries again where the database does not take it now, as after a lost lease."""
        before = self._stores.recoveries.take_back(recovery.id, self._not_sent[recovery.id])
        del self._not_sent[recovery.id]
        return before

    def _end_early(self, recovery: Recovery, ending: Ending) -> Recovery:
        undo = undo_steps(recovery, ending)
        self._stores.recoveries.end_early(recovery, ending.status, ending.why, undo, self._clock.now())
        log.info("recovery_ends_early", recovery=recovery.id, status=ending.status.value, reason=ending.why)
        return self._stores.recoveries.get(recovery.id)

    def _may_act(self, step: RecoveryStep, todo: Todo) -> bool:
        """An effect may take a moment to be seen: it is not tried again at once."""
        if step.intended_at is None:
            return True
        if todo.once_after is not None:
            return step.intended_at < todo.once_after
        pause = self._current.config.recovery.repeat_after_seconds
        return not 0.0 <= self._clock.now() - step.intended_at < pause  # negative: the clock was set back

    def _done(self, recovery: Recovery, step: RecoveryStep, outcome: Done, context: StepContext) -> Recovery:
        now = self._clock.now()
        if step.name in WRITE_REASONS:
            for name in _looked_at(recovery.plan):
                node, rebooted = context.slurm.nodes.get(name), step.name is StepName.REBOOT_NODE
                if node is None or not (node.taken_out or rebooted):
                    continue  # its drain was refused: nothing is there that a person could lift
                if rebooted or _wrote(recovery, step, node):
                    self._stores.fleet.owned(node, now)
                elif name in recovery.plan.nodes:
                    self._stores.fleet.drained(node, now)
        self._record_stages(recovery, outcome.results)
        done = self._stores.recoveries.done(
            recovery.id, step, outcome.at or now, outcome.detail, outcome.communicator_at
        )
        log.info("step_done", recovery=recovery.id, step=step.name.value, detail=outcome.detail)
        return recovery.with_step(done)

    def _record_stages(self, recovery: Recovery, results: Sequence[StageResult]) -> None:
        """Before the step's end: once that is written, the job is not looked at again."""
        if results:
            self._stores.stages.record(recovery.id, recovery.plan.nodes[0], results, self._clock.now())

    def _fail(self, recovery: Recovery, step: RecoveryStep, why: str, *, never_began: bool = False) -> Recovery:
        never_began = never_began or _comes_before_its_job(recovery, step)
        now, undo = self._clock.now(), undo_steps_of_failure(recovery)
        failed = self._stores.recoveries.step_failed(recovery, step, now, why, never_began=never_began, undo=undo)
        log.error("step_failed", recovery=recovery.id, step=step.name.value, reason=why)
        if undo:
            return self._stores.recoveries.get(recovery.id)
        return replace(recovery.with_step(failed), never_began=recovery.never_began or never_began)

    def _end(self, recovery: Recovery) -> None:
        status, outcome = _end_of(recovery)
        self._stores.recoveries.end(recovery.id, status, outcome, self._clock.now())
        log.info("recovery_ended", recovery=recovery.id, status=status.value, outcome=outcome)

    def _context(self, recovery: Recovery) -> StepContext:
        now = self._clock.now()
        if self._reading is None:
            self._reading = read_for_effects(self._slurm, now, self._note_read, self._slurm_ahead_seconds)
            self._reading_is_own = True
            self._note_read()
        job, nodes = job_of(recovery.plan), self._reading.nodes
        return StepContext(
            plan=recovery.plan,
            slurm=self._reading,
            records=self._stores.fleet.nodes_named(_looked_at(recovery.plan)),
            gang=self._gang(recovery),
            silent=self._silent,
            still_silent=self._still_silent,
            config=self._current.config,
            now=now,
            worked_until=lambda: self._worked_until(recovery),
            send_orders=lambda orders: self._launchers.add_orders(job.job_id, orders) if job else None,
            launcher=self._launchers.gang(job.job_id) if job else None,
            tickets=self._tickets,
            ended_well=lambda: self._ended_well(recovery),
            spares_wanted=self._spares_wanted,
            turn=self._turns.get(recovery.plan.nodes[0]) if recovery.plan.nodes else None,
            network_median=lambda: self._stores.stages.median(StageName.NETWORK, tuple(nodes)),
        )

    def _spares_wanted(self) -> int:
        size = in_force(self._stores.requests.stored(), self._clock.now()).spares_size.count
        return self._current.config.spares.count if size is None else size

    def _note_read(self) -> None:
        """After the reading: Slurm may take longer to answer than a reading stays fresh."""
        self._read_at = self._clock.now()

    def _silent(self, nodes: Sequence[SlurmNode]) -> list[str]:
        """No slurmd that has answered is asked again in one `advance`: where so many are asked that the reading of
        Slurm is no longer fresh then, the next look has a new reading and these answers.
        """
        asked = [node for node in nodes if node.name not in self._answered]
        silent = self._ask(asked)
        self._answered |= {node.name for node in asked} - {*silent}
        return silent

    def _ask(self, nodes: Sequence[SlurmNode]) -> list[str]:
        """Those that do not answer. A port that never answered the control plane proves nothing: there Slurm's word
        counts, as in `detect.silence`.
        """
        ever_open = self._stores.fleet.slurmds_seen() if nodes else frozenset()
        answers = ask_slurmds([node for node in nodes if node.name in ever_open], self._answers)
        return [node.name for node in nodes if not answers.get(node.name, node.responding)]

    def _still_silent(self, nodes: Sequence[SlurmNode]) -> list[str]:
        silent = {*self._ask(nodes)}
        if not silent:
            return []
        self._sleep(ASK_AGAIN_SECONDS)
        return self._ask([node for node in nodes if node.name in silent])

    def _ended_well(self, recovery: Recovery) -> bool:
        """True if its launcher reported a good end of the attempt that Slurm shows. An end long before the decision was
        known to it: the job trains on since then.
        """
        plan, reading = recovery.swap, self._reading
        shown = reading.jobs.get(plan.job.job_id) if plan is not None and reading is not None else None
        if plan is None or shown is None:
            return False
        gang = self._launchers.gang(plan.job.job_id)
        since = recovery.decided_at - LAST_STEPS_SECONDS
        same = gang is not None and gang.attempt.restart_count == shown.restart_count
        reported = same and gang is not None and gang.has_ended_well_since(since)
        return reported or self._stores.launches.has_ended_well(plan.job, shown.restart_count, since)

    def _gang(self, recovery: Recovery) -> Callable[[int], GangFacts]:
        plan = recovery.swap

        def facts(restart_count: int) -> GangFacts:
            if plan is None:
                return GangFacts(hook_was_used=False)
            job, given_up = plan.job, -1
            if isinstance(plan, AllocationSwapPlan) and restart_count == plan.restart_count:
                given_up = plan.launch
            started, world_size, last = self._stores.launches.processes(job, restart_count, given_up)
            first = self._stores.launches.first_step_at(job, restart_count, given_up)
            return GangFacts(self._stores.launches.hook_was_used(job), started, world_size, last, first)

        return facts

    def _worked_until(self, recovery: Recovery) -> float:
        """When the checkpoint was complete from which the gang went on; where there is none, when the fault was."""
        plan = recovery.plan
        assert isinstance(plan, AllocationSwapPlan)
        fault_at = plan.fault_at
        saved = self._stores.checkpoints.complete_checkpoints(plan.job)
        return max((one.completed_at for one in saved if one.completed_at <= fault_at), default=fault_at)


def _undone(recovery: Recovery, step: RecoveryStep, context: StepContext) -> RecoveryStep | None:
    """The first of the steps before it that this one needs whose effect is no longer there. A job whose start slurmctld
    forgot in a crash still needs its seats, but not those of a recovery that ends: it does not start the job again.
    """
    found = (recovery.step(name) for name in STEPS[step.name].needs)
    needed = [one for one in found if one is not None and one.position < step.position]
    if _ends(recovery) or not _is_forgotten(recovery.step(StepName.START_JOB), context):
        needed = [one for one in needed if one.name is not StepName.START_JOB]
    return next((one for one in needed if not isinstance(STEPS[one.name].observe(context), Done)), None)


def _is_forgotten(start: RecoveryStep | None, context: StepContext) -> bool:
    """True if the job had started, and pends again as the same attempt."""
    if start is None or start.status is not StepStatus.DONE:
        return False
    return isinstance(STEPS[StepName.START_JOB].observe(context), Todo | Wait)


def _ends(recovery: Recovery) -> bool:
    return recovery.ends_as is not None or any(step.status is StepStatus.FAILED for step in recovery.steps)


def _lost_drain(recovery: Recovery, context: StepContext) -> RecoveryStep | None:
    """The recovery's drain, where it was done and Slurm does not show it. A recovery that ends repeats none."""
    drain = recovery.step(StepName.DRAIN_NODES)
    if drain is None or drain.status is not StepStatus.DONE or _ends(recovery):
        return None
    return None if isinstance(STEPS[drain.name].observe(context), Done) else drain


def _comes_before_its_job(recovery: Recovery, step: RecoveryStep) -> bool:
    """True if the recovery is to run a job on the node, later than this step."""
    return any(one.name in JOBS_ON_A_NODE and one.position > step.position for one in recovery.steps)


def _wrote(recovery: Recovery, step: RecoveryStep, node: SlurmNode) -> bool:
    """True if the step gave this node its reason: the later ones do so only by declaring it down."""
    may_have = step.attempts > 0 and (step.name is StepName.DRAIN_NODES or node.down)
    may_have |= step.name is StepName.LIFT_DRAIN  # it left the drain where it is, which the recovery had made
    return may_have and isinstance(recovery.plan, DrainPlan) and node.has_reason(recovery.plan.drain_reason)


def _looked_at(plan: Plan) -> tuple[str, ...]:
    """A dead node whose drain stays as it is belongs to no other step than the one that declares it down."""
    dead = plan.dead_nodes if isinstance(plan, PoolSwapPlan) else ()
    return tuple(dict.fromkeys((*plan.nodes, *dead)))


def _next_step(recovery: Recovery) -> RecoveryStep | None:
    """The first step that is neither done nor failed; once the recovery fails or ends early, of those that undo."""
    failed = any(step.status is StepStatus.FAILED for step in recovery.steps)
    left = [step for step in recovery.steps if step.status in (StepStatus.PLANNED, StepStatus.INTENDED)]
    if failed or recovery.ends_as is not None:
        left = sorted((step for step in left if step.name in UNDOES), key=lambda step: UNDOES.index(step.name))
    return left[0] if left else None


def _end_of(recovery: Recovery) -> tuple[RecoveryStatus, str]:
    """How the recovery ends, and why, with what is left of it."""
    failed = [step for step in recovery.steps if step.status is StepStatus.FAILED]
    if recovery.ends_as is None:
        status = RecoveryStatus.FAILED if failed else RecoveryStatus.SUCCEEDED
        return status, f"{failed[0].name.value}: {failed[0].detail}" if failed else ""
    undone = [step for step in recovery.steps if step.name in UNDOES and step.detail]
    left = [
        step.detail
        for step in undone
        if step.status is StepStatus.FAILED or step.name in (StepName.RELEASE_SEATS, StepName.LIFT_DRAIN)
    ]
    return recovery.ends_as, f"{recovery.outcome}; left: {'; '.join(left)}" if left else recovery.outcome
