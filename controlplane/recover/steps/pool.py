"""The spare pool: a reservation of ours that no job can use."""

from __future__ import annotations

from controlplane.fleet.recovery import StepName
from controlplane.recover.step import Done, Observation, Step, Todo, World
from controlplane.slurm.protocol import Slurm

POOL_USER = "root"
POOL_MINUTES = 365 * 24 * 60


def _to_take(world: World) -> set[str]:
    pool = world.slurm.reservations.get(world.config.spares.reservation)
    leaving = {*world.plan.spares, *world.plan.seats, *world.plan.failed_nodes}
    return set(pool.nodes) & leaving if pool else set()


def observe_taken(world: World) -> Observation:
    todo = _to_take(world)
    return Todo(f"{', '.join(sorted(todo))} still in the spare pool") if todo else Done(", ".join(world.plan.spares))


def take(world: World, slurm: Slurm) -> None:
    name = world.config.spares.reservation
    leaving = _to_take(world)
    rest = [node for node in world.slurm.reservations[name].nodes if node not in leaving]
    if rest:
        slurm.set_reservation_nodes(name, rest)
    else:
        slurm.delete_reservation(name)  # an empty node list is not a reservation


def observe_filled(world: World) -> Observation:
    pool = world.slurm.reservations.get(world.config.spares.reservation)
    missing = set(world.plan.spares) - set(pool.nodes if pool else ())
    return (
        Todo(f"{', '.join(sorted(missing))} not in the spare pool") if missing else Done(", ".join(world.plan.spares))
    )


def fill(world: World, slurm: Slurm) -> None:
    name = world.config.spares.reservation
    if name in world.slurm.reservations:
        slurm.set_reservation_nodes(name, world.plan.spares)
    else:
        slurm.create_reservation(name, world.plan.spares, POOL_USER, POOL_MINUTES)


TAKE_SPARES = Step(StepName.TAKE_SPARES, observe_taken, take)
FILL_POOL = Step(StepName.FILL_POOL, observe_filled, fill)
