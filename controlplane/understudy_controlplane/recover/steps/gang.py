"""The gang at work again, by its own word: these steps only wait."""

from __future__ import annotations

from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, PoolSwapPlan, StepName
from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_controlplane.recover.step import (
    RESTART_FORGOTTEN,
    Done,
    Failed,
    Observation,
    Step,
    StepContext,
    Wait,
    nothing_to_do,
)


def _no_word_expected(context: StepContext) -> Done | Failed | None:
    """The result where no report of the ranks is to come: the job is over, or its ranks do not report."""
    job = context.job
    if job is None or job.state == "COMPLETED" or (not job.ended and _has_done_its_work(context)):
        return Done("the job has completed")
    if job.ended:
        return Failed(f"the job is over: {job.state}")
    if forgotten := _forgotten(context, job):
        return Failed(forgotten)
    if isinstance(context.plan, AllocationSwapPlan) and _stays(context):
        return Failed("the launcher starts nothing any more, and leaves the gang to the control plane")
    if not context.gang(job.restart_count).hook_was_used:
        return Done("the job does not use the training hook: what Slurm shows counts")
    return None


def _forgotten(context: StepContext, job: SlurmJob) -> str:
    """What slurmctld lost in a crash. A job that had started, and pends as the same attempt, has given its seats up:
    the next round gives it others.
    """
    if context.restart_is_forgotten:
        return RESTART_FORGOTTEN
    plan = context.plan
    pends = isinstance(plan, PoolSwapPlan) and job.pending and job.restart_count == plan.restart_count + 1
    return "the job pends again: slurmctld crashed and has forgotten its start" if pends else ""


def _has_done_its_work(context: StepContext) -> bool:
    """Every rank has ended well, which Slurm does not show yet."""
    return context.is_next_attempt and context.ended_well()


def _stays(context: StepContext) -> bool:
    """Its launcher waits to be requeued, or is ending."""
    job, launcher = context.job, context.launcher
    same = job is not None and launcher is not None and job.restart_count == launcher.attempt.restart_count
    return same and launcher is not None and launcher.leaving


def observe_processes(context: StepContext) -> Observation:
    job = context.job
    if job is not None and context.is_next_attempt:
        gang = context.gang(job.restart_count)
        if gang.world_size and gang.ranks_started >= gang.world_size:
            return Done(f"{counted(gang.ranks_started, 'rank')}", at=gang.last_started_at)
    expected = _no_word_expected(context)
    return expected or Wait("not all ranks have connected")


def observe_first_step(context: StepContext) -> Observation:
    job = context.job
    if job is not None and context.is_next_attempt:
        first = context.gang(job.restart_count).first_step
        if first is not None:
            return Done(f"step {first.step}", first.at, first.communicator_at)
    expected = _no_word_expected(context)
    return expected or Wait("the first step after the restore is not finished")


AWAIT_PROCESSES = Step(StepName.AWAIT_PROCESSES, observe_processes, nothing_to_do)
AWAIT_FIRST_STEP = Step(StepName.AWAIT_FIRST_STEP, observe_first_step, nothing_to_do)
