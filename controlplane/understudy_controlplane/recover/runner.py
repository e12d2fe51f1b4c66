"""The runner: advances open recoveries through the journal. Intent → effect → outcome, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.recovery import (
    JOBS_ON_A_NODE,
    AllocationSwapPlan,
    DrainPlan,
    Plan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
    ValidationPlan,
    job_of,
)
from understudy_controlplane.fleet.slurm import SlurmNode, SlurmView
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.recover.step import Done, Failed, GangFacts, Observation, Todo, Wait, World
from understudy_controlplane.recover.steps import STEPS
from understudy_controlplane.recover.steps.repair import START_SECONDS
from understudy_controlplane.recover.tickets import Tickets, WebhookSender
from understudy_controlplane.slurm.protocol import Slurm, SlurmError, SlurmUnavailable, read_view
from understudy_controlplane.store.stores import Stores

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
        StepName.RAISE_WEIGHT,
        StepName.RESTORE_WEIGHT,
    }
)

TICKET_AGAIN_SECONDS = 15.0
TICKET_SECONDS = 24 * 3600.0
"""How long a ticket is sent again to a webhook that does not accept it."""

WRITE_REASONS = frozenset({StepName.DRAIN_NODES, StepName.DOWN_NODES, StepName.REQUEUE_JOB, StepName.REBOOT_NODE})
"""Steps that may have set a reason in Slurm: the reason that is read back after them proves Understudy's ownership."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What steps work with."""

    slurm: Slurm
    answers: Callable[[SlurmNode], bool]  # whether this node's slurmd answers at its port
    launchers: Launchers
    webhook: WebhookSender  # of tickets
    sleep: Callable[[float], None] = time.sleep


class Runner:
    """One thread calls it. Holds nothing that is needed and that the journal and Slurm do not: it can be lost at any
    moment.
    """

    def __init__(self, effects: Effects, stores: Stores, config: Config, clock: Clock) -> None:
        self._tickets = Tickets(stores.repairs, config, clock, effects.webhook)
        self._slurm = effects.slurm
        self._answers = effects.answers
        self._sleep = effects.sleep
        self._launchers = effects.launchers
        self._stores = stores
        self._config = config
        self._clock = clock
        self._readable_since: float | None = None
        self._refusals: dict[tuple[int, int], str] = {}

    def advance(self, recovery: Recovery) -> bool:
        """Go as far as possible without waiting. Slurm being away is no failure: the next call goes on.

        Returns whether Slurm could be talked to: if not, others need not try right now.
        """
        for _ in range(OBSERVATIONS_PER_ADVANCE_MAX):
            step = _next_step(recovery)
            if step is None:
                self._end(recovery)
                return True
            try:
                moved = self._advance_step(recovery, step)
            except SlurmError as error:
                self._readable_since = None
                log.warning("slurm_unreadable", recovery=recovery.id, step=step.name.value, error=str(error))
                return False
            if not moved:
                return True
            recovery = self._reload(recovery)
        return True

    def _advance_step(self, recovery: Recovery, step: RecoveryStep) -> bool:
        """Returns whether the step moved on, so that it is worth looking again at once."""
        world = self._world(recovery)
        observation = STEPS[step.name].observe(world)
        timeout = self._timeout(step, observation, recovery.plan)
        match observation:
            case Done():
                self._done(recovery, step, observation, world)
                return True
            case Failed(why, never_began):
                self._fail(recovery, step, why, never_began=never_began)
                return True
            case Todo(why) | Wait(why) if self._late(recovery, step, observation):
                self._fail(recovery, step, f"not done after {timeout:.0f} s: {why}")
                return True
            case Todo() if self._may_act(step):
                return self._try(recovery, step, world)
        return False

    def _try(self, recovery: Recovery, step: RecoveryStep, world: World) -> bool:
        """Act, where what is needed for it stands and it has not been tried too often."""
        undone = _undone(recovery, step, world)
        if undone is not None:
            self._stores.recoveries.reopen(recovery.id, undone)
            log.warning("step_undone", recovery=recovery.id, step=undone.name.value, needed_by=step.name.value)
            return True
        if step.name in ON_A_NODE and step.attempts >= TRIES_MAX:
            reason = self._refusals.get((recovery.id, step.position), "its effect is not seen")
            why = f"tried {step.attempts} times: {reason}"
            self._fail(recovery, step, why, never_began=step.name in JOBS_ON_A_NODE)
            return True
        return self._act(recovery, step, world)

    def _act(self, recovery: Recovery, step: RecoveryStep, world: World) -> bool:
        self._stores.recoveries.intend(recovery.id, step, self._clock.now())
        log.info("step_begun", recovery=recovery.id, step=step.name.value, tries=step.attempts + 1)
        try:
            STEPS[step.name].act(world, self._slurm)
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            # Refused, or another did it first: what Slurm shows next time counts.
            self._refusals[recovery.id, step.position] = str(error)
            log.warning("step_refused", recovery=recovery.id, step=step.name.value, error=str(error))
            return False
        return True

    def _may_act(self, step: RecoveryStep) -> bool:
        """An effect may take a moment to be seen: it is not tried again at once."""
        if step.intended_at is None:
            return True
        pause = TICKET_AGAIN_SECONDS if step.name is StepName.OPEN_TICKET else 0.0
        return self._clock.now() - step.intended_at >= max(pause, self._config.recovery.repeat_after_seconds)

    def _done(self, recovery: Recovery, step: RecoveryStep, outcome: Done, world: World) -> None:
        now = self._clock.now()
        if step.name in WRITE_REASONS:
            for node in (world.slurm.nodes.get(name) for name in recovery.plan.nodes):
                if node is not None and (_wrote(recovery, step, node) or step.name is StepName.REBOOT_NODE):
                    self._stores.fleet.owned(node, now)
                elif node is not None:
                    self._stores.fleet.drained(node, now)
        self._stores.recoveries.done(recovery.id, step, outcome.at or now, outcome.detail)
        log.info("step_done", recovery=recovery.id, step=step.name.value, detail=outcome.detail)

    def _fail(self, recovery: Recovery, step: RecoveryStep, why: str, *, never_began: bool = False) -> None:
        never_began = never_began or _comes_before_its_job(recovery, step)
        self._stores.recoveries.step_failed(recovery.id, step, self._clock.now(), why, never_began=never_began)
        log.error("step_failed", recovery=recovery.id, step=step.name.value, reason=why)

    def _end(self, recovery: Recovery) -> None:
        failed = [step for step in recovery.steps if step.status is StepStatus.FAILED]
        status = RecoveryStatus.FAILED if failed else RecoveryStatus.SUCCEEDED
        outcome = f"{failed[0].name.value}: {failed[0].detail}" if failed else ""
        self._stores.recoveries.end(recovery.id, status, outcome, self._clock.now())
        self._refusals = {key: reason for key, reason in self._refusals.items() if key[0] != recovery.id}
        log.info("recovery_ended", recovery=recovery.id, status=status.value, outcome=outcome)

    def _late(self, recovery: Recovery, step: RecoveryStep, observation: Observation) -> bool:
        """Time in which Slurm could not be read does not count."""
        moved = [done.done_at for done in recovery.steps if done.done_at is not None]
        since = max([recovery.decided_at, self._readable_since or 0.0, *moved])
        return self._clock.now() - since > self._timeout(step, observation, recovery.plan)

    def _timeout(self, step: RecoveryStep, observation: Observation, plan: Plan) -> float:
        policy = self._config.recovery
        own = self._own_timeout(step.name, plan)
        if own is not None:
            return own
        for_people = isinstance(observation, Wait) and observation.for_people
        patient = for_people or step.name in (StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP)
        return policy.first_step_timeout_seconds if patient else policy.step_timeout_seconds

    def _own_timeout(self, step: StepName, plan: Plan) -> float | None:
        """Of steps that take as long as what they run."""
        match step:
            case StepName.REBOOT_NODE:
                return self._config.repair.reboot_timeout_seconds
            case StepName.RESET_GPU:
                return self._config.repair.reset_timeout_seconds + START_SECONDS
            case StepName.RUN_VALIDATION:
                hours = plan.hours if isinstance(plan, ValidationPlan) else 0.0
                return self._config.validation.timeout_seconds + hours * 3600 + START_SECONDS
            case StepName.OPEN_TICKET:
                return TICKET_SECONDS
            case StepName.TELL_LAUNCHER:
                return self._config.recovery.launcher_timeout_seconds
        return None

    def _world(self, recovery: Recovery) -> World:
        now = self._clock.now()
        view: SlurmView = read_view(self._slurm, now)
        if self._readable_since is None:
            self._readable_since = now
        job = job_of(recovery.plan)
        return World(
            plan=recovery.plan,
            slurm=view,
            records=self._stores.fleet.nodes_named(recovery.plan.nodes),
            gang=self._gang(recovery),
            answers=self._asker(),
            config=self._config,
            now=now,
            worked_until=lambda: self._worked_until(recovery),
            send_orders=lambda orders: self._launchers.add_orders(job.job_id, orders) if job else None,
            launcher=self._launchers.gang(job.job_id) if job else None,
            tickets=self._tickets,
        )

    def unreadable(self) -> None:
        """Slurm could not be read, or nothing was advanced: that time does not count against any step."""
        self._readable_since = None

    def _asker(self) -> Callable[[SlurmNode], bool]:
        """Probes a slurmd's port, twice with a pause. A port that never answered the control plane proves nothing."""
        ever_open: frozenset[str] | None = None  # asked of the database by the few steps that ask any port

        def answers(node: SlurmNode) -> bool:
            nonlocal ever_open
            if ever_open is None:
                ever_open = self._stores.fleet.slurmds_seen()
            if node.name not in ever_open or self._answers(node):
                return True
            self._sleep(ASK_AGAIN_SECONDS)
            return self._answers(node)

        return answers

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

    def _reload(self, recovery: Recovery) -> Recovery:
        return self._stores.recoveries.get(recovery.id)


def _undone(recovery: Recovery, step: RecoveryStep, world: World) -> RecoveryStep | None:
    """The first of the steps that this one needs whose effect is no longer there."""
    needed = (recovery.step(name) for name in STEPS[step.name].needs)
    return next(
        (one for one in needed if one is not None and not isinstance(STEPS[one.name].observe(world), Done)), None
    )


def _comes_before_its_job(recovery: Recovery, step: RecoveryStep) -> bool:
    """Whether the recovery is to run a job on the node, later than this step."""
    return any(one.name in JOBS_ON_A_NODE and one.position > step.position for one in recovery.steps)


def _wrote(recovery: Recovery, step: RecoveryStep, node: SlurmNode) -> bool:
    """Whether the step gave this node its reason: the later ones do so only by declaring it down."""
    may_have = step.attempts > 0 and (step.name is StepName.DRAIN_NODES or node.down)
    reason = recovery.plan.drain_reason if isinstance(recovery.plan, DrainPlan) else None
    return may_have and node.reason == reason


def _next_step(recovery: Recovery) -> RecoveryStep | None:
    """The first step that is neither done nor failed. After a failure only the seats are still given back."""
    failed = any(step.status is StepStatus.FAILED for step in recovery.steps)
    left = [step for step in recovery.steps if step.status in (StepStatus.PLANNED, StepStatus.INTENDED)]
    if failed:
        left = [step for step in left if step.name is StepName.RELEASE_SEATS]
    return left[0] if left else None
