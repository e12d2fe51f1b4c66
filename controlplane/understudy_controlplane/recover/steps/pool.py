"""The spare pool: a reservation that no job can use."""

from __future__ import annotations

from understudy_controlplane.decide.foreign_reservations import is_foreign, kept_nodes
from understudy_controlplane.fleet.recovery import FillPoolPlan, LeavePoolPlan, PoolSwapPlan, ReturnPlan, StepName
from understudy_controlplane.fleet.slurm import POOL_USER, Service, SlurmReservation
from understudy_controlplane.recover.step import Done, Failed, Observation, Step, StepContext, Todo
from understudy_controlplane.slurm.protocol import Slurm

POOL_MINUTES = 365 * 24 * 60


def _pool(context: StepContext) -> SlurmReservation | None:
    return context.slurm.reservations.get(context.config.spares.reservation)


def _foreign(context: StepContext) -> Failed | None:
    """A reservation with the pool's name that another user created: it is not changed."""
    pool = _pool(context)
    if pool is None or pool.made_for(POOL_USER):
        return None
    return Failed(
        f"reservation {pool.name} was created for users {', '.join(pool.users)}: choose another name in [spares]"
    )


def _to_take(context: StepContext) -> set[str]:
    pool = _pool(context)
    return set(pool.nodes) & set(context.plan.claimed) if pool else set()


def observe_taken(context: StepContext) -> Observation:
    todo = _to_take(context)
    if not todo:
        plan = context.plan
        spares = plan.spares if isinstance(plan, PoolSwapPlan | LeavePoolPlan) else plan.nodes
        return Done(", ".join(spares))
    return _foreign(context) or Todo(f"{', '.join(sorted(todo))} still in the spare pool")


def take(context: StepContext, slurm: Slurm) -> None:
    name = context.config.spares.reservation
    leaving = _to_take(context)
    rest = [node for node in context.slurm.reservations[name].nodes if node not in leaving]
    if rest:
        slurm.set_reservation_nodes(name, rest)
    else:
        slurm.delete_reservation(name)  # an empty node list is not a reservation


def _joining(context: StepContext) -> tuple[str, ...]:
    plan = context.plan
    if isinstance(plan, PoolSwapPlan):
        return _back(context, plan)
    if isinstance(plan, FillPoolPlan | LeavePoolPlan):
        return plan.spares
    return context.plan_as(ReturnPlan).nodes


def _back(context: StepContext, plan: PoolSwapPlan) -> tuple[str, ...]:
    """Spares of the pool that are still free, and that the seats still keep so. Others may have joined in their place:
    only as many as it is short of. A pool that an administrator fills gets all of them back.
    """
    slurm, pool = context.slurm, _pool(context)
    names = {context.config.spares.reservation}
    foreign = (one for one in slurm.reservations.values() if is_foreign(one, names))
    reserved = kept_nodes(foreign, context.slurm_now)
    held = pool.nodes if pool else ()
    fit = {name for name, node in slurm.nodes.items() if node.service is Service.USABLE and name not in reserved}
    free = [name for name in plan.from_pool if name in fit and slurm.nodes[name].base_state == "IDLE"]
    wanted = context.spares_wanted()
    lost = {name for name in held if name not in slurm.nodes or slurm.nodes[name].taken_out}
    missing = max(0, wanted - len({*held} - lost)) if wanted else len(free)
    joining = [name for name in free if name not in held][:missing]
    return tuple(name for name in free if name in held or name in joining)


def _to_join(context: StepContext) -> set[str]:
    pool = _pool(context)
    return set(_joining(context)) - set(pool.nodes if pool else ())


def observe_filled(context: StepContext) -> Observation:
    missing = _to_join(context)
    if not missing:
        return Done(", ".join(_joining(context)))
    return _foreign(context) or Todo(f"{', '.join(sorted(missing))} not in the spare pool")


def fill(context: StepContext, slurm: Slurm) -> None:
    pool = _pool(context)
    if pool is not None:
        slurm.set_reservation_nodes(pool.name, sorted({*pool.nodes, *_joining(context)}))
    else:
        slurm.create_reservation(context.config.spares.reservation, _joining(context), POOL_USER, POOL_MINUTES)


RETURN_SPARES = Step(StepName.RETURN_SPARES, observe_filled, fill)
TAKE_SPARES = Step(StepName.TAKE_SPARES, observe_taken, take)
FILL_POOL = Step(StepName.FILL_POOL, observe_filled, fill)
