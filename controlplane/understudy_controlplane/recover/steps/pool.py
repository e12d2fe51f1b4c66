"""The spare pool: a reservation that no job can use."""

from __future__ import annotations

from understudy_controlplane.fleet.recovery import FillPoolPlan, PoolSwapPlan, ReturnPlan, StepName
from understudy_controlplane.fleet.slurm import POOL_USER, SlurmReservation
from understudy_controlplane.recover.step import Done, Failed, Observation, Step, Todo, World
from understudy_controlplane.slurm.protocol import Slurm

POOL_MINUTES = 365 * 24 * 60


def _pool(world: World) -> SlurmReservation | None:
    return world.slurm.reservations.get(world.config.spares.reservation)


def _foreign(world: World) -> Failed | None:
    """A reservation with the pool's name that another user created: it is not changed."""
    pool = _pool(world)
    if pool is None or pool.made_for(POOL_USER):
        return None
    return Failed(
        f"reservation {pool.name} was created for users {', '.join(pool.users)}: choose another name in [spares]"
    )


def _to_take(world: World) -> set[str]:
    pool = _pool(world)
    return set(pool.nodes) & set(world.plan.claimed) if pool else set()


def observe_taken(world: World) -> Observation:
    todo = _to_take(world)
    if not todo:
        spares = world.plan.spares if isinstance(world.plan, PoolSwapPlan) else world.plan.nodes
        return Done(", ".join(spares))
    return _foreign(world) or Todo(f"{', '.join(sorted(todo))} still in the spare pool")


def take(world: World, slurm: Slurm) -> None:
    name = world.config.spares.reservation
    leaving = _to_take(world)
    rest = [node for node in world.slurm.reservations[name].nodes if node not in leaving]
    if rest:
        slurm.set_reservation_nodes(name, rest)
    else:
        slurm.delete_reservation(name)  # an empty node list is not a reservation


def _joining(world: World) -> tuple[str, ...]:
    if isinstance(world.plan, PoolSwapPlan):  # back: those that are still free, and the seats still keep them so
        free = (node for name in world.plan.spares if (node := world.slurm.nodes.get(name)) and node.usable)
        return tuple(node.name for node in free if node.base_state == "IDLE")
    return world.plan.spares if isinstance(world.plan, FillPoolPlan) else world.plan_as(ReturnPlan).nodes


def _to_join(world: World) -> set[str]:
    pool = _pool(world)
    return set(_joining(world)) - set(pool.nodes if pool else ())


def observe_filled(world: World) -> Observation:
    missing = _to_join(world)
    if not missing:
        return Done(", ".join(_joining(world)))
    return _foreign(world) or Todo(f"{', '.join(sorted(missing))} not in the spare pool")


def fill(world: World, slurm: Slurm) -> None:
    pool = _pool(world)
    if pool is not None:
        slurm.set_reservation_nodes(pool.name, sorted({*pool.nodes, *_joining(world)}))
    else:
        slurm.create_reservation(world.config.spares.reservation, _joining(world), POOL_USER, POOL_MINUTES)


RETURN_SPARES = Step(StepName.RETURN_SPARES, observe_filled, fill)
TAKE_SPARES = Step(StepName.TAKE_SPARES, observe_taken, take)
FILL_POOL = Step(StepName.FILL_POOL, observe_filled, fill)
