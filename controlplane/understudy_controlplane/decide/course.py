"""Whether a recovery under way may go on: its plan is held against the newest facts before each effect. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus, StepName, SwapPlan
from understudy_controlplane.fleet.slurm import SlurmJob


@dataclass(frozen=True, slots=True)
class Ending:
    """The recovery ends early: nothing more is done for its plan, and what was begun is undone."""

    status: RecoveryStatus
    why: str


@dataclass(frozen=True, slots=True)
class Course:
    may_act: bool = True
    ending: Ending | None = None


AS_PLANNED = Course()


def ended_by_its_owner(recovery: Recovery, job: SlurmJob | None) -> Ending | None:
    """A job that was cancelled, or that has completed, never runs again: a swap of it has no purpose any more.

    `job`: as Slurm shows it right now. A job whose script failed meanwhile, most often for the very fault that the gang
    is moved for, is moved all the same.
    """
    plan = recovery.plan
    if not isinstance(plan, SwapPlan) or job is None:
        return None
    given_up = job.restart_count <= plan.restart_count
    ending = job.completing and given_up and not job.failed_by_itself
    if ending or job.state == "CANCELLED" or (job.state == "COMPLETED" and given_up):
        return Ending(RecoveryStatus.OVERTAKEN, job.end_in_words)
    return None


def undo_steps(recovery: Recovery) -> tuple[StepName, ...]:
    """Steps to be added to a recovery that ends early. The seats are released by a step that its plan has."""
    drain = recovery.step(StepName.DRAIN_NODES)
    return (StepName.LIFT_DRAIN,) if drain is not None and drain.attempts else ()
