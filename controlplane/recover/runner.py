"""The runner: advances open recoveries through the journal. Intent → effect → outcome, one step at a time."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from controlplane.clock import Clock
from controlplane.config import Config
from controlplane.fleet.recovery import Recovery, RecoveryStatus, RecoveryStep, StepName, StepStatus
from controlplane.fleet.slurm import SlurmNode, SlurmView
from controlplane.recover.step import Done, Failed, GangFacts, Observation, Todo, Wait, World
from controlplane.recover.steps import STEPS
from controlplane.slurm.protocol import Slurm, SlurmError, SlurmUnavailable, read_view
from controlplane.store.stores import Stores

log = structlog.get_logger()

ASK_AGAIN_SECONDS = 0.5

OBSERVATIONS_PER_ADVANCE_MAX = 50
"""Bound on the work of one call: a plan has about ten steps, each observed at most a few times."""


WRITE_REASONS = frozenset({StepName.DRAIN_NODES, StepName.DOWN_NODES, StepName.REQUEUE_JOB})
"""Steps that may have given Slurm a reason: what was read back after them is the proof that it is ours."""


class Runner:
    """One thread calls it. Holds nothing that the journal and Slurm do not: it can be lost at any moment."""

    def __init__(
        self, slurm: Slurm, answers: Callable[[SlurmNode], bool], stores: Stores, config: Config, clock: Clock
    ) -> None:
        """`answers(node)` tells whether anybody is at its slurmd's port."""
        self._slurm = slurm
        self._answers = answers
        self._stores = stores
        self._config = config
        self._clock = clock
        self._readable_since: float | None = None

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
                log.warning("slurm.unavailable", recovery=recovery.id, step=step.name.value, error=str(error))
                return False
            if not moved:
                return True
            recovery = self._reload(recovery)
        return True

    def _advance_step(self, recovery: Recovery, step: RecoveryStep) -> bool:
        """Returns whether the step moved on, so that it is worth looking again at once."""
        world = self._world(recovery)
        observation = STEPS[step.name].observe(world)
        match observation:
            case Done():
                self._done(recovery, step, observation, world)
                return True
            case Failed(why):
                self._fail(recovery, step, why)
                return True
            case Todo(why) | Wait(why) if self._late(recovery, step, observation):
                self._fail(recovery, step, f"not done after {self._timeout(step, observation):.0f} s: {why}")
                return True
            case Todo() if self._may_act(step):
                return self._act(recovery, step, world)
        return False

    def _act(self, recovery: Recovery, step: RecoveryStep, world: World) -> bool:
        self._stores.journal.intend(recovery.id, step, self._clock.now())
        log.info("step.act", recovery=recovery.id, step=step.name.value, attempt=step.attempts + 1)
        try:
            STEPS[step.name].act(world, self._slurm)
        except SlurmUnavailable:
            raise
        except SlurmError as error:
            # Refused, or carried out by somebody else first: what counts is what is read back next time.
            log.warning("step.refused", recovery=recovery.id, step=step.name.value, error=str(error))
            return False
        return True

    def _may_act(self, step: RecoveryStep) -> bool:
        """An effect may take a moment to be seen: it is not tried again at once."""
        if step.intended_at is None:
            return True
        return self._clock.now() - step.intended_at >= self._config.recovery.repeat_after_seconds

    def _done(self, recovery: Recovery, step: RecoveryStep, outcome: Done, world: World) -> None:
        now = self._clock.now()
        if step.name in WRITE_REASONS:
            for node in (world.slurm.nodes.get(name) for name in recovery.plan.failed_nodes):
                if node is not None and _wrote(recovery, step, node):
                    self._stores.fleet.owned(node, now)
                elif node is not None:
                    self._stores.fleet.drained(node, now)
        self._stores.journal.done(recovery.id, step, outcome.at or now, outcome.detail)
        log.info("step.done", recovery=recovery.id, step=step.name.value, detail=outcome.detail)

    def _fail(self, recovery: Recovery, step: RecoveryStep, why: str) -> None:
        self._stores.journal.step_failed(recovery.id, step, self._clock.now(), why)
        log.error("step.failed", recovery=recovery.id, step=step.name.value, why=why)

    def _end(self, recovery: Recovery) -> None:
        failed = [step for step in recovery.steps if step.status is StepStatus.FAILED]
        status = RecoveryStatus.FAILED if failed else RecoveryStatus.SUCCEEDED
        outcome = f"{failed[0].name.value}: {failed[0].detail}" if failed else ""
        self._stores.journal.end(recovery.id, status, outcome, self._clock.now())
        log.info("recovery.ended", recovery=recovery.id, status=status.value, outcome=outcome)

    def _late(self, recovery: Recovery, step: RecoveryStep, observation: Observation) -> bool:
        """Time in which Slurm could not be read does not count."""
        before = [done.done_at for done in recovery.steps[: step.position] if done.done_at is not None]
        since = max([recovery.decided_at, self._readable_since or 0.0, *before])
        return self._clock.now() - since > self._timeout(step, observation)

    def _timeout(self, step: RecoveryStep, observation: Observation) -> float:
        policy = self._config.recovery
        for_people = isinstance(observation, Wait) and observation.for_people
        patient = for_people or step.name in (StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP)
        return policy.first_step_timeout_seconds if patient else policy.step_timeout_seconds

    def _world(self, recovery: Recovery) -> World:
        now = self._clock.now()
        view: SlurmView = read_view(self._slurm, now)
        if self._readable_since is None:
            self._readable_since = now
        known = self._stores.fleet.nodes()
        records = {name: known[name] for name in recovery.plan.failed_nodes if name in known}
        return World(recovery.plan, view, records, self._gang(recovery), self._asker(), self._config, now)

    def unreadable(self) -> None:
        """Slurm could not be read, or nothing was advanced: that time does not count against any step."""
        self._readable_since = None

    def _asker(self) -> Callable[[SlurmNode], bool]:
        """Asks a slurmd's port, twice with a pause. A port that was never open to us proves nothing by its silence."""
        seen: set[str] | None = None

        def answers(node: SlurmNode) -> bool:
            nonlocal seen
            if seen is None:
                records = self._stores.fleet.nodes().values()
                seen = {record.name for record in records if record.slurmd_seen_at is not None}
            if node.name not in seen or self._answers(node):
                return True
            time.sleep(ASK_AGAIN_SECONDS)
            return self._answers(node)

        return answers

    def _gang(self, recovery: Recovery) -> Callable[[int], GangFacts]:
        job = recovery.plan.job

        def facts(restart_count: int) -> GangFacts:
            if job is None:
                return GangFacts(hook_was_used=False)
            started, world_size, last = self._stores.facts.processes(job, restart_count)
            first = self._stores.facts.first_step_at(job, restart_count)
            return GangFacts(self._stores.facts.hook_was_used(job), started, world_size, last, first)

        return facts

    def _reload(self, recovery: Recovery) -> Recovery:
        return self._stores.journal.recovery(recovery.id)


def _wrote(recovery: Recovery, step: RecoveryStep, node: SlurmNode) -> bool:
    """Whether the step gave this node its reason: the later ones do so only by declaring it down."""
    may_have = step.attempts > 0 and (step.name is StepName.DRAIN_NODES or node.down)
    return may_have and node.reason == recovery.plan.drain_reason


def _next_step(recovery: Recovery) -> RecoveryStep | None:
    """The first step that is neither done nor failed. After a failure only the seats are still given back."""
    failed = any(step.status is StepStatus.FAILED for step in recovery.steps)
    left = [step for step in recovery.steps if step.status in (StepStatus.PLANNED, StepStatus.INTENDED)]
    if failed:
        left = [step for step in left if step.name is StepName.RELEASE_SEATS]
    return left[0] if left else None
