"""The fabric of a node: its InfiniBand or RoCE ports, its NVLinks, its GPUs' registration with the NVSwitches.

A port counts when it was in use since the node booted; a port that was never connected is no loss, unless the site
sets how many there must be. A *drop* is a port that stays down, a *flap* one that goes down and comes back
repeatedly: it is up in most samples, so it is judged by its outages, and only an administrator clears it. Outages that
are too short for that make the node suspect. When a switch fails or reboots, the ports of many nodes go down at once,
and none of these nodes is to blame: neither for a port that stays down, nor for an outage that is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from understudy_controlplane.config import Hardware
from understudy_controlplane.detect.common_cause import TOGETHER_SECONDS, bears_witness, domain_faults, nodes_alike
from understudy_controlplane.detect.domain_silence import NODES_MIN, SHARE_MIN
from understudy_controlplane.detect.gpu_finding import gpu_finding
from understudy_controlplane.detect.standstill import fault_or_at_job_end, stands_still
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.incident import PORT_DOWN
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.xid_policy import Repair
from understudy_wire.facts import HardwareEvent, HardwareKind
from understudy_wire.hardware import Gpu, Port, PortRole

ACTIVE = "ACTIVE"

FABRIC_NOT_STARTED = 1  # nvmlGpuFabricState
FABRIC_IN_PROGRESS = 2
FABRIC_COMPLETED = 3

FABRIC_WRONG = {
    0: "its bandwidth is degraded",
    2: "its routes are being recovered",
    4: "its routes are unhealthy",
    6: "it recovers from an access that timed out",
}
"""NVML_GPU_FABRIC_HEALTH_MASK_*: from this bit on two bits say 1 for yes, 2 for no, 0 for not supported."""

FABRIC_CONFIGURATION_BIT = 8
FABRIC_CONFIGURATION_WELL = (0, 1)
"""... and from here on four bits say what is wrong with its configuration: nothing, or not supported."""


TWINS_MIN = 8
TWINS_UP_SHARE = 0.9
"""So many other nodes of the same GPUs, and so large a share of them, show that a port is connected there."""

Outages = dict[str, list[HardwareEvent]]
"""Outages by the port's label."""


class Failure(NamedTuple):
    """A port that is down, or was, since when, and whether that says something about other nodes. An outage that a node
    has reported does, whatever became of the node.
    """

    node: NodeView
    at: float
    is_witness: bool


class Alike(NamedTuple):
    nodes: int  # whose ports went down at about the same time, the node's own included
    of_switch: bool  # so many that their switch, or what manages it, is the cause


def ports(snapshot: Snapshot, policy: Hardware) -> Iterator[Finding]:
    lost = [
        (node, port, port.down_seconds)
        for node in snapshot.unusual
        for port in node.ports
        if port.is_lost and port.down_seconds is not None
    ]
    for node, port, seconds in lost:
        if port.role is not PortRole.TRAINING and seconds >= policy.port_down_seconds:
            yield _other_down(snapshot, node, port, seconds)
    down = [one for one in lost if one[1].is_training_lost]
    failures = [
        Failure(node, (node.heard_at or snapshot.now) - seconds, bears_witness(node)) for node, _, seconds in down
    ]
    soonest = min(policy.port_down_stalled_seconds, policy.port_down_seconds)
    together: list[tuple[str, float]] = []
    for (node, port, seconds), failure, alike in zip(down, failures, _alike(snapshot, failures, policy), strict=True):
        if seconds >= soonest:
            yield from _down(snapshot, node, port, policy, alike)
        if alike.of_switch and failure.is_witness:
            together.append((node.name, failure.at))
    if any(snapshot.now - at >= soonest for _, at in together):
        what = "their ports went down together: a switch, or what manages it"
        yield from domain_faults(snapshot, PORT_DOWN, together, what)
    for name, outages in own_outages(snapshot, policy).items():
        yield from _flaps(snapshot, snapshot.nodes[name], outages, policy)


def _alike(snapshot: Snapshot, failures: Sequence[Failure], policy: Hardware) -> list[Alike]:
    """Failures alike for each failure of a port. A node may have several, hours apart."""
    counts = nodes_alike(failures)
    in_order = sorted(range(len(failures)), key=lambda i: failures[i].at)
    of_switch = [count >= policy.together_nodes for count in counts]
    first = 0
    for end in range(1, len(in_order) + 1):
        ends = end == len(in_order) or failures[in_order[end]].at > failures[in_order[end - 1]].at + TOGETHER_SECONDS
        if ends:
            group, first = in_order[first:end], end
            if len(group) >= NODES_MIN:
                found = _most_of_a_domain(snapshot, [failures[i] for i in group])
                for i in group:
                    of_switch[i] |= failures[i].node.name in found
    return [Alike(count, switch) for count, switch in zip(counts, of_switch, strict=True)]


def _most_of_a_domain(snapshot: Snapshot, failures: Sequence[Failure]) -> frozenset[str]:
    """Nodes that failed together and are most of those of a small domain, such as a switch of four, that were in
    service then.
    """
    since: dict[str, float] = {}
    for node, at, is_witness in failures:
        if is_witness:
            since[node.name] = min(at, since.get(node.name, at))
    failed: dict[str, list[str]] = {}  # by domain, in their order
    for name in sorted(since, key=since.__getitem__):
        for label in snapshot.topology.failing_with(name):
            failed.setdefault(label, []).append(name)
    found: set[str] = set()
    for label, own in failed.items():
        if len(own) < NODES_MIN:
            continue
        members = [snapshot.nodes[name] for name in snapshot.topology.failing_together[label] if name in snapshot.nodes]
        began = since[own[0]]
        watched = sum(
            one.name in since or (bears_witness(one) and _in_service_since(one) <= began + TOGETHER_SECONDS)
            for one in members
        )
        enough = max(NODES_MIN, SHARE_MIN * watched)
        first = named = 0
        for end, name in enumerate(own, 1):
            while since[name] - since[own[first]] > TOGETHER_SECONDS:
                first += 1
            if end - first >= enough:
                found.update(own[max(first, named) : end])
                named = end
    return frozenset(found)


def _in_service_since(node: NodeView) -> float:
    """Time of its return to service, or of its first agent: a suspicion since then leaves it in service."""
    return max(node.record.cleared_at, node.record.agent_since or 0.0)


def _down(snapshot: Snapshot, node: NodeView, port: Port, policy: Hardware, alike: Alike) -> Iterator[Finding]:
    seconds = port.down_seconds or 0.0
    job = stands_still(snapshot, node.name, policy.port_down_stalled_seconds, seconds)
    nodes, together = alike
    if job is None and seconds < policy.port_down_seconds and not together:
        return
    words = (
        f"port {port.label} is {port.state or 'gone'} ({port.physical_state or 'no reason given'}) for {seconds:.0f} s"
    )
    if job is not None:
        words += f", and job {job.job_id} there makes no progress"
    if together:
        words += f"; {nodes} nodes show the same at once: the cause is a switch or its management"
    at = (node.heard_at or snapshot.now) - seconds
    yield Finding(
        signal=Signal.RECORDED if together else fault_or_at_job_end(snapshot, node.name, at),
        rule=PORT_DOWN,
        node=node.name,
        at=at,
        summary=words,
        evidence=Evidence(
            {
                "port": port.label,
                "state": port.state,
                "physical_state": port.physical_state,
                "link_layer": port.link_layer,
                "down_seconds": seconds,
                "link_downed": port.link_downed,
                "nodes_alike": nodes,
                "boot_id": node.boot_id,
                "bus_id": port.label,
                "repair": Repair.MANUAL_REPAIR.value,
            }
        ),
        detail=HardwareDetail(repair=Repair.MANUAL_REPAIR, part=port.label, boot_id=node.boot_id),
        job=job,
    )


def _other_down(snapshot: Snapshot, node: NodeView, port: Port, seconds: float) -> Finding:
    why = "its adapter differs from those that do, or NCCL_IB_HCA in /etc/nccl.conf leaves it out"
    if port.role is PortRole.NVSWITCH:
        why = "it manages NVSwitches"
    return Finding(
        Signal.RECORDED,
        "fabric.other_port_down",
        node.name,
        (node.heard_at or snapshot.now) - seconds,
        f"port {port.label} is {port.state or 'gone'} for {seconds:.0f} s; it does not count for training: {why}",
        Evidence({"port": port.label, "role": port.role.value, "adapter": port.adapter, "down_seconds": seconds}),
        detail=HardwareDetail(part=port.label, boot_id=node.boot_id),
    )


def _flaps(snapshot: Snapshot, node: NodeView, outages: Outages, policy: Hardware) -> Iterator[Finding]:
    """Outages count whatever boot they were in: a reboot does not repair a cable."""
    for part, found in outages.items():
        own = [event for event in found if event.seconds >= policy.port_flap_seconds]
        if len(own) >= policy.port_flaps:
            words = f"went down and came back {times(len(own))} within {policy.port_flaps_hours:g} hours"
            signal = fault_or_at_job_end(snapshot, node.name, own[-1].at)
            yield _of_outages(node, part, own, signal, "infiniband.port_flaps", words)


def unsteady_ports(node: NodeView, outages: Outages, policy: Hardware) -> Iterator[Finding]:
    """Finds ports with as many outages as make a flap, but shorter ones. A gang survives those; at most its steps take
    longer.
    """
    for part, found in outages.items():
        flaps = sum(event.seconds >= policy.port_flap_seconds for event in found)
        if flaps < policy.port_flaps <= len(found):
            words = f"went down briefly {times(len(found) - flaps)} within {policy.port_flaps_hours:g} hours"
            yield _of_outages(node, part, found, Signal.HEALTH_SUSPECTED, "infiniband.port_unsteady", words)


def own_outages(snapshot: Snapshot, policy: Hardware) -> dict[str, Outages]:
    """Outages of each node that count by their age, oldest first, and that began apart from those of other nodes: a
    leaf switch that reboots three times in a day takes all its ports along each time.
    """
    since = snapshot.now - policy.port_flaps_hours * 3600.0
    found = [
        (node, stored.event)
        for node in snapshot.unusual
        for stored in node.hardware_events
        if stored.event.kind is HardwareKind.PORT_OUTAGE
        and stored.received_at >= since
        and all(port.role is PortRole.TRAINING for port in node.ports if port.label == stored.event.part)
    ]
    if not found:
        return {}
    began = [Failure(node, event.at - node.clock_ahead_seconds, is_witness=True) for node, event in found]
    still_down = [
        Failure(node, (node.heard_at or snapshot.now) - port.down_seconds, bears_witness(node))
        for node in snapshot.unusual
        for port in node.ports
        if port.is_training_lost and port.down_seconds is not None
    ]
    own: dict[str, Outages] = {}
    for (node, event), alike in zip(found, _alike(snapshot, began + still_down, policy), strict=False):
        if not alike.of_switch:
            own.setdefault(node.name, {}).setdefault(event.part, []).append(event)
    for outages in own.values():
        for events in outages.values():
            events.sort(key=lambda event: event.at)
    return own


def _of_outages(
    node: NodeView, part: str, outages: list[HardwareEvent], signal: Signal, rule: str, words: str
) -> Finding:
    return Finding(
        signal,
        rule,
        node.name,
        outages[-1].at,
        f"port {part} {words}",
        Evidence(
            {
                "port": part,
                "bus_id": part,
                "outages": [[round(event.at, 1), event.seconds] for event in outages[-10:]],
                "repair": Repair.MANUAL_REPAIR.value,
            }
        ),
        detail=HardwareDetail(repair=Repair.MANUAL_REPAIR, part=part),
    )


def too_few_ports(node: NodeView, policy: Hardware) -> Iterator[Finding]:
    """Down since before the node booted, so that its agent has never seen them up."""
    expected = policy.ports_per_node
    if not expected or node.ports_silent_seconds or not (node.gpus or node.ports):
        return
    training = [port for port in node.ports if port.role is PortRole.TRAINING]
    active = sum(port.state == ACTIVE for port in training)
    down = sum(port.was_active and port.state != ACTIVE for port in training)  # these are judged by themselves
    if active + down < expected:
        dead = [port.label for port in training if port.state != ACTIVE]
        others = [port.label for port in node.ports if port.role is PortRole.OTHER and port.state == ACTIVE]
        yield Finding(
            Signal.HEALTH_SUSPECTED,
            "infiniband.too_few_ports",
            node.name,
            node.heard_at or 0.0,
            f"{active} of {expected} fabric ports for training are active",
            Evidence(
                {
                    "ports": active,
                    "expected": expected,
                    "not_active": [*dead],
                    "not_for_training": [*others],
                    "repair": Repair.MANUAL_REPAIR.value,
                }
            ),
            detail=HardwareDetail(repair=Repair.MANUAL_REPAIR),
        )


def never_up(snapshot: Snapshot, policy: Hardware) -> Iterator[Finding]:
    """Finds ports for training that were not up in this boot and are up on nearly all nodes of the same GPUs."""
    if policy.ports_per_node:
        return  # the site knows better how many there are
    dead = [
        (node, port)
        for node in snapshot.unusual
        for port in node.ports
        if not port.was_active and port.role is PortRole.TRAINING and node.slurm is not None and node.slurm.gres
    ]
    labels = {port.label for _, port in dead}
    twins: Counter[tuple[str, str]] = Counter()
    for node in snapshot.nodes.values() if dead else ():
        for port in node.ports:
            if node.slurm is not None and port.label in labels and port.role is PortRole.TRAINING:
                twins[node.slurm.gres, port.label] += 1
    dead_of = Counter((node.slurm.gres, port.label) for node, port in dead if node.slurm is not None)
    for node, port in dead:
        kind = (node.slurm.gres if node.slurm is not None else "", port.label)
        up, count = twins[kind] - dead_of[kind], twins[kind]
        is_late = (port.down_seconds or 0.0) >= policy.port_down_seconds  # after a boot it may take a minute
        if is_late and up >= TWINS_MIN and up >= TWINS_UP_SHARE * (count - 1):
            yield Finding(
                Signal.HEALTH_SUSPECTED,
                "infiniband.port_never_up",
                node.name,
                node.heard_at or snapshot.now,
                f"port {port.label} is {port.state} ({port.physical_state or 'no reason given'}) and was not up since "
                f"the node booted; on {up} of {count} nodes with the same GPUs it is",
                Evidence({"port": port.label, "state": port.state, "up": up, "nodes": count}),
                detail=HardwareDetail(repair=Repair.MANUAL_REPAIR, part=port.label, boot_id=node.boot_id),
            )


def hot_modules(node: NodeView) -> Iterator[Finding]:
    """Cables and optical modules above the limit that they have themselves: their links fail soon."""
    for port in node.ports:
        limit = port.module_celsius_max
        is_hot = limit and port.module_celsius is not None and port.module_celsius >= limit
        if is_hot and port.role is PortRole.TRAINING:
            yield Finding(
                Signal.HEALTH_SUSPECTED,
                "fabric.module_hot",
                node.name,
                node.heard_at or 0.0,
                f"the module of port {port.label} has {port.module_celsius:.0f} °C; its limit is {limit:.0f} °C",
                Evidence({"port": port.label, "celsius": port.module_celsius, "celsius_max": limit}),
                detail=HardwareDetail(repair=Repair.MANUAL_REPAIR, part=port.label),
            )


def fabric_manager(node: NodeView) -> Iterator[Finding]:
    """Finds a fabric manager that does not run: no program can use the NVSwitches, and on an A100 NVML does not show
    it.
    """
    if node.host is not None and node.host.fabric_manager is False:
        yield Finding(
            Signal.HEALTH_SUSPECTED,
            "fabric.manager_down",
            node.name,
            node.heard_at or 0.0,
            "the Fabric Manager ran earlier in this boot and does not run now",
            Evidence({"boot_id": node.boot_id, "repair": Repair.REBOOT.value}),
            detail=HardwareDetail(repair=Repair.REBOOT, boot_id=node.boot_id),
        )


def gpu_fabric(node: NodeView, gpu: Gpu) -> Iterator[Finding]:
    if gpu.nvlinks is not None and gpu.nvlinks_max is not None and gpu.nvlinks < gpu.nvlinks_max:
        what = f"has {gpu.nvlinks} NVLinks up of {gpu.nvlinks_max}"
        yield gpu_finding(
            node, gpu, Signal.HEALTH_SUSPECTED, "nvlink.down", what, Repair.RESET_GPU, nvlinks=gpu.nvlinks
        )
    wrong = fabric_wrong(gpu.fabric_health or 0)
    if wrong:
        what = f"has a fault in the fabric: {wrong}"
        health = gpu.fabric_health
        yield gpu_finding(
            node, gpu, Signal.HEALTH_SUSPECTED, "fabric.unhealthy", what, Repair.REBOOT, fabric_health=health
        )
    registered = gpu.fabric_state == FABRIC_COMPLETED
    if gpu.fabric_state in (FABRIC_NOT_STARTED, FABRIC_IN_PROGRESS) or (registered and gpu.fabric_status):
        what = f"is not registered with the fabric (state {gpu.fabric_state}, status {gpu.fabric_status}): the Fabric "
        what += "Manager, or what manages the NVLink domain, has not finished"
        yield gpu_finding(
            node,
            gpu,
            Signal.HEALTH_SUSPECTED,
            "fabric.not_registered",
            what,
            Repair.REBOOT,
            fabric_state=gpu.fabric_state,
            fabric_status=gpu.fabric_status,
            fabric_health=gpu.fabric_health,
        )


def fabric_wrong(health: int) -> str:
    """What the mask says; empty: nothing."""
    wrong = [words for bit, words in FABRIC_WRONG.items() if health >> bit & 0x3 == 1]
    configuration = health >> FABRIC_CONFIGURATION_BIT & 0xF
    if configuration not in FABRIC_CONFIGURATION_WELL:
        wrong.append(f"its configuration is wrong (reason {configuration})")
    return "; ".join(wrong)
