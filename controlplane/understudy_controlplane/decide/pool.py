"""The pool of spares: nodes join it when it holds fewer than wanted."""

from __future__ import annotations

from understudy_controlplane.decide import guards, plans, spares
from understudy_controlplane.decide.round import Round
from understudy_controlplane.decide.table import row_without_node
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.recovery import FillPoolPlan, Recovery, StepName, StepStatus
from understudy_controlplane.fleet.slurm import POOL_USER


def fill_pool(current: Round) -> list[Decision]:
    snapshot, config, row = current.snapshot, current.config, row_without_node(Signal.POOL_SHORT)
    if config.spares.count == 0 or any(_changes_pool(recovery) for recovery in snapshot.recoveries):
        return []
    bad = current.condemned | {name for one in snapshot.recoveries for name in one.plan.claimed}
    pool = snapshot.reservations.get(config.spares.reservation)
    if pool is not None and not pool.made_for(POOL_USER):
        users = ", ".join(pool.users)
        reason = f"reservation {pool.name} is another user's (users {users}): there is no spare pool"
        return [Decision(row.number, "fleet", Action.NOTHING, Because.FOREIGN_POOL, reason)]
    wanted = spares.joining_pool(snapshot, set(bad), config)
    if not wanted:
        return []
    objection = guards.object_to_any(snapshot)
    names = ", ".join(wanted)
    return [
        Decision(
            row=row.number,
            subject="fleet",
            action=Action.NOTHING if objection else row.action,
            because=objection.because if objection else Because.RULE,
            reason=f"{names} should join the spare pool: {row.why}"
            + (f"; but nothing is done, because {objection.words}" if objection else ""),
            evidence=Evidence({"joining": list(wanted)}),
            plan=None if objection else plans.fill_pool_plan(wanted),
        )
    ]


def _changes_pool(recovery: Recovery) -> bool:
    """It fills the pool, or has yet to take a spare out of it."""
    steps = (recovery.step(StepName.TAKE_SPARES), recovery.step(StepName.FILL_POOL))
    left = any(step is not None and step.status is not StepStatus.DONE for step in steps)
    return isinstance(recovery.plan, FillPoolPlan) or left
