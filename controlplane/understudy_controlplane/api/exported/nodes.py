"""Metrics with a series for each node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from understudy_controlplane.api.exported.metric import Kind, Metric, Sample, escaped
from understudy_controlplane.api.exported.source import GpuSum, Source
from understudy_wire.messages import Keeper


def _of_gpu_sums(value: Callable[[GpuSum], float | None]) -> Callable[[Source], Iterator[Sample]]:
    def samples(source: Source) -> Iterator[Sample]:
        labels = source.node_labels
        for one in source.gpu_sums:
            found = value(one)
            if found is not None:
                yield labels[one.node.name], found

    return samples


def _node_states(source: Source) -> Iterator[Sample]:
    for node in source.nodes:
        yield f'{{node="{escaped(node.name)}",state="{node.state}"}}', 1.0


def _node_info(source: Source) -> Iterator[Sample]:
    for node in source.nodes:
        partitions = ",".join(node.slurm.partitions) if node.slurm else ""
        gpu = node.gpus[0].name if node.gpus else ""
        yield (
            f'{{node="{escaped(node.name)}",partitions="{escaped(partitions)}",gpu_model="{escaped(gpu)}",'
            f'driver_version="{escaped(node.driver_version)}"}}',
            1.0,
        )


def _report_ages(source: Source) -> Iterator[Sample]:
    labels, now = source.node_labels, source.now
    for node in source.nodes:
        if node.heard_at is not None:
            yield labels[node.name], now - node.heard_at


def _ports_down(source: Source) -> Iterator[Sample]:
    for node in source.nodes:
        if node.ports:
            down = sum(port.is_training_lost for port in node.ports)
            yield source.node_labels[node.name], down


def _of_keepers(value: Callable[[Keeper], float]) -> Callable[[Source], Iterator[Sample]]:
    def samples(source: Source) -> Iterator[Sample]:
        labels = source.node_labels
        for node in source.nodes:
            if node.keeper is not None:
                yield labels[node.name], value(node.keeper)

    return samples


PER_NODE = "nodes"
WITH_KEEPER = "nodes with a keeper"
NODES: tuple[Metric[Source], ...] = (
    Metric("node_state", "1 for the state that the node is in.", _node_states, ("node", "state"), PER_NODE),
    Metric(
        "node_info",
        "1; the node's partitions, GPUs and driver.",
        _node_info,
        ("node", "partitions", "gpu_model", "driver_version"),
        PER_NODE,
    ),
    Metric(
        "agent_report_age_seconds", "Time since the last report of the node's agent.", _report_ages, ("node",), PER_NODE
    ),
    Metric(
        "node_gpus",
        "GPUs that the node's agent reported.",
        _of_gpu_sums(lambda one: len(one.node.gpus)),
        ("node",),
        PER_NODE,
    ),
    Metric(
        "node_gpus_well",
        "Those of them that are well: NVML answers, nothing is pending, no uncorrected errors, no slowdown.",
        _of_gpu_sums(lambda one: len(one.node.gpus) - len(one.unwell)),
        ("node",),
        PER_NODE,
    ),
    Metric(
        "node_gpu_temperature_max_celsius",
        "The hottest GPU of the node.",
        _of_gpu_sums(lambda one: one.temperature_max_celsius),
        ("node",),
        PER_NODE,
    ),
    Metric(
        "node_gpu_power_watts",
        "Power of all GPUs of the node.",
        _of_gpu_sums(lambda one: one.power_watts),
        ("node",),
        PER_NODE,
    ),
    Metric(
        "node_ports_down",
        "Fabric ports for training that were active in this boot and are down.",
        _ports_down,
        ("node",),
        "nodes with fabric ports",
    ),
    Metric(
        "node_keeper_bytes",
        "What the node's keeper holds of saves in memory.",
        _of_keepers(lambda one: one.bytes_held),
        ("node",),
        WITH_KEEPER,
    ),
    Metric(
        "node_keeper_limit_bytes",
        "What it holds at most.",
        _of_keepers(lambda one: one.bytes_max),
        ("node",),
        WITH_KEEPER,
    ),
    Metric(
        "node_keeper_received_bytes_total",
        "What it has copied from other keepers since its start.",
        _of_keepers(lambda one: one.bytes_received),
        ("node",),
        WITH_KEEPER,
        Kind.COUNTER,
    ),
    Metric(
        "node_keeper_refused_parts_total",
        "Parts that it has refused since its start, as for a limit.",
        _of_keepers(lambda one: one.refused),
        ("node",),
        WITH_KEEPER,
        Kind.COUNTER,
    ),
)
