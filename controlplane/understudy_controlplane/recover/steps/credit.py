"""The job's time limit: what a fault took of it is given back, within the bound that the site has set.

Only within an allocation: a requeue starts the job's time again.
"""

from __future__ import annotations

import math

from understudy_controlplane.fleet.recovery import AllocationSwapPlan, StepName
from understudy_controlplane.recover.step import Done, Observation, Step, StepContext, Todo
from understudy_controlplane.slurm.protocol import Slurm


def observe_credited(context: StepContext) -> Observation:
    plan, job = context.plan_as(AllocationSwapPlan), context.job
    if job is None or job.ended or job.restart_count > plan.restart_count:
        return Done("the allocation is over")
    limit, target = job.time_limit_minutes, _target(context)
    if limit is None or plan.time_limit_minutes is None or target is None:
        return Done("there is no limit, or nothing is known of what was lost")
    if limit < plan.time_limit_minutes:
        return Done(f"a user has lowered the limit to {limit} minutes since: not changed")
    if limit >= target:
        return Done(f"{limit} minutes, of which {limit - plan.time_limit_minutes} are for this fault")
    return Todo(f"{limit} minutes, {target} with what was lost")


def _target(context: StepContext) -> int | None:
    """Whole minutes, rounded up; the same however often it is asked."""
    plan, job = context.plan_as(AllocationSwapPlan), context.job
    if job is None or plan.time_limit_minutes is None:
        return None
    first = context.gang(job.restart_count).first_step
    if first is None:
        return None
    lost = max(0.0, first.at - context.worked_until())
    return plan.time_limit_minutes + min(math.ceil(lost / 60), plan.credit_minutes_max)


def credit(context: StepContext, slurm: Slurm) -> None:
    target = _target(context)
    assert target is not None
    assert context.job is not None
    slurm.set_time_limit(context.job.address, target)


CREDIT_TIME = Step(StepName.CREDIT_TIME, observe_credited, credit)
