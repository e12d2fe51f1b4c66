"""The metrics of the fleet, its nodes, GPUs and jobs, and of the control plane itself. All of it is in memory.

Labels have few values: no reason texts, no job names. `docs/metrics.md` is generated from the tables here.
"""

from __future__ import annotations

import os
import platform
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from understudy_agent.wire import RELEASE, Gpu, GpuStatus
from understudy_controlplane.api.certificate import ends_at
from understudy_controlplane.api.metric import Kind, Metric, Sample, escaped, labels_text
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.guards import breaker_limit, lately_quarantined, quarantine_limit
from understudy_controlplane.detect.lemon import lemons
from understudy_controlplane.detect.silence import fallen_silent
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.recovery import RecoveryKind
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.telemetry import Telemetry

JOBS_MAX = 500
"""Jobs with series of their own: those of the most nodes."""

GPU_SERIES_MAX = 100_000
"""Above this number only GPUs that are not well have series of their own."""

SLOWED_SHARE = 0.05
"""Of the samples of ten minutes: hardware that asked for lower clocks more often is not well."""

IN_SERVICE = frozenset({NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.UNKNOWN, NodeState.PROBATION})

PROC = Path("/proc/self")

STARTED_AT = time.time()

READY = frozenset({NodeState.IN_SERVICE, NodeState.PROBATION})

SQLITE = "sqlite:///"


@dataclass(frozen=True)
class Source:
    """What a scrape shows: the newest snapshot, and what the process knows of itself."""

    snapshot: Snapshot
    config: Config
    pulse: Pulse
    telemetry: Telemetry
    now: float

    @cached_property
    def nodes(self) -> list[NodeView]:
        return list(self.snapshot.nodes.values())

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
        most = max((len(one.node.gpus) for one in sums), default=0) * len(sums) * len(GPU_METRICS)
        return [
            (f'{{node="{escaped(one.node.name)}",gpu="{gpu.index}"}}', one.node, gpu)
            for one in sums
            for gpu in (one.node.gpus if most <= GPU_SERIES_MAX else one.unwell)
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
    """In one pass: a large fleet has 100,000 GPUs."""
    unwell, hottest, power = list[Gpu](), -1.0, -1.0
    for gpu in node.gpus:
        if not is_well(gpu):
            unwell.append(gpu)
        if gpu.temperature_celsius is not None:
            hottest = max(hottest, gpu.temperature_celsius)
        if gpu.power_watts is not None:
            power = max(power, 0.0) + gpu.power_watts
    return GpuSum(node, unwell, hottest if hottest >= 0 else None, power if power >= 0 else None)


# -- the fleet ---------------------------------------------------------------------------------------------------


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


def _out_of_service(source: Source) -> Iterator[Sample]:
    for node in source.nodes:
        if node.state not in IN_SERVICE:
            incident = source.snapshot.incident_of(node.name)
            labels = labels_text(node=node.name, state=node.state.value, rule=incident.rule if incident else "")
            yield labels, max(source.now - node.record.since, 0.0)


def _quarantines(source: Source) -> Iterator[Sample]:
    for name, times in source.snapshot.quarantined_at.items():
        yield labels_text(node=name), float(len(times))


def _never_heard(source: Source) -> int:
    return sum(node.slurm is not None and not node.slurm.on_leave and not node.has_agent for node in source.nodes)


def _spares_ready(source: Source) -> int:
    return sum(
        node.is_spare and node.state in READY and node.slurm is not None and node.slurm.usable for node in source.nodes
    )


def _running_jobs(source: Source) -> Counter[str]:
    return Counter("yes" if job.managed else "no" for job in source.snapshot.jobs.values() if job.running)


def _oldest(source: Source, times: Iterable[float]) -> float:
    return max((source.now - at for at in times), default=0.0)


def _statuses(source: Source) -> Counter[str]:
    ok = sum(len(one.node.gpus) - len(one.unwell) for one in source.gpu_sums)
    return Counter({GpuStatus.OK.value: ok}) + Counter(
        gpu.status.value for one in source.gpu_sums for gpu in one.unwell
    )


FLEET: tuple[Metric[Source], ...] = (
    Metric(
        "nodes",
        "Nodes by state.",
        counted("state", [s.value for s in NodeState], lambda s: Counter(node.state for node in s.nodes)),
        ("state",),
        str(len(NodeState)),
    ),
    Metric("nodes_never_heard", "Nodes of Slurm whose agent has never reported.", one(_never_heard)),
    Metric(
        "nodes_silent",
        "Nodes whose agent reported once and has been silent for silence.silent_after_seconds.",
        one(lambda s: len(fallen_silent(s.snapshot, s.config.silence)[0])),
    ),
    Metric(
        "node_out_of_service_seconds",
        "Time for which a node has been in a state in which it does not work; rule: that opened its incident.",
        _out_of_service,
        ("node", "state", "rule"),
        "nodes out of service",
    ),
    Metric(
        "node_quarantines_last_week",
        "Quarantines of a node within seven days.",
        _quarantines,
        ("node",),
        "nodes quarantined within a week",
    ),
    Metric(
        "lemons", "Nodes whose lemon score is over the limit.", one(lambda s: len(lemons(s.snapshot, s.config.lemon)))
    ),
    Metric("spares_wanted", "Spares that the configuration asks for.", one(lambda s: s.config.spares.count)),
    Metric("spares_held", "Nodes in the spare pool.", one(lambda s: sum(node.is_spare for node in s.nodes))),
    Metric("spares_ready", "Nodes in the spare pool that a gang could move to now.", one(_spares_ready)),
    Metric(
        "gpus",
        "GPUs that agents reported, by what NVML answered.",
        counted("status", [s.value for s in GpuStatus], _statuses),
        ("status",),
        str(len(GpuStatus)),
    ),
    Metric(
        "jobs_running",
        "Running jobs; managed: they asked for Understudy.",
        counted("managed", ("yes", "no"), _running_jobs),
        ("managed",),
        "2",
    ),
    Metric(
        "recoveries",
        "Recoveries under way.",
        counted(
            "kind", [k.value for k in RecoveryKind], lambda s: Counter(r.plan.kind.value for r in s.snapshot.recoveries)
        ),
        ("kind",),
        str(len(RecoveryKind)),
    ),
    Metric(
        "recovery_age_seconds",
        "Time since the oldest recovery under way was decided.",
        one(lambda s: _oldest(s, (r.decided_at for r in s.snapshot.recoveries))),
    ),
    Metric(
        "incidents_open",
        "Incidents that are not closed, by their subject.",
        counted(
            "subject", [k.value for k in SubjectKind], lambda s: Counter(i.kind.value for i in s.snapshot.incidents)
        ),
        ("subject",),
        str(len(SubjectKind)),
    ),
    Metric("tickets_open", "Open tickets: work for an administrator.", one(lambda s: len(s.pulse.tickets_opened_at))),
    Metric(
        "ticket_age_seconds",
        "Time since the oldest open ticket was opened.",
        one(lambda s: _oldest(s, s.pulse.tickets_opened_at)),
    ),
    Metric("breaker_open", "1 while the circuit breaker is open.", one(lambda s: bool(s.snapshot.breaker))),
    Metric(
        "breaker_nodes",
        "Nodes quarantined within the circuit breaker's window.",
        one(lambda s: len(lately_quarantined(s.snapshot, s.config))),
    ),
    Metric(
        "breaker_limit_nodes",
        "Nodes quarantined within the window above which the circuit breaker opens.",
        one(lambda s: breaker_limit(s.snapshot, s.config)),
    ),
    Metric("nodes_quarantined", "Nodes at fault that count against the limit.", one(lambda s: s.snapshot.quarantined)),
    Metric(
        "quarantine_limit_nodes",
        "Nodes that may be quarantined at once.",
        one(lambda s: quarantine_limit(s.snapshot, s.config)),
    ),
)


# -- nodes -------------------------------------------------------------------------------------------------------


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
            down = sum(port.down_seconds is not None and port.was_active for port in node.ports)
            yield source.node_labels[node.name], down


PER_NODE = "nodes"
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
        "Fabric ports that were active in this boot and are down.",
        _ports_down,
        ("node",),
        "nodes with fabric ports",
    ),
)


# -- GPUs --------------------------------------------------------------------------------------------------------


def _of_gpus(value: Callable[[Gpu], float | None]) -> Callable[[Source], Iterator[Sample]]:
    def samples(source: Source) -> Iterator[Sample]:
        for labels, _node, gpu in source.gpus:
            found = value(gpu)
            if found is not None:
                yield labels, found

    return samples


def _gpu_info(source: Source) -> Iterator[Sample]:
    for labels, node, gpu in source.gpus:
        yield (
            f'{labels[:-1]},uuid="{escaped(gpu.uuid)}",pci_bus_id="{escaped(gpu.bus_id)}",'
            f'model="{escaped(gpu.name)}",driver_version="{escaped(node.driver_version)}"}}',
            1.0,
        )


def _gpu(name: str, documentation: str, value: Callable[[Gpu], float | None], dcgm: str = "") -> Metric[Source]:
    return Metric(name, documentation, _of_gpus(value), ("node", "gpu"), "GPUs", dcgm=dcgm)


GPU_METRICS: tuple[Metric[Source], ...] = (
    Metric(
        "gpu_info",
        "1; what the GPU is.",
        _gpu_info,
        ("node", "gpu", "uuid", "pci_bus_id", "model", "driver_version"),
        "GPUs",
    ),
    _gpu("gpu_ok", "1 while NVML answers for the GPU.", lambda g: g.status is GpuStatus.OK),
    _gpu("gpu_temperature_celsius", "Temperature.", lambda g: g.temperature_celsius, "DCGM_FI_DEV_GPU_TEMP"),
    _gpu("gpu_power_watts", "Power.", lambda g: g.power_watts, "DCGM_FI_DEV_POWER_USAGE"),
    _gpu("gpu_sm_clock_megahertz", "Clock of the SMs.", lambda g: g.sm_clock_mhz, "DCGM_FI_DEV_SM_CLOCK"),
    _gpu("gpu_utilization_percent", "Utilization.", lambda g: g.utilization_percent, "DCGM_FI_DEV_GPU_UTIL"),
    _gpu("gpu_memory_used_bytes", "Memory in use.", lambda g: g.memory_used_bytes, "DCGM_FI_DEV_FB_USED, in MiB"),
    _gpu(
        "gpu_clock_event_reasons",
        "Bit mask of NVML: why clocks are lower.",
        lambda g: g.clock_event_reasons,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS",
    ),
    _gpu(
        "gpu_slowed_share",
        "Share of the samples of ten minutes with a slowdown that hardware asked for.",
        lambda g: g.slowed_share_recent,
    ),
    _gpu(
        "gpu_power_violation_seconds",
        "How long clocks were held down by the power limit.",
        lambda g: g.power_violation_seconds,
        "DCGM_FI_DEV_POWER_VIOLATION, in microseconds",
    ),
    _gpu(
        "gpu_thermal_violation_seconds",
        "How long clocks were held down by temperature.",
        lambda g: g.thermal_violation_seconds,
        "DCGM_FI_DEV_THERMAL_VIOLATION, in microseconds",
    ),
    _gpu(
        "gpu_ecc_uncorrected",
        "Uncorrected memory errors since the driver was loaded.",
        lambda g: g.ecc_uncorrected,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
    ),
    _gpu(
        "gpu_ecc_corrected",
        "Corrected memory errors since the driver was loaded.",
        lambda g: g.ecc_corrected,
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
    ),
    _gpu(
        "gpu_remapped_rows_uncorrectable",
        "Rows remapped for uncorrectable errors.",
        lambda g: g.remapped_rows_uncorrectable,
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    ),
    _gpu(
        "gpu_remapped_rows_pending",
        "1 while a remapping waits for a reset.",
        lambda g: g.remapped_rows_pending,
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
    ),
    _gpu(
        "gpu_remapped_rows_failed",
        "1 where a remapping has failed.",
        lambda g: g.remapped_rows_failed,
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
    ),
    _gpu("gpu_recovery_action", "What the driver asks for (NVML field 230); 0: nothing.", lambda g: g.recovery_action),
    _gpu("gpu_pcie_replays", "PCIe replays.", lambda g: g.pcie_replays, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER"),
    _gpu("gpu_pcie_width", "PCIe lanes in use.", lambda g: g.pcie_width, "DCGM_FI_DEV_PCIE_LINK_WIDTH"),
    _gpu("gpu_nvlinks", "NVLinks that are up.", lambda g: g.nvlinks),
    _gpu("gpu_nvlink_errors", "Replays, recoveries and CRC errors of all NVLinks.", lambda g: g.nvlink_errors),
)


# -- jobs --------------------------------------------------------------------------------------------------------


def _of_jobs(value: Callable[[Source, Job], float | None]) -> Callable[[Source], Iterator[Sample]]:
    def samples(source: Source) -> Iterator[Sample]:
        for job in source.jobs:
            found = value(source, job)
            if found is not None:
                yield f'{{job_id="{job.slurm.job_id}"}}', found

    return samples


def _job_info(source: Source) -> Iterator[Sample]:
    for job in source.jobs:
        labels = labels_text(job_id=str(job.slurm.job_id), user=job.slurm.user, partition=job.slurm.partition)
        yield labels, 1.0


def _step(source: Source, job: Job) -> float | None:
    table = source.snapshot.tables.get(job.key)
    last = int(table.last_step.max(initial=-1)) if table is not None else -1
    return last if last >= 0 else None


def _step_age(source: Source, job: Job) -> float | None:
    table = source.snapshot.tables.get(job.key)
    return source.now - table.advanced_at if table is not None and table.advanced_at else None


def _launch(source: Source, job: Job) -> float | None:
    gang = source.snapshot.gangs.get(job.key)
    return gang.state.launch if gang is not None else None


def _spares_in_allocation(source: Source, job: Job) -> float | None:
    gang = source.snapshot.gangs.get(job.key)
    return len(gang.spares) if gang is not None else None


def _job(name: str, documentation: str, value: Callable[[Source, Job], float | None]) -> Metric[Source]:
    return Metric(name, documentation, _of_jobs(value), ("job_id",), f"managed running jobs, {JOBS_MAX} at most")


JOBS: tuple[Metric[Source], ...] = (
    Metric(
        "job_info",
        f"1; a managed job that runs. Of more than {JOBS_MAX}, those of the most nodes.",
        _job_info,
        ("job_id", "user", "partition"),
        f"managed running jobs, {JOBS_MAX} at most",
    ),
    _job("job_nodes", "Nodes of the job.", lambda _, job: job.slurm.node_count),
    _job("job_restarts", "How many times Slurm has requeued the job.", lambda _, job: job.slurm.restart_count),
    _job("job_launch", "Launches of the gang within this allocation, as its launcher counts.", _launch),
    _job("job_spares", "Spares within the allocation that are left.", _spares_in_allocation),
    _job("job_step", "The furthest step that any rank has finished.", _step),
    _job("job_step_age_seconds", "Time since a rank last reported a new step.", _step_age),
)


# -- the control plane itself ------------------------------------------------------------------------------------


def _slurm_read_age(source: Source) -> float | None:
    return source.now - source.pulse.slurm.at if source.pulse.slurm.at is not None else None


def _wire_unknown(source: Source) -> Iterator[Sample]:
    for what, count in source.telemetry.unknown.totals().items():
        yield labels_text(what=what), float(count)


def _build(source: Source) -> Iterator[Sample]:
    database = source.config.server.database.partition(":")[0].partition("+")[0]
    yield labels_text(version=RELEASE, python=platform.python_version(), database=database), 1.0


def _database_file(source: Source) -> Path | None:
    url = source.config.server.database
    return Path(url.removeprefix(SQLITE)) if url.startswith(SQLITE) else None


def _database_bytes(source: Source) -> float | None:
    file = _database_file(source)
    try:
        return file.stat().st_size if file is not None else None
    except OSError:
        return None  # the metric is absent: docs/metrics.md


def _database_free(source: Source) -> float | None:
    file = _database_file(source)
    try:
        found = os.statvfs(file.parent) if file is not None else None
    except OSError:
        return None
    return found.f_bavail * found.f_frsize if found is not None else None


def _certificate_ends_at(source: Source) -> float | None:
    file = source.config.server.tls_certificate
    return ends_at(file) if file is not None else None


def _counter(name: str, documentation: str, value: Callable[[Source], float]) -> Metric[Source]:
    return Metric(name, documentation, one(value), kind=Kind.COUNTER)


SELF: tuple[Metric[Source], ...] = (
    Metric("build_info", "1; the release that runs.", _build, ("version", "python", "database")),
    Metric("acting", "1 while the mode is act.", one(lambda s: s.snapshot.mode is Mode.ACT)),
    Metric("paused", "1 while an operator has paused the control plane.", one(lambda s: bool(s.snapshot.paused))),
    Metric("loop_age_seconds", "Time since the last tick ended.", one(lambda s: s.now - s.pulse.last_tick_at)),
    _counter("loop_ticks_total", "Ticks that ended.", lambda s: s.pulse.ticks_total),
    _counter("loop_errors_total", "Ticks, recoveries and transitions that failed.", lambda s: s.pulse.errors_total),
    _counter(
        "clock_jumps_total",
        "Times that the clock of the control plane's machine was set by two seconds or more.",
        lambda s: s.pulse.clock_jumps_total,
    ),
    Metric(
        "slurm_readable",
        "1 where the last reading of Slurm succeeded.",
        one(lambda s: s.pulse.slurm.at is not None and not s.pulse.slurm.error),
    ),
    Metric("slurm_read_age_seconds", "Time since Slurm was last read.", one(_slurm_read_age)),
    _counter("slurm_read_errors_total", "Readings of Slurm that failed.", lambda s: s.pulse.slurm.errors_total),
    _counter("reports_total", "Reports of agents that were accepted.", lambda s: s.telemetry.reports_total),
    Metric(
        "wire_unknown_total",
        "Fields, enum values and kinds of facts in agents' reports that this release does not know and ignored.",
        _wire_unknown,
        ("what",),
        "3 at most",
        Kind.COUNTER,
    ),
    _counter(
        "step_windows_dropped_total",
        "Step times of ranks that were rejected.",
        lambda s: s.telemetry.windows_dropped_total,
    ),
    _counter(
        "facts_dropped_total",
        "Facts of agents that were not believed, or that no database stores.",
        lambda s: s.telemetry.facts_dropped_total,
    ),
    Metric(
        "database_bytes", "Size of the database file; absent where the database is not SQLite.", one(_database_bytes)
    ),
    Metric(
        "database_free_bytes",
        "Free space of the file system of the database; absent where the database is not SQLite.",
        one(_database_free),
    ),
    Metric(
        "certificate_end_timestamp_seconds",
        "When the certificate ends, in seconds since the epoch; absent without TLS.",
        one(_certificate_ends_at),
    ),
)


def _resident_bytes(_: Source) -> float:
    pages = PROC.joinpath("statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _open_files(_: Source) -> float:
    with os.scandir(PROC / "fd") as files:
        return sum(1 for _ in files)


# Not prometheus_client's collector: it needs /proc/stat, which the service does not see (ProcSubset=pid).
PROCESS: tuple[Metric[Source], ...] = (
    _counter("process_cpu_seconds_total", "Processor time of the process.", lambda _: time.process_time()),
    Metric("process_resident_memory_bytes", "Resident memory of the process.", one(_resident_bytes)),
    Metric("process_open_fds", "Open files of the process.", one(_open_files)),
    Metric(
        "process_max_fds",
        "Files that the process may open.",
        one(lambda _: resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    ),
    Metric("process_threads", "Threads of the process.", one(lambda _: threading.active_count())),
    Metric(
        "process_start_time_seconds",
        "When the process started, in seconds since the epoch.",
        one(lambda _: STARTED_AT),
    ),
)

METRIC_GROUPS: dict[str, tuple[Metric[Source], ...]] = {
    "Fleet": FLEET,
    "Nodes": NODES,
    "GPUs": GPU_METRICS,
    "Jobs": JOBS,
    "The control plane itself": SELF,
    "The process": PROCESS,
}
