"""The job itself: requeued, started without Slurm's customary two minutes of delay, released from Slurm's hold."""

from __future__ import annotations

from collections.abc import Iterable

from understudy_controlplane.fleet.recovery import PoolSwapPlan, ReleaseJobPlan, StepName
from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_controlplane.recover.step import (
    RESTART_FORGOTTEN,
    SUSPENDED,
    Done,
    Failed,
    Observation,
    Step,
    StepContext,
    Todo,
    Wait,
)
from understudy_controlplane.recover.steps.nodes import declare_down
from understudy_controlplane.recover.steps.seats import SEATED
from understudy_controlplane.slurm.protocol import Slurm, SlurmError

BEGIN_TIME_SLACK_SECONDS = 1.0

REQUEUE_DELAY_SECONDS_MIN = 60.0
"""Slurm begins a requeued job 121 seconds after the requeue, or as soon as `cred_expire` allows."""

CLOCKS_APART_SECONDS_MAX = 5.0
"""A time of Slurm's that is further ahead says nothing: this machine's clock was set."""

SAME_SECOND_MARGIN_SECONDS = 1.05
"""Slurm fails a job that starts in the very second in which its last attempt was killed ("credential revoked"; it
counts whole seconds). The requeue renews the submit time: the job may start in the second after that."""


def _over(job: SlurmJob | None) -> Failed | None:
    if job is None:
        return Failed("Slurm no longer knows the job")
    return Failed(job.end_in_words) if job.ended else None


def observe_requeued(context: StepContext) -> Observation:
    """The restart count goes up the moment Slurm accepts the requeue. Slurm's own requeue will do as well."""
    job, plan = context.job, context.plan_as(PoolSwapPlan)
    if job is not None and job.restart_count > plan.restart_count:
        return Done(f"restart {job.restart_count}")
    over = _over(job)
    if over or job is None:
        return over or Failed("Slurm no longer knows the job")
    if job.failed_by_itself:
        return Todo(f"{job.end_in_words}: its failure is taken for a result of the fault")
    return _obstacle(context, job) or Todo(f"attempt {plan.restart_count} still holds its nodes")


def _obstacle(context: StepContext, job: SlurmJob) -> Wait | None:
    """What has to happen before the job can be requeued."""
    plan = context.plan_as(PoolSwapPlan)
    if job.suspended:
        return Wait(SUSPENDED, may_take_long=True)
    dead = sorted(set(job.nodes) & set(plan.dead_nodes))
    held = _held_by_others(context, context.mute(dead))
    if held:
        return Wait(
            f"{held}: declaring the node down, which requeues the job, is left to them, or to Slurm's own timeout",
            may_take_long=True,
        )
    down = [name for name in dead if (node := context.slurm.nodes.get(name)) is None or node.down]
    if down:
        return Wait(f"Slurm is about to requeue it by itself: {', '.join(down)} went down")
    silent = context.mute(name for name in job.nodes if name not in (*plan.nodes, *dead))
    if silent:
        return Wait(f"{', '.join(silent)} does not answer: a requeue now would spoil the job's record")
    return None


def _held_by_others(context: StepContext, names: Iterable[str]) -> str:
    """Text that names which of these dead nodes was drained by whom; empty: none."""
    nodes = [node for name in names if (node := context.slurm.nodes.get(name)) is not None and not node.down]
    return next(
        (
            f"{node.name} does not answer and was drained by {node.reason_user} ({node.reason})"
            for node in nodes
            if context.others_hold(node)
        ),
        "",
    )


def requeue(context: StepContext, slurm: Slurm) -> None:
    """Requeues the gang. A failed node that has died since is declared down instead, which requeues properly."""
    plan = context.plan_as(PoolSwapPlan)
    assert context.job is not None
    if context.job.failed_by_itself:
        slurm.requeue_failed_job(context.job.address)
        return
    dead = context.gone(name for name in context.job.nodes if name in (*plan.nodes, *plan.dead_nodes))
    held = _held_by_others(context, dead)
    if held:
        raise SlurmError(f"{held}: left to their administrator")
    others = context.shared(dead)
    if others:
        raise SlurmError(
            f"{', '.join(dead)} does not answer and job {others[0]}, which is not managed, is on it as well"
        )
    unseated = context.unseated(dead)
    if unseated:
        raise SlurmError(f"{', '.join(dead)} does not answer and job {unseated[0]} on it has no seats yet")
    declare_down(context, slurm, dead)
    if not dead:
        slurm.requeue_job(context.job.address)


def _to_exclude(context: StepContext) -> list[str]:
    job, plan = context.job, context.plan_as(PoolSwapPlan)
    return [name for name in plan.excluded if job is not None and name not in job.excluded_nodes]


def observe_excluded(context: StepContext) -> Observation:
    """Also while the job still completes: Slurm takes this for a pending job only."""
    job, todo = context.job, _to_exclude(context)
    over = _over(job)
    if over or job is None:
        return over or Failed("Slurm no longer knows the job")
    if not todo or job.state == "RUNNING":
        return Done(", ".join(job.excluded_nodes))
    if not job.pending:
        return Wait(f"the job is {job.state}", may_take_long=job.completing)
    return Todo(f"the job may start on {', '.join(todo)}")


def exclude(context: StepContext, slurm: Slurm) -> None:
    """Besides the nodes that its user excludes."""
    assert context.job is not None
    slurm.set_excluded_nodes(context.job.address, [*context.job.excluded_nodes, *_to_exclude(context)])


def observe_started(context: StepContext) -> Observation:
    job, plan = context.job, context.plan_as(PoolSwapPlan)
    if job is None:
        return Failed("Slurm no longer knows the job")
    if job.state == "COMPLETED":
        return Done("the job has completed")
    if context.restart_is_forgotten:
        return Failed(RESTART_FORGOTTEN)
    if job.state == "RUNNING":
        bad = sorted(set(job.nodes) & set(plan.nodes))
        if bad:
            return Failed(f"the job has started on {', '.join(bad)}, which it was to leave")
        elsewhere = sorted(set(job.nodes) - set(plan.seats))
        note = f", of which {', '.join(elsewhere)} were not held for it" if elsewhere else ""
        return Done(f"on {', '.join(job.nodes)}{note}")
    return _over(job) or _on_its_way(job, context)


def _on_its_way(job: SlurmJob, context: StepContext) -> Todo | Wait | Failed:
    if job.pending and job.priority == 0 and not job.held:
        return Failed(f"Slurm finds no nodes that the job may run on ({job.reason})")
    if put_off := _put_off_by_person(job):
        return Wait(put_off, may_take_long=True)
    if not job.pending:
        return Wait(f"the job is {job.state}", may_take_long=job.completing)  # a start time set now would be lost
    # Its seats are held meanwhile: given up, they would go to other jobs, and it would pend for good.
    waits = Wait(f"pending: {job.reason or 'no reason given'}", may_take_long=job.waits_for_what_passes)
    return _to_ask_for(job, context) or waits


def _to_ask_for(job: SlurmJob, context: StepContext) -> Todo | Wait | None:
    """The start is asked for as soon as the job pends, for the next second: slurmctld looks once a second whether its
    scheduler was asked for (24.11 and 26.05 at the beginning of the second), and not before `batch_sched_delay` is
    over. It is asked for again in that second where the scheduler has not looked since: it may have looked before.
    """
    now, may_start_at = context.slurm_now, _may_start_at(job)
    in_this_second = _requeued_within_this_second(job, now)
    if in_this_second and job.start_at is not None and job.start_at <= may_start_at:
        return Wait("requeued within this second")
    if in_this_second or _begins_later(job, now):
        return Todo(f"Slurm delays its start ({job.reason})")
    if job.reason == "BeginTime":
        by_own_clock = may_start_at - context.slurm.clock_ahead_seconds
        return Todo("Slurm's scheduler has not looked at it since it may start", once_after=by_own_clock)
    return None


def _may_start_at(job: SlurmJob) -> int:
    """Time of slurmctld's clock, which alone decides: the job never starts earlier, however far apart clocks are."""
    return int(job.submit_at) + 1


def _requeued_within_this_second(job: SlurmJob, now: float) -> bool:
    return -CLOCKS_APART_SECONDS_MAX < now - job.submit_at < SAME_SECOND_MARGIN_SECONDS


def _put_off_by_person(job: SlurmJob) -> str:
    """Why a person keeps the job from starting; empty: none does."""
    if job.held:
        holder = "Slurm holds the job" if job.held_by_slurm else "the job is held"
        return f"{holder} ({job.reason}): its user or an administrator has to release it"
    return "its user or an administrator has set a later begin time" if job.put_off else ""


def _begins_later(job: SlurmJob, now: float) -> bool:
    """True if Slurm delays its start. If this machine's clock is further ahead of slurmctld's than that delay, Slurm's
    own times show it.
    """
    if job.start_at is None:
        return False
    delayed = job.reason == "BeginTime" and job.start_at - job.submit_at >= REQUEUE_DELAY_SECONDS_MIN
    return delayed or job.start_at > now + BEGIN_TIME_SLACK_SECONDS


def start(context: StepContext, slurm: Slurm) -> None:
    assert context.job is not None
    slurm.start_job(context.job.address, _may_start_at(context.job))


def observe_released(context: StepContext) -> Observation:
    """Free, and not made to wait. Whether it finds nodes is between the job and Slurm's scheduler."""
    job, plan = context.job, context.plan_as(ReleaseJobPlan)
    if job is None:
        return Done("Slurm no longer knows the job")
    if job.ended or job.restart_count > plan.restart_count or not job.pending:
        return Done(f"the job is {job.state}")
    if _requeued_within_this_second(job, context.slurm_now):
        return Wait("requeued within this second")
    if job.held_after_failed_launch:
        return Todo("Slurm holds the job since its launch failed")
    if job.reason == "BeginTime" and not job.put_off and _begins_later(job, context.slurm_now):
        return Todo("Slurm delays its start (BeginTime)")
    return Done(f"pending: {job.reason or 'free'}")


def release(context: StepContext, slurm: Slurm) -> None:
    """Only Slurm's own hold: one that a person has set meanwhile has another reason and is left alone."""
    assert context.job is not None
    if context.job.held_after_failed_launch:
        slurm.release_job(context.job.address)
    slurm.start_job(context.job.address, _may_start_at(context.job))


def _to_allow(context: StepContext) -> list[str]:
    job, plan = context.job, context.plan_as(ReleaseJobPlan)
    return [name for name in plan.allowed if job is not None and name in job.excluded_nodes]


def observe_allowed(context: StepContext) -> Observation:
    job, todo = context.job, _to_allow(context)
    if job is None:
        return Done("Slurm no longer knows the job")
    if todo and job.pending:
        return Todo(f"the job may not start on {', '.join(todo)}")
    return Done(f"excluded: {', '.join(job.excluded_nodes) or 'none'}; the job is {job.state}")


def allow(context: StepContext, slurm: Slurm) -> None:
    """The nodes that its user excludes stay excluded."""
    assert context.job is not None
    todo = _to_allow(context)
    slurm.set_excluded_nodes(context.job.address, [name for name in context.job.excluded_nodes if name not in todo])


REQUEUE_JOB = Step(StepName.REQUEUE_JOB, observe_requeued, requeue, needs=SEATED)
EXCLUDE_NODES = Step(StepName.EXCLUDE_NODES, observe_excluded, exclude)
ALLOW_NODES = Step(StepName.ALLOW_NODES, observe_allowed, allow)
START_JOB = Step(StepName.START_JOB, observe_started, start)
RELEASE_JOB = Step(StepName.RELEASE_JOB, observe_released, release)
