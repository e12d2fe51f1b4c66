"""Keeps what was planned about gangs within the last week in memory, and reads only new plans from the database."""

from __future__ import annotations

from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, PastPlan, Plan, PoolSwapPlan, ReleaseJobPlan
from understudy_controlplane.observe.sources import GangPlanReads

PLAN_AGE_MAX_SECONDS = 7 * 24 * 3600.0


class GangHistory:
    def __init__(self, recoveries: GangPlanReads) -> None:
        self._recoveries = recoveries
        self._past: list[PastPlan] = []
        self._newest = 0

    def refresh(self, now: float) -> None:
        since = now - PLAN_AGE_MAX_SECONDS
        new = self._recoveries.gang_plans_after(self._newest, since)
        if new:
            self._newest = new[-1].recovery
        if new or (self._past and self._past[0].at < since):
            self._past = [one for one in (*self._past, *new) if one.at >= since]

    def swaps_since(self, since: float) -> tuple[tuple[float, JobKey], ...]:
        """Gangs moved or restarted, from the pool or within their allocation, oldest first: when, and which job."""
        return tuple((one.at, job) for one in self._past if one.at >= since and (job := _moved(one.plan)) is not None)

    def releases_since(self, since: float) -> tuple[tuple[float, JobKey], ...]:
        """Jobs released from Slurm's hold, oldest first: when, and which job."""
        return tuple(
            (one.at, one.plan.job) for one in self._past if one.at >= since and isinstance(one.plan, ReleaseJobPlan)
        )

    def hangs(self) -> tuple[tuple[JobKey, int | None], ...]:
        """Gangs restarted because they hung, oldest first: the job, and the furthest step it had finished."""
        plans = (one.plan for one in self._past if isinstance(one.plan, PoolSwapPlan | AllocationSwapPlan))
        return tuple((plan.job, plan.last_step) for plan in plans if plan.hang)

    def limits(self) -> dict[tuple[JobKey, int], int]:
        """Job and restart count → its time limit at the first fault that was dealt with within its allocation."""
        found: dict[tuple[JobKey, int], int] = {}
        for one in self._past:
            plan = one.plan
            if isinstance(plan, AllocationSwapPlan) and plan.time_limit_minutes is not None:
                found.setdefault((plan.job, plan.restart_count), plan.time_limit_minutes)
        return found


def _moved(plan: Plan) -> JobKey | None:
    """The job whose gang the plan moves or restarts."""
    match plan:
        case PoolSwapPlan():
            return plan.job
        case AllocationSwapPlan() if plan.launch >= 0:
            return plan.job
    return None
