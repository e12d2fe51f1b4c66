"""A drill: what would follow if the driver of a node logged an Xid now, and what follows when it ends. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.node_log import read
from understudy_controlplane.detect.xid import FAULT_FORMS
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.drill import MARK, Drill, is_drill
from understudy_controlplane.fleet.job import JobThere
from understudy_controlplane.fleet.node import IN_REPAIR, NodeState, NodeView, StoredKernelEvent
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.facts import KernelEvent

ANY_GPU = "0000:01:00.0"
"""Address used for a node whose GPUs are not known."""


def drill_event(node: NodeView, code: int, by: str, now: float) -> KernelEvent:
    """Event as the driver logs it for the node's first GPU, with a mark."""
    gpu = next((one.bus_id for one in node.gpus if one.bus_id), ANY_GPU)
    text = f"NVRM: Xid (PCI:{gpu.removesuffix('.0')}): {code}, {MARK} {by}"
    return KernelEvent(node.boot_id, int(now * 1000), now, text, code, gpu)


def what_follows(snapshot: Snapshot, config: Config, name: str, event: KernelEvent) -> list[Decision]:
    """The decisions of the next round in mode act, without those that would be made anyway."""
    acting = replace(snapshot, mode=Mode.ACT, part_modes={}) if snapshot.mode_of([name]) is Mode.OBSERVE else snapshot
    made_anyway = {one.key for one in decide(acting, detect(acting, config), config)}
    node = acting.nodes[name]
    received_at = max(node.record.cleared_at + 1.0, event.at - config.xid.spread_wait_seconds)
    jobs = tuple(
        JobThere(key.job_id, key.submit_at, job.slurm.user)
        for key, job in acting.jobs.items()
        if job.running and name in job.slurm.nodes
    )
    stored = StoredKernelEvent(event.sequence, name, received_at, event, jobs)
    shown = replace(node, events=(*node.events, stored), history=(*node.history, stored))
    drilled = replace(acting, nodes={**acting.nodes, name: shown})
    return [one for one in decide(drilled, detect(drilled, config), config) if one.key not in made_anyway]


USED = frozenset({NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.UNKNOWN, NodeState.PROBATION})
"""A node in service: a guard held the drill back, or the node has returned already."""

BY_A_FAULT = frozenset({NodeState.QUARANTINED, NodeState.MANUAL_REPAIR})
"""States in which a drill may leave a node: it returns when the drill ends."""


@dataclass(frozen=True, slots=True)
class DrillEnd:
    release: bool  # the node returns
    why: str


def end_of(snapshot: Snapshot, drill: Drill) -> DrillEnd | None:
    """None: it goes on, or what it began has not come to its end yet."""
    node = snapshot.nodes.get(drill.node)
    under_way = node is not None and (
        node.state in IN_REPAIR or any(drill.node in one.plan.claimed for one in snapshot.recoveries)
    )
    if snapshot.now < drill.until or under_way:
        return None
    if node is None or node.state in USED:
        return DrillEnd(False, "the node is in service, or Slurm does not show it any more")
    if why := _why_it_stays(snapshot, drill, node):
        return DrillEnd(False, f"the node stays {node.state.value}: {why}")
    return DrillEnd(True, "the node returns")


def _why_it_stays(snapshot: Snapshot, drill: Drill, node: NodeView) -> str:
    """What speaks against the node besides the drill; empty: nothing."""
    if node.state not in BY_A_FAULT:
        return "an administrator answers for it"
    if drill.node in snapshot.operator.requests:
        return "a request of an operator about it waits"
    incident = snapshot.incident_of(drill.node)
    if incident is not None and incident.opened_at < drill.at:
        return f"incident {incident.id} is older than the drill"
    meanwhile = [(read(one), one.event.text) for one in node.history if one.received_at >= drill.at]
    own = {f"xid.{line.code}" for line, text in meanwhile if is_drill(text)}
    if incident is not None and (others := {incident.rule, *incident.accused_by} - own):
        return f"incident {incident.id} has other findings: {', '.join(sorted(others))}"
    failed = [
        f"recovery {one.recovery} failed: {one.outcome}"
        for one in snapshot.history.attempts
        if one.node == drill.node and one.at >= drill.at and one.status is RecoveryStatus.FAILED
    ]
    logged = [text for line, text in meanwhile if not is_drill(text) and line.form in FAULT_FORMS]
    return next(iter([*logged, *failed]), "")
