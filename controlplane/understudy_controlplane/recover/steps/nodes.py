"""Nodes leave service: drained, and declared down where they are dead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from understudy_controlplane.fleet.custody import Holder, Proof, in_slurm
from understudy_controlplane.fleet.node import OUT_OF_SERVICE
from understudy_controlplane.fleet.recovery import DrainPlan, PoolSwapPlan, QuarantinePlan, StepName, TakeBackPlan
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.recover.step import SUSPENDED, Done, Observation, Step, StepContext, Todo, Wait
from understudy_controlplane.recover.steps.seats import SEATED
from understudy_controlplane.slurm.protocol import Slurm


def _open_for_work(context: StepContext) -> list[SlurmNode]:
    nodes = [context.slurm.nodes.get(name) for name in context.plan.nodes if not context.is_in_service(name)]
    return [node for node in nodes if node is not None and (_open(node) or _misnamed(node, context))]


def _open(node: SlurmNode) -> bool:
    return not node.draining and not in_slurm(node).by_others


def _misnamed(node: SlurmNode, context: StepContext) -> bool:
    """Drained by Slurm, because Understudy's Prolog refused a job or because of an error during the repair: it becomes
    Understudy's drain, which still has Slurm's reason.
    """
    held = in_slurm(node)
    renamed = context.plan.renamed_nodes if isinstance(context.plan, QuarantinePlan | TakeBackPlan) else ()
    return node.name in renamed and held.holder is Holder.SLURM and held.proven_by is Proof.REASON


def observe_drained(context: StepContext) -> Observation:
    """A node that an administrator drained or set down meanwhile is out of service as well: that reason stays."""
    todo = _open_for_work(context)
    if todo:
        return Todo(f"{', '.join(node.name for node in todo)} without Understudy's drain")
    reasons = [f"{name}: {node.reason}" for name in context.plan.nodes if (node := context.slurm.nodes.get(name))]
    return Done("; ".join(reasons))


def drain(context: StepContext, slurm: Slurm) -> None:
    for node in _open_for_work(context):
        slurm.drain_node(node.name, context.plan_as(DrainPlan).drain_reason)


def _not_down(context: StepContext, silent: Callable[[Iterable[str]], list[str]]) -> list[str]:
    """Dead nodes still to be declared down. Of those that the plan leaves in service only what is `silent` now: an
    administrator may have resumed the node.
    """
    plan = context.plan_as(PoolSwapPlan)
    dead = [node for name in plan.dead_nodes if (node := context.slurm.nodes.get(name)) is not None]
    dead = [node for node in dead if not node.down and not context.others_hold(node)]
    in_service = {node.name for node in dead if context.is_in_service(node.name)}
    due = {*silent(in_service.difference(plan.nodes))}  # those of the plan were released: see the requeue
    return [node.name for node in dead if node.name not in in_service or node.name in due]


def observe_down(context: StepContext) -> Observation:
    """Slurm waits SlurmdTimeout for a dead node unless it is set down, which kills and requeues the job on it at once.

    A node that an administrator drained meanwhile is left alone: setting it down would overwrite that reason.
    """
    todo = _not_down(context, context.mute)
    others = context.shared(todo)
    if others:
        words = f"job {others[0]}, which is not managed, is on {', '.join(todo)} as well: left to Slurm's own timeout"
        return Wait(words, may_take_long=True)
    if todo and context.job is not None and context.job.suspended:
        return Wait(SUSPENDED, may_take_long=True)
    unseated = context.unseated(todo)
    if unseated:
        return Wait(f"job {unseated[0]}, which is managed and on {', '.join(todo)} as well, has no seats yet")
    silent = context.mute(name for name in context.job.nodes if name not in todo) if todo and context.job else []
    if silent:  # found dead, it is declared down together with the others, by another plan
        words = f"{', '.join(silent)} does not answer either: if it is dead, Slurm would lose the requeued job with it"
        return Wait(words, may_take_long=True)
    if todo:
        return Todo(f"{', '.join(todo)} not down in Slurm")
    return Done(", ".join(context.plan_as(PoolSwapPlan).dead_nodes))


def down(context: StepContext, slurm: Slurm) -> None:
    """A node that fell silent only now may have jobs of others: it is looked at again first."""
    todo = _not_down(context, context.gone)
    declare_down(context, slurm, [name for name in todo if not context.shared([name]) and not context.unseated([name])])


def declare_down(context: StepContext, slurm: Slurm, dead: Sequence[str]) -> None:
    """All at once, and of a gang that has lost all its nodes the other nodes first: else the node that goes down last
    is the last that a requeued job waits for (`slurm.protocol.loses_dead_gangs`).
    """
    if not dead:
        return
    for job in context.slurm.jobs.values():
        if job.holds_nodes and job.requeue and len(job.nodes) > 1 and set(job.nodes) <= set(dead):
            slurm.keep_batch_host(job.address)
    slurm.down_nodes(dead, context.plan_as(PoolSwapPlan).drain_reason)


def observe_lifted(context: StepContext) -> Observation:
    """Lifted is only a drain that nothing else answers for: a node that is out of service keeps it."""
    plan, left = context.plan_as(DrainPlan), []
    for name in plan.nodes:
        node, record = context.slurm.nodes.get(name), context.records.get(name)
        if node is None or not _has_drain(node, plan):
            continue
        if record is None or record.state not in OUT_OF_SERVICE:
            return Todo(f"{name} is drained, and in service otherwise")
        left.append(f"{name} stays drained ({record.state.value})")
    return Done("; ".join(left))


def _has_drain(node: SlurmNode, plan: DrainPlan) -> bool:
    """True if this plan's drain is on the node. FAIL is an administrator's, takes its place and may keep its reason."""
    return node.draining and not node.set_to_fail and node.has_reason(plan.drain_reason)


def lift(context: StepContext, slurm: Slurm) -> None:
    plan = context.plan_as(DrainPlan)
    for name in plan.nodes:
        node, record = context.slurm.nodes.get(name), context.records.get(name)
        if node is not None and _has_drain(node, plan) and (record is None or record.state not in OUT_OF_SERVICE):
            slurm.resume_node(name)


DRAIN_NODES = Step(StepName.DRAIN_NODES, observe_drained, drain)
LIFT_DRAIN = Step(StepName.LIFT_DRAIN, observe_lifted, lift)
DOWN_NODES = Step(StepName.DOWN_NODES, observe_down, down, needs=SEATED)
