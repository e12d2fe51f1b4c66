"""Orders for launchers. Pure: the same orders follow from the same snapshot, so that a restart forgets none."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec

from understudy_controlplane.config import Config, Mode, NoSpare
from understudy_controlplane.decide import hangs
from understudy_controlplane.decide.decision_context import Round
from understudy_controlplane.decide.failures import Failures
from understudy_controlplane.decide.placement import layout_of
from understudy_controlplane.decide.spares import standing_of
from understudy_controlplane.fleet.distance import KINDS
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.job import JobKey, group_sizes
from understudy_controlplane.fleet.node import REASON_PREFIX, NodeState
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, Recovery, RecoveryKind, StepName, StepStatus
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.launcher import LauncherOrders, RankLayout, Restart


def launcher_orders(snapshot: Snapshot, config: Config, failures: Failures) -> dict[int, LauncherOrders | None]:
    """Orders by job id; None: the decision failed, and the standing orders go on. In mode observe a launcher gets
    orders only to take back the permission to shrink: the standing ones without it.
    """
    shrinks = config.spares.no_spare is NoSpare.SHRINK
    acts = shrinks and snapshot.mode is not Mode.OBSERVE
    current = Round(snapshot, config).with_condemned(frozenset()).with_idle() if acts else None
    found: dict[int, LauncherOrders | None] = {}
    for key, gang in snapshot.progress.gangs.items():
        observes = snapshot.mode_of((), key) is Mode.OBSERVE
        if observes and not (shrinks and _has_permission(snapshot, key, gang)):
            continue
        look = partial(_with_permission, snapshot, key, gang, config, None if observes else current)
        found[key.job_id] = next(iter(failures.caught("launcher_orders", gang.nodes, look)), None)
    return found


def _with_permission(
    snapshot: Snapshot, key: JobKey, gang: Gang, config: Config, current: Round | None
) -> Iterator[LauncherOrders]:
    """A gang may shrink for which there is no other node, if it loses one now, where the site lets such a gang shrink
    (`current`). Whether its job allows that, its launcher knows. A launcher that has been ordered to leave a node keeps
    the permission.
    """
    may_shrink = current is not None and _has_no_other_node(current, key, gang)
    yield msgspec.structs.replace(_orders(snapshot, key, gang, config), may_shrink=may_shrink)


def _has_permission(snapshot: Snapshot, key: JobKey, gang: Gang) -> bool:
    """True if its launcher reports that fewer nodes than it has would do now. What a recovery has ordered stays."""
    recovery = snapshot.recovery_of(key)
    ordered = recovery is not None and isinstance(recovery.plan, AllocationSwapPlan)
    return gang.state.nodes_min < len(gang.seats) and not ordered


def _has_no_other_node(current: Round, key: JobKey, gang: Gang) -> bool:
    snapshot = current.snapshot
    job, recovery = snapshot.jobs.get(key), snapshot.recovery_of(key)
    if recovery is not None and recovery.plan.kind is not RecoveryKind.LAUNCHER_RESTART:
        return isinstance(recovery.plan, AllocationSwapPlan)
    known = [name for name in gang.seats if name in snapshot.nodes]
    if job is None or not job.managed or not known:
        return False
    gone = {*gang.state.lost, *hangs.lost_if_requeued(snapshot, job.slurm.nodes)}
    return len(current.fitting(job, known[0])) <= len(gone)  # requeued, it needs as many as at first


def _orders(snapshot: Snapshot, job: JobKey, gang: Gang, config: Config) -> LauncherOrders:
    """A node is bad from the time its drain was read back until it is returned to service: while it stays in the
    allocation no launcher may use it again. A node on which the gang runs now is named only where a plan names it:
    without a spare, a gang that is slow is better than none. A spare with a port that is down is bad for that time.
    """
    recovery = snapshot.recovery_of(job)
    plan = recovery.swap if recovery is not None and _launcher_acts(recovery) else None
    bad = {
        name: bare_reason(node.record.drain_reason)
        for name in gang.nodes
        if (node := snapshot.nodes.get(name)) is not None
        and node.state is NodeState.QUARANTINED
        and node.record.drained_at is not None
        and (name not in gang.seats or (plan is not None and name in plan.nodes))
    }
    unconnected = [name for name in gang.spares if (node := snapshot.nodes.get(name)) and node.has_port_down]
    bad |= dict.fromkeys(unconnected, "a fabric port is down")
    layout = _layout(snapshot, job, gang, config)
    if not isinstance(plan, AllocationSwapPlan):
        return LauncherOrders(bad, layout=layout)
    return LauncherOrders(_avoided(plan) | bad, restart(plan), dict(plan.places), layout)


def _layout(snapshot: Snapshot, key: JobKey, gang: Gang, config: Config) -> RankLayout | None:
    """None where each group of ranks is on one node. Of the spares, those that the gang should get only where there is
    no other are left out.
    """
    job = snapshot.jobs.get(key)
    if job is None or not snapshot.topology.distances.any_known:
        return None
    sizes = group_sizes(job.slurm.comment, gang.state.group_sizes)
    if not sizes:
        return None
    found = layout_of(snapshot, job)
    if found.sizes.nodes_of_group(max(1, found.world // len(found.seats))) == 1:
        return None
    standing = standing_of(snapshot, config)
    spares = [name for name in gang.spares if not any(standing(name))]
    domains = {
        name: tuple(one.label for one in snapshot.topology.of_node.get(name, ()) if one.kind in KINDS)
        for name in (*gang.seats, *spares)
    }
    return RankLayout(sizes, domains)


def _launcher_acts(recovery: Recovery) -> bool:
    step = recovery.step(StepName.ORDER_RESTART)
    return step is not None and step.status in (StepStatus.INTENDED, StepStatus.DONE)


def _avoided(plan: AllocationSwapPlan) -> dict[str, str]:
    """Nodes that the gang must leave although a budget keeps them in service."""
    return {} if plan.hang else dict.fromkeys(plan.leaving, bare_reason(plan.drain_reason))


def bare_reason(reason: str) -> str:
    return reason.removeprefix(REASON_PREFIX).strip() or "taken out of service"


def restart(plan: AllocationSwapPlan) -> Restart | None:
    """None: the plan's bad nodes are reason enough for the launcher."""
    return Restart(plan.launch, plan.hang, plan.leaving) if plan.hang else None


def orders_of(plan: AllocationSwapPlan) -> LauncherOrders:
    """What the plan itself orders."""
    bad = dict.fromkeys(plan.nodes, bare_reason(plan.drain_reason))
    return LauncherOrders(_avoided(plan) | bad, restart(plan), dict(plan.places))
