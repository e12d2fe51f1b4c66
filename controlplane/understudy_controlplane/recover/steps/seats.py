"""The gang's seats: a reservation over its healthy nodes and the spares, from before the requeue until it runs."""

from __future__ import annotations

from math import ceil

from understudy_controlplane.fleet.recovery import DeleteSeatsPlan, PoolSwapPlan, StepName
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode
from understudy_controlplane.recover.step import Done, Failed, Observation, Step, StepContext, Todo
from understudy_controlplane.slurm.protocol import Slurm, SlurmError, SlurmUnavailable


def observe_held(context: StepContext) -> Observation:
    held, plan = context.slurm.reservations.get(context.seats_name), context.plan_as(PoolSwapPlan)
    if held is not None and not held.made_for(plan.user):
        return Failed(f"reservation {held.name} was created for users {', '.join(held.users)}")
    taken = _taken(context)
    if taken:
        return Failed(taken)
    if held is not None and set(held.nodes) == set(plan.seats):
        return Done(f"{held.name}: {', '.join(held.nodes)}")
    return Todo(f"seats not held: {', '.join(plan.seats)}")


def _taken(context: StepContext) -> str:
    """A spare that was idle, or whose job was to be preempted, and on which Slurm has started another job since. The
    gang still runs, and stays.
    """
    plan = context.plan_as(PoolSwapPlan)
    if all(_idle(context.slurm.nodes.get(name)) for name in plan.spares):
        return ""  # Slurm is not asked for all its jobs, which takes a second with fifty thousand of them
    expected = {plan.job.job_id, *plan.preempted}
    taken = [
        f"{name} by job {job.job_id}"
        for job in context.slurm.jobs.values()
        if job.holds_nodes and job.job_id not in expected
        for name in sorted(set(job.nodes) & set(plan.spares))
    ]
    return f"taken meanwhile: {', '.join(taken)}" if taken else ""


def _idle(node: SlurmNode | None) -> bool:
    return node is not None and node.base_state == "IDLE" and "COMPLETING" not in node.flags


def hold(context: StepContext, slurm: Slurm) -> None:
    plan = context.plan_as(PoolSwapPlan)
    if context.seats_name in context.slurm.reservations:
        slurm.set_reservation_nodes(context.seats_name, plan.seats)
    else:
        config = context.config
        minutes = max(config.recovery.seats_minutes, ceil(2 * config.hang.first_step_seconds / 60))
        slurm.create_reservation(context.seats_name, plan.seats, plan.user, minutes)


def observe_bound(context: StepContext) -> Observation:
    job = context.job
    if job is None or job.ended:
        return Failed(f"the job is over ({job.state if job else 'unknown to Slurm'})")
    return Done() if job.reservation == context.seats_name else Todo("the job is not bound to its seats")


def bind(context: StepContext, slurm: Slurm) -> None:
    assert context.job is not None
    slurm.set_job_reservation(context.job.address, context.seats_name)


def observe_released(context: StepContext) -> Observation:
    job = context.job
    held = context.slurm.reservations.get(context.seats_name)
    if (held is not None and held.made_for(context.plan_as(PoolSwapPlan).user)) or (
        job and job.reservation == context.seats_name and not job.ended
    ):
        return Todo("seats still held")
    if job is not None and job.pending:
        return Done(f"job {job.job_id} waits in Slurm's queue")
    return Done(_not_given_back(context))


def _not_given_back(context: StepContext) -> str:
    """A job may be submitted with several reservations, and Slurm lets it be bound to one of them again."""
    job, before = context.job, context.plan_as(PoolSwapPlan).reservation.split(",")
    lost = [] if job is None or job.ended else [name for name in before if name not in job.reservation.split(",")]
    return f"the job is no longer bound to reservation {', '.join(lost)}" if job and job.reservation and lost else ""


def release(context: StepContext, slurm: Slurm) -> None:
    """Unbind first: Slurm refuses to delete a reservation that a job uses. The job gets back the one it had before."""
    job = context.job
    plan = context.plan_as(PoolSwapPlan)
    before = ",".join(name for name in plan.reservation.split(",") if name in context.slurm.reservations)
    if job and job.reservation == context.seats_name and not job.ended:
        _unbind(job, before, slurm)
    held = context.slurm.reservations.get(context.seats_name)
    if held is not None and held.made_for(plan.user):
        slurm.delete_reservation(held.name)


def _unbind(job: SlurmJob, reservation: str, slurm: Slurm) -> None:
    """Slurm changes no job that has ended, also while its epilogs run, and lets its reservation be deleted then."""
    try:
        slurm.set_job_reservation(job.address, reservation)
    except SlurmUnavailable:
        raise
    except SlurmError:
        if not job.completing:
            raise


def observe_deleted(context: StepContext) -> Observation:
    plan = context.plan_as(DeleteSeatsPlan)
    held = context.slurm.reservations.get(plan.reservation)
    if held is not None and held.made_for(plan.user):
        return Todo(f"{plan.reservation} is still there")
    return Done(plan.reservation)


def delete(context: StepContext, slurm: Slurm) -> None:
    """A job that is still bound to it may start anywhere then."""
    name = context.plan_as(DeleteSeatsPlan).reservation
    for job in context.slurm.jobs.values():
        if job.reservation == name and not job.ended:
            _unbind(job, "", slurm)
    slurm.delete_reservation(name)


SEATED = (StepName.HOLD_SEATS, StepName.TAKE_SPARES, StepName.BIND_JOB)
"""Must be done before the gang ends: a waiting job would take its nodes."""

HOLD_SEATS = Step(StepName.HOLD_SEATS, observe_held, hold)
BIND_JOB = Step(StepName.BIND_JOB, observe_bound, bind, needs=(StepName.HOLD_SEATS,))
RELEASE_SEATS = Step(StepName.RELEASE_SEATS, observe_released, release, needs=(StepName.START_JOB,))
DELETE_SEATS = Step(StepName.DELETE_SEATS, observe_deleted, delete)
