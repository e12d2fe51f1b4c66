"""What a scrape shows: the newest snapshot, and what the process knows of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from understudy_controlplane.api.exported.metric import Sample, escaped, labels_text
from understudy_controlplane.api.needs import NeedRecord, needs_of
from understudy_controlplane.config import Config
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.telemetry import Telemetry
from understudy_wire.hardware import Gpu, GpuStatus

JOBS_MAX = 500
"""Jobs with series of their own: those of the most nodes."""

SLOWED_SHARE = 0.05
"""Share of the samples of ten minutes: hardware that asked for lower clocks more often is not well."""


@dataclass(frozen=True)
class Source:
    """What the samples of a scrape are made from."""

    snapshot: Snapshot
    config: Config
    pulse: Pulse
    telemetry: Telemetry
    now: float

    @cached_property
    def nodes(self) -> list[NodeView]:
        return list(self.snapshot.nodes.values())

    @cached_property
    def needs(self) -> list[NeedRecord]:
        return list(needs_of(self.pulse, self.now))

    @cached_property
    def node_labels(self) -> dict[str, str]:
        return {name: f'{{node="{escaped(name)}"}}' for name in self.snapshot.nodes}

    @cached_property
    def gpu_sums(self) -> list[GpuSum]:
        return [gpu_sum(node) for node in self.nodes if node.heard_at is not None]

    @cached_property
    def gpus(self) -> list[tuple[str, NodeView, Gpu]]:
        """Labels, node and GPU, of the GPUs that have series of their own."""
        sums = self.gpu_sums
        most = max((len(one.node.gpus) for one in sums), default=0) * len(sums)
        all_shown = most <= self.config.limits.gpus_in_metrics_max
        return [
            (f'{{node="{escaped(one.node.name)}",gpu="{gpu.index}"}}', one.node, gpu)
            for one in sums
            for gpu in (one.node.gpus if all_shown else one.unwell)
        ]

    @cached_property
    def jobs(self) -> list[Job]:
        """Managed jobs that run and have series of their own."""
        running = [job for job in self.snapshot.jobs.values() if job.managed and job.running]
        return sorted(running, key=lambda job: (-job.slurm.node_count, job.slurm.job_id))[:JOBS_MAX]


def is_well(gpu: Gpu) -> bool:
    return gpu.status is GpuStatus.OK and not (
        gpu.recovery_action
        or gpu.remapped_rows_pending
        or gpu.remapped_rows_failed
        or gpu.ecc_uncorrected
        or gpu.sram_threshold_exceeded
        or (gpu.slowed_share_recent or 0.0) > SLOWED_SHARE
    )


@dataclass(slots=True)
class GpuSum:
    """Over the GPUs of a node."""

    node: NodeView
    unwell: list[Gpu]
    temperature_max_celsius: float | None = None
    power_watts: float | None = None


def gpu_sum(node: NodeView) -> GpuSum:
    """Sums in one pass: a large fleet has 100,000 GPUs."""
    unwell, hottest, power = list[Gpu](), -1.0, -1.0
    for gpu in node.gpus:
        if not is_well(gpu):
            unwell.append(gpu)
        if gpu.temperature_celsius is not None:
            hottest = max(hottest, gpu.temperature_celsius)
        if gpu.power_watts is not None:
            power = max(power, 0.0) + gpu.power_watts
    return GpuSum(node, unwell, hottest if hottest >= 0 else None, power if power >= 0 else None)


def one(value: Callable[[Source], float | None]) -> Callable[[Source], Iterator[Sample]]:
    """The only series of a metric; none where there is no value."""

    def samples(source: Source) -> Iterator[Sample]:
        found = value(source)
        if found is not None:
            yield "", float(found)

    return samples


def counted(
    label: str, values: Iterable[str], count: Callable[[Source], Counter[str]]
) -> Callable[[Source], Iterable[Sample]]:
    """One series for each value, also where there is none of it."""
    names = tuple(values)

    def samples(source: Source) -> Iterable[Sample]:
        counts = count(source)
        return ((labels_text(**{label: name}), float(counts[name])) for name in names)

    return samples
