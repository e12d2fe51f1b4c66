"""The job's time limit: what a fault took of it is given back, within the bound that the site has set.

Only within an allocation: a requeue starts the job's time again.
"""

from __future__ import annotations

import math

from understudy_controlplane.fleet.recovery import AllocationSwapPlan, StepName
from understudy_controlplane.recover.step import Done, Observation, Step, Todo, World
from understudy_controlplane.slurm.protocol import Slurm


def observe_credited(world: World) -> Observation:
    plan, job = world.plan_as(AllocationSwapPlan), world.job
    if job is None or job.ended or job.restart_count > plan.restart_count:
        return Done("the allocation is over")
    limit, target = job.time_limit_minutes, _target(world)
    if limit is None or plan.time_limit_minutes is None or target is None:
        return Done("there is no limit, or nothing is known of what was lost")
    if limit < plan.time_limit_minutes:
        return Done(f"a user has lowered the limit to {limit} minutes since: not changed")
    if limit >= target:
        return Done(f"{limit} minutes, of which {limit - plan.time_limit_minutes} are for this fault")
    return Todo(f"{limit} minutes, {target} with what was lost")


def _target(world: World) -> int | None:
    """Whole minutes, rounded up; the same however often it is asked."""
    plan, job = world.plan_as(AllocationSwapPlan), world.job
    if job is None or plan.time_limit_minutes is None:
        return None
    first = world.gang(job.restart_count).first_step
    if first is None:
        return None
    lost = max(0.0, first[1] - world.worked_until())
    return plan.time_limit_minutes + min(math.ceil(lost / 60), plan.credit_minutes_max)


def credit(world: World, slurm: Slurm) -> None:
    target = _target(world)
    assert target is not None
    assert world.job is not None
    slurm.set_time_limit(world.job.job_id, target)


CREDIT_TIME = Step(StepName.CREDIT_TIME, observe_credited, credit)
