"""The pool of spares has one size: nodes join it when it holds fewer, or an operator adds them; others leave it when it
holds more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from understudy_controlplane.decide import guards, plans, spares
from understudy_controlplane.decide.decision_context import Entered, Round
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.recovery import FillPoolPlan, LeavePoolPlan, Recovery, StepName, StepStatus
from understudy_controlplane.fleet.slurm import POOL_USER


def pool_changes(current: Round) -> Iterator[Finding]:
    snapshot, config = current.snapshot, current.config
    is_used = config.spares.count or snapshot.operator.spares_wanted is not None or snapshot.operator.spare_choices
    if not is_used or any(_changes_pool(recovery) for recovery in snapshot.recoveries):
        return
    bad = current.condemned | current.planned | {name for one in snapshot.recoveries for name in one.plan.claimed}
    pool = snapshot.slurm.reservations.get(config.spares.reservation)
    if pool is not None and not pool.made_for(POOL_USER):
        users = ", ".join(pool.users)
        words = f"reservation {pool.name} is another user's (users {users}): there is no spare pool"
        yield Finding(Signal.POOL_SHORT, "pool.foreign", "", snapshot.now, words)
    elif leaving := spares.leaving_pool(snapshot, config):
        words = f"{', '.join(leaving)} should leave the spare pool"
        evidence = Evidence({"leaving": [*leaving]})
        yield Finding(Signal.SPARE_REMOVED, "pool.removed", "", snapshot.now, words, evidence, nodes=leaving)
    elif wanted := spares.joining_pool(snapshot, set(bad), config):
        words = f"{', '.join(wanted)} should join the spare pool"
        evidence = Evidence({"joining": [*wanted]})
        yield Finding(Signal.POOL_SHORT, "pool.short", "", snapshot.now, words, evidence, nodes=wanted)


def change_pool(current: Round, entered: Sequence[Entered]) -> list[Decision]:
    return [_change(current, *one) for one in entered]


def _change(current: Round, row: Row, finding: Finding) -> Decision:
    objection = guards.object_to_any(current.snapshot, finding)
    if objection is not None and finding.nodes:
        return guards.held_back(row, finding, objection)
    return Decision(
        row=row.number,
        subject=finding.label,
        action=row.action if finding.nodes else Action.NOTHING,
        because=Because.RULE if finding.nodes else Because.FOREIGN_POOL,
        reason=f"{finding.summary}: {row.why}" if finding.nodes else finding.summary,
        finding=finding,
        evidence=finding.evidence,
        plan=_plan(row, finding.nodes) if finding.nodes else None,
    )


def _plan(row: Row, nodes: Sequence[str]) -> FillPoolPlan | LeavePoolPlan:
    return plans.leave_pool_plan(nodes) if row.action is Action.LEAVE_POOL else plans.fill_pool_plan(nodes)


def _changes_pool(recovery: Recovery) -> bool:
    """It fills the pool, or has yet to take a spare out of it."""
    steps = (recovery.step(StepName.TAKE_SPARES), recovery.step(StepName.FILL_POOL))
    left = any(step is not None and step.status is not StepStatus.DONE for step in steps)
    return isinstance(recovery.plan, FillPoolPlan | LeavePoolPlan) or left
