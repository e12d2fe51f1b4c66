"""The launcher of a gang: told which nodes are bad, or to start the gang anew. It does so within its allocation."""

from __future__ import annotations

from understudy_controlplane.decide.launcher_orders import word_of
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.recovery import Plan, StepName
from understudy_controlplane.recover.step import Done, Failed, Observation, Step, Todo, Wait, World
from understudy_controlplane.slurm.protocol import Slurm


def observe_told(world: World) -> Observation:
    """Done when the launcher itself says so: another launch, on other nodes."""
    plan, job, gang = world.plan, world.job, world.launcher
    if job is None or job.ended:
        return Done(f"the job is over: {job.state if job else 'unknown to Slurm'}")
    if job.restart_count > plan.restart_count:
        return Done(f"the job was requeued meanwhile (restart {job.restart_count})")
    if gang is None or gang.heard_at is None:
        return Wait("its launcher is not heard")
    if plan.launch < 0:
        still = sorted({*gang.seats, *gang.spares} & set(plan.failed_nodes))
        return Todo(f"{', '.join(still)} is a spare there") if still else Done("no longer among its spares")
    return _relaunched(plan, gang)


def _relaunched(plan: Plan, gang: Gang) -> Observation:
    bad = sorted(set(gang.seats) & set(plan.failed_nodes))
    if gang.leaving:
        return Failed(f"the launcher starts nothing any more: it is {gang.phase}")
    if gang.attempt.launch <= plan.launch or bad:
        return Todo(f"launch {gang.attempt.launch} is {gang.phase} on {', '.join(gang.seats)}")
    if gang.phase == "seating":
        return Wait(f"launch {gang.attempt.launch} waits for its nodes")
    return Done(f"launch {gang.attempt.launch} on {', '.join(gang.seats)}")


def tell(world: World, _slurm: Slurm) -> None:
    world.tell(word_of(world.plan))


TELL_LAUNCHER = Step(StepName.TELL_LAUNCHER, observe_told, tell, needs=(StepName.DRAIN_NODES,))
