"""A node whose hardware a test sets: the agent's own code makes reports of it, at the agent's intervals, on a virtual
clock. NVML, /sys and /proc themselves are left out: `tests/agent` shows how they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from operator import is_
from pathlib import Path
from typing import Any, Generic, TypeVar

from msgspec.structs import replace

from tests import builders as b
from understudy_agent.loop import HOST_SECONDS, PORTS_SECONDS
from understudy_agent.sample.gpu_history import GpuHistory
from understudy_agent.sample.hardware_history import HardwareHistory
from understudy_agent.sample.host import with_history
from understudy_agent.sample.infiniband import PortHistory
from understudy_agent.sample.kernel_record import parse_record
from understudy_agent.sample.nvml import READINGS
from understudy_agent.sample.nvml_sample import NvmlSample
from understudy_wire.facts import Fact, KernelPattern
from understudy_wire.hardware import RECENT_SECONDS, Disk, Gpu, GpuStatus, Host, Port
from understudy_wire.messages import RELEASE, WIRE_VERSION, Report
from understudy_wire.ranks import RankWindow

Read = TypeVar("Read")

NVML_SECONDS = 2.0
"""`nvml.interval_seconds` of the agent's configuration."""

GIB = 2**30
HEALTHY_DRIVER = "570.124.06"
FIELDS_OF = {
    "memory": ("memory_used_bytes", "memory_total_bytes"),
    "ecc": ("ecc_uncorrected", "ecc_corrected"),
    "remapped_rows": ("remapped_rows_uncorrectable", "remapped_rows_pending", "remapped_rows_failed"),
    "memory_banks": ("memory_banks_low", "memory_banks_spent"),
    "fabric": ("fabric_state", "fabric_status", "fabric_health"),
    "power_violation": ("power_violation_seconds",),
    "thermal_violation": ("thermal_violation_seconds",),
    "sram": ("sram_threshold_exceeded",),
    "retired_pages": ("retired_pages", "retired_pages_pending"),
}
"""Readings of several fields, or whose field has another name."""

FIELDS_EVERY: dict[float, list[str]] = {}
"""Seconds → fields of `Gpu` that the agent reads at this interval."""
for _reading in READINGS:
    FIELDS_EVERY.setdefault(_reading.seconds, []).extend(FIELDS_OF.get(_reading.name, (_reading.name,)))


class UnsavedHistory(HardwareHistory):
    """History of one life of an agent."""

    def save(self) -> None:
        pass


class VirtualNode:
    def __init__(
        self,
        name: str,
        number: int,
        folder: Path,
        now: float,
        gpus: int = 8,
        nvml_seconds: float = NVML_SECONDS,
        *,
        reads_at_rest: bool = False,
    ) -> None:
        """What is read once a minute is read at another moment on each node, as on a real fleet.

        Hardware on which nothing has changed shows the same again and again: it is not read, and readings that its
        histories need are made up for when something changes. `reads_at_rest` reads it nevertheless.
        """
        self.name = name
        self._boots = 1
        self.boot_id = f"boot 1 of {name}"
        self.driver = HEALTHY_DRIVER
        self.gpus = [healthy_gpu(name, index) for index in range(gpus)]
        self.nvml_error = ""
        self.nvml_silent_since: float | None = None
        self.ports = [healthy_port(index) for index in range(2)]
        self.host = healthy_host()
        self.mounts = [disk.path for disk in self.host.disks]
        self.host_silent_since: float | None = None
        self.clock_ahead = 0.0
        self.silent = False
        self.stopping = False
        self.agent_started_at = now
        self.patterns: tuple[KernelPattern, ...] = ()
        self.facts: list[Fact] = []
        self.ranks: list[RankWindow] = []
        self._folder = folder
        self._hardware = UnsavedHistory(folder / f"{name}.json", self.boot_id)
        self._gpu_count = gpus
        self._phase = number * 7.0 % 60.0
        self._nvml_seconds = nvml_seconds
        self._lines = 0
        self._sequence = 0
        self._reads_at_rest = reads_at_rest
        self.restart_agent(now)

    def restart_agent(self, now: float) -> None:
        """What it knows of this boot's hardware stays."""
        if self._hardware.seen.boot_id != self.boot_id:
            self._hardware = UnsavedHistory(self._folder / f"{self.name}.json", self.boot_id)
        self._gpu_history = GpuHistory(self._hardware)
        self._port_history = PortHistory(self._hardware, self.boot_id)
        self._read: list[Gpu] = []
        self._read_before: tuple[Gpu, ...] = ()
        self._due: dict[tuple[int, float], float] = {}
        self._known: dict[int, tuple[Gpu, float]] = {}
        self._sample = NvmlSample()
        self._host: Host | None = None
        self._host_read: tuple[Host, list[str]] | None = None
        self._gpus_rest: _Rest[NvmlSample] | None = None
        self._ports_rest: _Rest[list[Port]] | None = None
        self._nvml_due = self._ports_due = self._host_due = now
        self.agent_started_at, self.silent, self._sequence = now, False, 0

    def make_well(self, now: float) -> None:
        """Repairs it; a repair ends with a boot."""
        self.gpus = [healthy_gpu(self.name, index) for index in range(self._gpu_count)]
        self.ports = [healthy_port(index) for index in range(2)]
        self.host = healthy_host()
        self.mounts = [disk.path for disk in self.host.disks]
        self.nvml_error, self.driver, self.clock_ahead = "", HEALTHY_DRIVER, 0.0
        self.nvml_silent_since = self.host_silent_since = None
        self.boot(now)

    def skip_to(self, now: float) -> None:
        """Nothing has changed until then."""
        self._wake_gpus(self._nvml_due)
        self._wake_ports(self._ports_due)
        self._nvml_due = self._ports_due = self._host_due = now

    def boot(self, now: float, driver: str = "") -> None:
        self._boots += 1
        self.boot_id = f"boot {self._boots} of {self.name}"
        self.driver = driver or self.driver
        self._lines = 0
        self.restart_agent(now)

    def set_gpu(self, index: int = 0, **values: Any) -> None:
        self.gpus[index] = replace(self.gpus[index], **values)

    def set_port(self, index: int = 0, **values: Any) -> None:
        self.ports[index] = replace(self.ports[index], **values)

    def set_disk(self, path: str, **values: Any) -> None:
        disks = [replace(disk, **values) if disk.path == path else disk for disk in self.host.disks]
        self.host = replace(self.host, disks=disks)

    def log(self, text: str, now: float) -> None:
        self._lines += 1
        event = parse_record(f"3,{self._lines},{self._lines},-;{text}", self.boot_id, now, self.patterns)
        if event is not None:
            self.facts.append(replace(event, at=now))

    def report(self, now: float) -> Report:
        self._read_all(now)
        self._sequence += 1
        silent = self.nvml_silent_since is not None and now - self.nvml_silent_since
        hangs = self.host_silent_since is not None and now - self.host_silent_since
        made = Report(
            version=WIRE_VERSION,
            release=RELEASE,
            cluster=b.CLUSTER,
            node=self.name,
            boot_id=self.boot_id,
            sequence=self._sequence,
            agent_started_at=self.agent_started_at,
            sent_at=now + self.clock_ahead,
            driver_version=self._sample.driver_version,
            gpus=list(self._sample.gpus),
            ranks=self.ranks,
            facts=self.facts,
            problems=list(self._sample.problems),
            ports=self._port_history.ports,
            host=self._host,
            nvml_silent_seconds=silent if silent > NVML_SILENT_FROM else 0.0,
            host_silent_seconds=hangs if hangs > HOST_SILENT_FROM else 0.0,
            stopping=self.stopping,
        )
        self.facts, self.ranks = [], []
        return made

    def _read_all(self, now: float) -> None:
        while self._nvml_due <= now:
            at = self._nvml_due
            self._nvml_due += self._nvml_seconds
            if self.nvml_silent_since is None:
                self._read_nvml(at)
            else:
                self._wake_gpus(at)
                if at - self.nvml_silent_since > NVML_SILENT_FROM:
                    self._sample = self._gpu_history.unanswered(self._sample, "NVML does not answer")
        while self._ports_due <= now:
            self._read_ports(self._ports_due)
            self._ports_due += self._ports_seconds
        while self._host_due <= now:
            if self.host_silent_since is None and (self._host_read != (self.host, self.mounts) or self._reads_at_rest):
                self._host_read = self.host, list(self.mounts)
                self._host = with_history(self.host, self.mounts, self._hardware)
            self._host_due += HOST_SECONDS

    @property
    def at_rest(self) -> bool:
        return self._gpus_rest is not None and self._ports_rest is not None

    @property
    def _ports_seconds(self) -> float:
        return max(PORTS_SECONDS, self._nvml_seconds / 2)

    def _read_nvml(self, at: float) -> None:
        shown: list[Gpu | Port | str] = [self.driver, self.nvml_error, *self.gpus]
        if self._gpus_rest is not None and self._gpus_rest.shown == shown:
            return
        self._wake_gpus(at)
        before, read = self._read_before, self._nvml(at)
        self._sample = self._gpu_history.add(read, at)
        self._read_before = read.gpus
        alike = len(before) == len(read.gpus) and all(map(is_, before, read.gpus))
        if alike and not self._reads_at_rest and all(map(_gpu_rests, self._sample.gpus)):
            self._gpus_rest = _Rest(read, shown, at)

    def _wake_gpus(self, now: float) -> None:
        """Make up for the readings before `now`. Of counters that stand still, the last is all that counts."""
        rest, self._gpus_rest = self._gpus_rest, None
        left_out = rest.left_out(now, self._nvml_seconds) if rest is not None else []
        if rest is None or not left_out:
            return
        for gpu in rest.read.gpus:
            if gpu.clock_event_reasons is not None:
                for at in left_out[:-1]:
                    self._gpu_history.slowed.add(gpu.uuid, at, False)
        self._sample = self._gpu_history.add(rest.read, left_out[-1])

    def _read_ports(self, at: float) -> None:
        if self._ports_rest is not None and self._ports_rest.shown == self.ports:
            return
        self._wake_ports(at)
        self.facts += self._port_history.add(self.ports, at, at)
        if not self._reads_at_rest and all(map(_port_rests, self._port_history.ports)):
            self._ports_rest = _Rest(list(self.ports), list(self.ports), at)

    def _wake_ports(self, now: float) -> None:
        rest, self._ports_rest = self._ports_rest, None
        left_out = rest.left_out(now, self._ports_seconds) if rest is not None else []
        if rest is not None and left_out:
            self.facts += self._port_history.add(rest.read, left_out[-1], left_out[-1])

    def _nvml(self, now: float) -> NvmlSample:
        if self.nvml_error:
            self._read, self._due, self._known = [], {}, {}
            return NvmlSample(self.driver, error=f"NVML cannot be used: {self.nvml_error}")
        if len(self._read) != len(self.gpus):
            self._read, self._due = [Gpu(index, GpuStatus.OK) for index in range(len(self.gpus))], {}
            self._known = {}
        for index, shown in enumerate(self.gpus):
            self._read[index] = self._gpu(index, shown, now)
        return NvmlSample(self.driver, tuple(self._read))

    def _gpu(self, index: int, shown: Gpu, now: float) -> Gpu:
        """Readings that are due; a GPU that fails is read as a new one afterwards (`sample.nvml`)."""
        known, all_read_at = self._known.get(index, (None, now))
        if known is not shown:
            self._known[index] = (shown, now + max(FIELDS_EVERY) + self._nvml_seconds)
            for key, read_at in self._due.items():
                if key[0] == index and read_at < now:  # as if it had been read all the time
                    every = max(key[1], self._nvml_seconds)
                    self._due[key] = read_at + every * ceil((now - read_at) / every)
        elif now > all_read_at:
            return self._read[index]  # it would be read as it was
        if shown.status is not GpuStatus.OK:
            for key in [key for key in self._due if key[0] == index]:
                del self._due[key]
            return Gpu(index, shown.status, error=shown.error)
        fresh: dict[str, Any] = {}
        for seconds, fields in FIELDS_EVERY.items():
            due = self._due.get((index, seconds))
            if due is None or now >= due:
                fresh |= {field: getattr(shown, field) for field in fields}
                first = due is None and seconds > self._nvml_seconds
                self._due[index, seconds] = now + (seconds - self._phase % seconds if first else seconds)
        before = self._read[index]
        if before.status is not GpuStatus.OK:
            before = Gpu(index, GpuStatus.OK)
        return replace(before, **fresh)


@dataclass(frozen=True)
class _Rest(Generic[Read]):
    """Since `since` each reading was the same, and so was what the history made of it."""

    read: Read
    shown: Sequence[Gpu | Port | str]
    since: float

    def left_out(self, now: float, every: float) -> list[float]:
        """Moments of readings before `now`, as far back as a history looks. The reading at `since` was taken."""
        count = min(round((now - self.since) / every) - 1, ceil(RECENT_SECONDS / every) + 1)
        return [now - every * number for number in range(count, 0, -1)]


def _gpu_rests(gpu: Gpu) -> bool:
    if gpu.status is not GpuStatus.OK or gpu.slowed_share_recent:
        return False
    share_known = gpu.slowed_share_recent is not None or gpu.clock_event_reasons is None
    return share_known and not gpu.pcie_replays_recent and not gpu.nvlink_errors_recent


def _port_rests(port: Port) -> bool:
    recent = (port.link_downed_recent, port.symbol_errors_recent, port.transport_errors_recent)
    return port.down_seconds is None and not any(recent) and not port.pause_storms_recent


NVML_SILENT_FROM = 10.0
HOST_SILENT_FROM = 30.0
"""The agent reports a call that hangs from then on."""


def healthy_gpu(node: str, index: int) -> Gpu:
    """An H100 at work."""
    return Gpu(
        index,
        GpuStatus.OK,
        f"GPU-{node}-{index}",
        f"0000:{index + 1:02x}:00.0",
        serial=f"{node}{index}",
        name="NVIDIA H100 80GB HBM3",
        vbios="96.00.74.00.01",
        temperature_celsius=62,
        power_watts=640.0,
        sm_clock_mhz=1740,
        sm_clock_max_mhz=1980,
        clock_event_reasons=0x4,
        utilization_percent=98,
        memory_used_bytes=70 * GIB,
        memory_total_bytes=80 * GIB,
        ecc_uncorrected=0,
        ecc_corrected=0,
        remapped_rows_pending=False,
        remapped_rows_failed=False,
        remapped_rows_uncorrectable=0,
        memory_banks_low=0,
        memory_banks_spent=0,
        recovery_action=0,
        mig_mode=False,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        power_limit_watts=700.0,
        sram_threshold_exceeded=False,
        pcie_replays=0,
        nvlinks=18,
        nvlink_errors=0,
        fabric_state=3,
        fabric_status=0,
        fabric_health=0,
    )


def healthy_port(index: int) -> Port:
    return Port(
        f"mlx5_{index}",
        1,
        "InfiniBand",
        "ACTIVE",
        "LinkUp",
        rate_gbps=400.0,
        link_downed=0,
        symbol_errors=0,
        transport_errors=0,
        pause_storms=0,
        module_celsius=55.0,
        module_celsius_max=75.0,
    )


def healthy_host() -> Host:
    return Host(
        memory_total_bytes=2048 * GIB,
        memory_available_bytes=1500 * GIB,
        fabric_manager=True,
        memory_errors_corrected=0,
        memory_errors_uncorrected=0,
        clock_synchronised=True,
        clock_error_seconds=0.001,
        cpu_pressure_percent=2.0,
        io_pressure_percent=0.5,
        disks=[Disk(path, 900 * GIB, 500 * GIB, 0.9) for path in ("/", "/var", "/scratch")],
        versions={"kernel": "6.8.0-45", "BIOS": "1.2"},
    )
