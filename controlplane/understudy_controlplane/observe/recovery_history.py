"""Keeps the recoveries of the last week in memory, and reads from the database only those that are new or ran."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator

from understudy_controlplane.fleet.hung import Hung
from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.recovery import (
    REPAIR_KINDS,
    AllocationSwapPlan,
    ManualRepairPlan,
    PagePlan,
    Plan,
    PoolSwapPlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    ReleaseJobPlan,
    RepairAttempt,
    RepairPlan,
    RestoreWeightPlan,
    ReturnPlan,
    Rung,
    StepName,
    StepStatus,
    SwapPlan,
    ValidationPlan,
)
from understudy_controlplane.observe.sources import RecoveryReads
from understudy_wire.places import Place

LIFTS = (StepName.RESUME_NODE, StepName.LIFT_DRAIN)
UNDONE = (RecoveryStatus.FAILED, RecoveryStatus.CANCELLED)
UNPROVEN = (
    *(RecoveryStatus.OVERTAKEN, RecoveryStatus.CANCELLED),
    *(RecoveryStatus.AWAITS_APPROVAL, RecoveryStatus.EXPIRED),
)


class RecoveryHistory:
    """A recovery that has ended never changes again."""

    def __init__(self, recoveries: RecoveryReads) -> None:
        self._recoveries = recoveries
        self._known: dict[int, Recovery] = {}  # by id, oldest first
        self._newest = 0

    def refresh(self, since: float) -> None:
        """Forget what was decided before this time and runs no more."""
        running = tuple(one.id for one in self.running())
        for recovery in self._recoveries.changed(self._newest, running, since):
            self._known[recovery.id] = recovery
            self._newest = max(self._newest, recovery.id)
        over = [one.id for one in self._known.values() if one.decided_at < since and not _runs(one)]
        for recovery_id in over:
            del self._known[recovery_id]

    def find(self, recovery: int) -> Recovery | None:
        """None: it was forgotten, or there is none."""
        return self._known.get(recovery)

    def running(self) -> tuple[Recovery, ...]:
        return tuple(one for one in self._known.values() if _runs(one))

    def cancelled_since(self, since: float) -> tuple[Recovery, ...]:
        """Recoveries that operators cancelled, decided at this time or later. Those that are still being undone are
        included.
        """
        cancelled = RecoveryStatus.CANCELLED
        return tuple(
            one for one in self._since(since) if one.status is cancelled or (_runs(one) and one.ends_as is cancelled)
        )

    def lost_gangs_since(self, since: float) -> tuple[Recovery, ...]:
        """Moves that have ended their gang's attempt and have failed then, the newest of each job."""
        moves = {one.plan.job: one for one in self._known.values() if isinstance(one.plan, PoolSwapPlan)}
        failed = (one for one in moves.values() if one.status is RecoveryStatus.FAILED and self._ended_attempt(one))
        return tuple(one for one in failed if (one.ended_at or 0.0) >= since)

    def _ended_attempt(self, move: Recovery) -> bool:
        """Or the move did, in whose place it is."""
        before = self._known.get(move.plan.supersedes or 0)
        return move.has_begun_to_end_attempt or (before is not None and self._ended_attempt(before))

    def dead_gangs_since(self, since: float) -> tuple[Recovery, ...]:
        """Moves of gangs of which all nodes, and more than one, were dead and have been declared down."""
        moves = ((one, one.plan) for one in self._since(since) if isinstance(one.plan, PoolSwapPlan))
        dead = (one for one, plan in moves if len(plan.dead_nodes) > 1 and {*plan.seats} <= {*plan.spares})
        return tuple(one for one in dead if one.begun(StepName.DOWN_NODES))

    def disobeyed_since(self, since: float) -> frozenset[tuple[JobKey, int]]:
        """Job and restart count of launchers that did not follow their orders."""
        failed = (one.plan for one in self._since(since) if one.status is RecoveryStatus.FAILED)
        return frozenset(
            (plan.job, plan.restart_count)
            for plan in failed
            if isinstance(plan, AllocationSwapPlan) and plan.kind is RecoveryKind.ALLOCATION_SWAP
        )

    def dealt_with_since(self, since: float) -> dict[tuple[JobKey, int], tuple[int, float]]:
        """Job and restart count → the newest launch that was given up, and when the last recovery of these ended."""
        found: dict[tuple[JobKey, int], tuple[int, float]] = {}
        for one in self._since(since):
            plan = one.plan
            if isinstance(plan, AllocationSwapPlan) and plan.launch >= 0:
                launch, until = found.get((plan.job, plan.restart_count), (-1, 0.0))
                ended_at = math.inf if one.ended_at is None else one.ended_at
                found[plan.job, plan.restart_count] = max(launch, plan.launch), max(until, ended_at)
        return found

    def attempts_since(self, since: float) -> tuple[RepairAttempt, ...]:
        """What was tried on nodes, oldest first."""
        return tuple(
            RepairAttempt(
                recovery=one.id,
                node=node,
                kind=one.plan.kind,
                rung=_rung(one.plan),
                at=one.decided_at,
                status=one.status,
                outcome=one.outcome,
                ended_at=one.ended_at,
                never_began=one.never_began,
            )
            for one in self._since(since)
            if one.plan.kind in REPAIR_KINDS
            for node in _concerned(one.plan)
        )

    def swaps_since(self, since: float) -> tuple[tuple[float, JobKey], ...]:
        """Gangs moved or restarted, from the pool or within their allocation, oldest first: when, and which job."""
        moves = ((one.decided_at, _moved(one.plan)) for one in self._since(since))
        return tuple((at, job) for at, job in moves if job is not None)

    def spares_taken_since(self, since: float) -> Counter[str]:
        """Spares taken by the account of the job: nodes of the pool, idle nodes and those of preempted jobs."""
        found = Counter[str]()
        for one in self._since(since):
            if isinstance(one.plan, PoolSwapPlan) and one.plan.account and one.begun(StepName.BIND_JOB):
                found[one.plan.account] += len(one.plan.spares)
        return found

    def releases_since(self, since: float) -> tuple[tuple[float, JobKey], ...]:
        """Jobs released from Slurm's hold, oldest first: when, and which job."""
        return tuple(
            (one.decided_at, one.plan.job) for one in self._since(since) if isinstance(one.plan, ReleaseJobPlan)
        )

    def exclusions_since(self, since: float) -> dict[JobKey, dict[str, float]]:
        """Nodes that the control plane has excluded for a job, and when that was decided last."""
        found: dict[JobKey, dict[str, float]] = {}
        for one in self._since(since):
            step = one.step(StepName.EXCLUDE_NODES)
            if isinstance(one.plan, PoolSwapPlan) and step is not None and step.attempts > 0:
                found.setdefault(one.plan.job, {}).update(dict.fromkeys(one.plan.excluded, one.decided_at))
        return found

    def hangs_since(self, since: float) -> tuple[tuple[JobKey, Place], ...]:
        """Gangs restarted because they hung, oldest first: the job, and where it stood still."""
        plans = (one.plan for one in self._since(since))
        moves = (plan for plan in plans if isinstance(plan, PoolSwapPlan | AllocationSwapPlan))
        stopped = ((plan, -1 if plan.last_step is None else plan.last_step) for plan in moves if plan.hang)
        return tuple((plan.job, Place(step, plan.count_from)) for plan, step in stopped)

    def hung_since(self, since: float) -> tuple[Hung, ...]:
        """Nodes that gangs waited for when they hung. Not those of which the gang went on by itself, or whose restart
        a person did not want.
        """
        held = (one for one in self._since(since) if one.status not in UNPROVEN)
        moves = ((one.decided_at, one.plan) for one in held if isinstance(one.plan, SwapPlan))
        return tuple(Hung(at, plan.job, _attempt(plan), named) for at, plan in moves for named in plan.hung_on)

    def returns_failed_since(self, since: float) -> dict[str, Recovery]:
        """Nodes whose newest return to service has failed."""
        return self._returns_since(since, RecoveryStatus.FAILED)

    def returns_cancelled_since(self, since: float) -> dict[str, Recovery]:
        """The same of those that an operator has cancelled."""
        return self._returns_since(since, RecoveryStatus.CANCELLED)

    def _returns_since(self, since: float, status: RecoveryStatus) -> dict[str, Recovery]:
        newest = {one.plan.nodes[0]: one for one in self._since(since) if isinstance(one.plan, ReturnPlan)}
        return {name: one for name, one in newest.items() if one.status is status}

    def drains_lifted_since(self, since: float) -> dict[str, float]:
        """Nodes that a recovery has resumed in Slurm, and when that was seen."""
        lifted = (
            (name, step.done_at)
            for one in self._since(since)
            for step in one.steps
            if step.name in LIFTS and step.status is StepStatus.DONE and step.attempts
            for name in one.plan.nodes
        )
        return {name: at for name, at in lifted if at is not None}

    def weights_left_since(self, since: float) -> dict[str, Recovery]:
        """Nodes whose newest change back to their own weight has failed, or was cancelled before it was done."""
        newest = {one.plan.nodes[0]: one for one in self._since(since) if isinstance(one.plan, RestoreWeightPlan)}
        return {name: one for name, one in newest.items() if one.status in UNDONE}

    def limits_since(self, since: float) -> dict[tuple[JobKey, int], int]:
        """Job and restart count → its time limit at the first fault that was dealt with within its allocation."""
        found: dict[tuple[JobKey, int], int] = {}
        for one in self._since(since):
            plan = one.plan
            if isinstance(plan, AllocationSwapPlan) and plan.time_limit_minutes is not None:
                found.setdefault((plan.job, plan.restart_count), plan.time_limit_minutes)
        return found

    def _since(self, since: float) -> Iterator[Recovery]:
        return (one for one in self._known.values() if one.decided_at >= since)


def _runs(recovery: Recovery) -> bool:
    return recovery.status is RecoveryStatus.RUNNING


def _concerned(plan: Plan) -> Collection[str]:
    return plan.keys if isinstance(plan, PagePlan) else plan.nodes


def _rung(plan: Plan) -> Rung | None:
    match plan:
        case RepairPlan(rung=rung) | ValidationPlan(rung=rung):
            return rung
        case ManualRepairPlan(replaces=replaces):
            return Rung.REPLACE if replaces else Rung.MANUAL_REPAIR
    return None


def _attempt(plan: SwapPlan) -> Attempt:
    return Attempt(plan.restart_count, plan.launch if isinstance(plan, AllocationSwapPlan) else 0)


def _moved(plan: Plan) -> JobKey | None:
    """The job whose gang the plan moves or restarts."""
    return plan.job if isinstance(plan, SwapPlan) and plan.stops_gang else None
