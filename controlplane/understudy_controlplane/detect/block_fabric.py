"""The NVLink fabric of a block, such as an NVL72 rack: nodes whose GPUs lose it together are one failure, the block's.

Their GPUs are not to blame, and the others of the block still work: none of them becomes suspect for it. Nodes on which
the driver reported a fatal NVLink error leave their gang as before.
"""

from __future__ import annotations

from collections.abc import Sequence

from understudy_controlplane.detect.common_cause import NODES_SHOWN_MAX, bears_witness
from understudy_controlplane.detect.domain_silence import WITHIN_SECONDS, needs_to_leave
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.incident import BLOCK_FABRIC, FABRIC_SIGNS, NVLINK_XIDS
from understudy_controlplane.fleet.node import OUT_OF_SERVICE
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.topology import Domain, DomainKind, shown

NODES_MIN = 3
SHARE_MIN = 0.5
"""Share of the block's nodes that are in service and heard."""


def block_faults_joined(snapshot: Snapshot, found: Sequence[Finding]) -> list[Finding]:
    """The findings, with one of each block whose fabric has failed instead of those about its nodes' NVLinks."""
    since: dict[str, float] = {}
    for finding in found:
        if _of_the_fabric(finding):
            since[finding.node] = min(finding.at, since.get(finding.node, finding.at))
    if not since:
        return [*found]
    blocks = (one for one in snapshot.topology.domains if one.kind is DomainKind.NVLINK_BLOCK)
    failed = [one for one in blocks if _has_failed(snapshot, one, since)]
    inside = {name for block in failed for name in block.nodes}
    kept = [one for one in found if not (one.node in inside and _of_the_fabric(one)) or _condemns(snapshot, one)]
    return [*kept, *(_fault(block, since) for block in failed)]


def _of_the_fabric(finding: Finding) -> bool:
    accuses = finding.signal in (Signal.HARDWARE_FAULT, Signal.DRAIN_AT_JOB_END)
    return finding.rule in FABRIC_SIGNS or (finding.rule in NVLINK_XIDS and accuses)


def _has_failed(snapshot: Snapshot, block: Domain, since: dict[str, float]) -> bool:
    """Nodes that gangs have left for it meanwhile still count: few others may be in service then."""
    witnesses = {name for name in block.nodes if name in snapshot.nodes and bears_witness(snapshot.nodes[name])}
    incident = snapshot.incidents.get(Subject.of_domain(block.label, BLOCK_FABRIC))
    goes_on = incident is not None  # as while its nodes are rebooted one by one
    began = incident.opened_at if incident is not None else snapshot.now
    taken = {name for name in block.nodes if name not in witnesses and _taken_out(snapshot, name, began)}
    showing = len(witnesses & since.keys())
    if not showing:
        return False
    return showing + len(taken) >= (NODES_MIN if goes_on else max(NODES_MIN, SHARE_MIN * len(witnesses | taken)))


def _taken_out(snapshot: Snapshot, name: str, began: float) -> bool:
    """True if it was taken out of service for its NVLinks, together with the others."""
    incident = snapshot.incident_of(name)
    if incident is None or name not in snapshot.at_fault:
        return False
    return incident.rule in FABRIC_SIGNS | NVLINK_XIDS and incident.opened_at >= began - WITHIN_SECONDS


def _condemns(snapshot: Snapshot, finding: Finding) -> bool:
    """A fatal error under a gang, or what a node was taken out of service for."""
    if snapshot.nodes[finding.node].state in OUT_OF_SERVICE:
        return True
    return finding.signal is Signal.HARDWARE_FAULT and needs_to_leave(snapshot, finding.node)


def _fault(block: Domain, since: dict[str, float]) -> Finding:
    nodes = [name for name in block.nodes if name in since]
    words = f"GPUs on {len(nodes)} of {len(block.nodes)} nodes of {block.label} have lost its NVLink fabric"
    return Finding(
        Signal.DOMAIN_FAULT,
        BLOCK_FABRIC,
        "",
        min(since[name] for name in nodes),
        f"{words} ({shown(nodes)})",
        Evidence({"nodes": [*nodes[:NODES_SHOWN_MAX]], "nodes_alike": len(nodes)}),
        domain=block.label,
        nodes=tuple(nodes),
    )
