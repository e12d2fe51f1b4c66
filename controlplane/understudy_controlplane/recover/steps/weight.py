"""The weight that a node has in Slurm: raised while it is on probation, so that jobs get it last.

It is the site's own setting. So it is changed only from the value that is stored with the plan, and restored only while
it still is the raised one: a weight that an administrator sets meanwhile stays.
"""

from __future__ import annotations

from understudy_controlplane.fleet.recovery import RestoreWeightPlan, ReturnPlan, StepName
from understudy_controlplane.recover.step import Done, Observation, Step, StepContext, Todo
from understudy_controlplane.slurm.protocol import Slurm


def _observe(context: StepContext, from_weight: int | None, to_weight: int | None) -> Observation:
    node = context.slurm.nodes.get(context.node_name)
    if node is None:
        return Done("Slurm no longer knows the node")
    if node.weight == to_weight:
        return Done(f"weight {node.weight}")
    if node.weight != from_weight:
        return Done(f"an administrator has set its weight to {node.weight}: it stays")
    return Todo(f"weight {node.weight}, not {to_weight}")


def observe_raised(context: StepContext) -> Observation:
    plan = context.plan_as(ReturnPlan)
    return _observe(context, plan.weight_before, plan.weight)


def raise_weight(context: StepContext, slurm: Slurm) -> None:
    weight = context.plan_as(ReturnPlan).weight
    assert weight is not None
    slurm.set_weight(context.node_name, weight)


def observe_restored(context: StepContext) -> Observation:
    plan = context.plan_as(RestoreWeightPlan)
    return _observe(context, plan.weight, plan.weight_before)


def restore_weight(context: StepContext, slurm: Slurm) -> None:
    slurm.set_weight(context.node_name, context.plan_as(RestoreWeightPlan).weight_before)


RAISE_WEIGHT = Step(StepName.RAISE_WEIGHT, observe_raised, raise_weight)
RESTORE_WEIGHT = Step(StepName.RESTORE_WEIGHT, observe_restored, restore_weight)
