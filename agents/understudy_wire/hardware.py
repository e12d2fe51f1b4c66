"""The newest sample of a node and its parts, as a report has it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from understudy_wire.values import (
    VERSIONS_PER_NODE_MAX,
    BusId,
    Count,
    Label,
    Line,
    Measure,
    Name,
    PartNumber,
    Reading,
    ShortLine,
    Size,
    Text,
    WireEnum,
)


class GpuStatus(WireEnum):
    """What NVML answered when asked for this GPU."""

    UNKNOWN = "unknown"

    OK = "ok"
    LOST = "lost"  # NVML_ERROR_GPU_IS_LOST (15)
    RESET_REQUIRED = "reset_required"  # NVML_ERROR_RESET_REQUIRED (16)
    MISSING = "missing"  # seen before in this boot, and NVML does not list it any more
    UNREADABLE = "unreadable"  # any other error; `error` says which


RECENT_SECONDS = 600.0
"""Fields `..._recent` count over this time, or since the agent started."""


class Gpu(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU as NVML shows it now. A field that the GPU does not support is None.

    Counters without `recent` count since the driver was loaded or the GPU was reset.
    """

    index: Count
    status: GpuStatus
    uuid: Label = ""
    bus_id: BusId = ""  # "0000:1b:00.0": domain of four hex digits, lower case
    serial: Label = ""
    name: ShortLine = ""
    vbios: Label = ""
    error: Text = ""
    temperature_celsius: Reading | None = None
    power_watts: Measure | None = None
    sm_clock_mhz: Reading | None = None
    sm_clock_max_mhz: Reading | None = None
    clock_event_reasons: Reading | None = None  # bit mask, nvmlClocksEventReason*
    utilization_percent: Reading | None = None
    memory_used_bytes: Reading | None = None
    memory_total_bytes: Reading | None = None
    ecc_uncorrected: Reading | None = None  # volatile, since the driver was loaded
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    recovery_action: Reading | None = None  # NVML field 230; 0 = none
    pcie_generation: Reading | None = None
    pcie_generation_max: Reading | None = None
    pcie_width: Reading | None = None
    pcie_width_max: Reading | None = None
    power_limit_watts: Measure | None = None
    ecc_corrected: Reading | None = None
    remapped_rows_uncorrectable: Reading | None = None
    sram_threshold_exceeded: bool | None = None  # the driver's own flag: this GPU is worn out
    slowed_share_recent: Measure | None = None  # of the samples, with a slowdown that hardware asked for (0 to 1)
    power_violation_seconds: Measure | None = None  # how long clocks were held down by the power limit
    thermal_violation_seconds: Measure | None = None  # ... and by temperature
    pcie_replays: Reading | None = None
    pcie_replays_recent: Reading | None = None
    nvlinks: Reading | None = None  # how many are up
    nvlinks_max: Reading | None = None  # the most that were up at once in this boot
    nvlink_errors: Reading | None = None  # replays, recoveries and CRC errors of all links
    nvlink_errors_recent: Reading | None = None
    fabric_state: Reading | None = None  # nvmlGpuFabricState; 3 = registered
    fabric_status: Reading | None = None  # nvmlReturn of that registration; 0 = success
    fabric_health: Reading | None = None  # bit mask, NVML_GPU_FABRIC_HEALTH_MASK_*
    missing_seconds: Measure = 0.0  # since NVML listed it last
    replaced_uuid: Label = ""  # another GPU that had this bus address earlier in this boot
    board_part_number: PartNumber = ""  # what a spare part is ordered by
    memory_banks_low: Reading | None = None  # banks with few rows left that could replace faulty ones
    memory_banks_spent: Reading | None = None  # ... and with none
    retired_pages: Reading | None = None  # of its memory, which GPUs before Ampere have instead of remapped rows
    retired_pages_pending: bool | None = None  # some wait for a reset
    mig_mode: bool | None = None  # jobs get instances of it


class PortRole(WireEnum):
    UNKNOWN = "unknown"

    TRAINING = "training"  # collectives go over it
    OTHER = "other"  # storage or management
    NVSWITCH = "nvswitch"  # the Fabric Manager reaches the NVSwitches by it


class Port(msgspec.Struct, frozen=True, omit_defaults=True):
    """One port of an InfiniBand or RoCE adapter as /sys/class/infiniband shows it now."""

    device: Name  # "mlx5_0"
    number: Count
    link_layer: Label = ""  # "InfiniBand" or "Ethernet"
    state: Label = ""  # "ACTIVE", "DOWN", "INIT", "ARMED"
    physical_state: Label = ""  # "LinkUp", "Polling", "Disabled", ...
    rate_gbps: Measure | None = None
    rate_gbps_max: Measure | None = None  # the highest seen in this boot
    was_active: bool = False  # in this boot: the loss of a port that was never used does not matter
    down_seconds: Measure | None = None  # since it was last seen active, or first seen; None: it is active
    link_downed: Reading | None = None
    link_downed_recent: Reading | None = None
    symbol_errors: Reading | None = None
    symbol_errors_recent: Reading | None = None
    transport_errors: Reading | None = None  # of RDMA: time-outs, lost packets, retries that were used up
    transport_errors_recent: Reading | None = None
    pause_storms: Reading | None = None  # how often it stopped its peers until its own watchdog ended that
    pause_storms_recent: Reading | None = None
    module_celsius: Measure | None = None  # of the cable or optical module
    module_celsius_max: Measure | None = None  # that the module itself accepts
    module_received_milliwatts: Measure | None = None  # light, of its weakest lane
    module_received_low: bool | None = None  # that is less than the module itself accepts
    role: PortRole = PortRole.TRAINING
    adapter: Label = ""  # board or type of the adapter: "MT_0000000838"

    @property
    def label(self) -> str:
        return f"{self.device}/{self.number}"

    @property
    def is_lost(self) -> bool:
        """It was up in this boot, and is down."""
        return self.was_active and self.down_seconds is not None

    @property
    def is_training_lost(self) -> bool:
        return self.is_lost and self.role is PortRole.TRAINING


NOT_MOUNTED = "not mounted"


class Disk(msgspec.Struct, frozen=True, omit_defaults=True):
    path: Line
    total_bytes: Size
    free_bytes: Size  # to users without privileges
    free_inodes_share: Measure | None = None  # 0 to 1; None: this file system does not count them
    problem: Text = ""  # "read-only", NOT_MOUNTED, or the error of asking; only where it was well earlier in this boot


class Host(msgspec.Struct, frozen=True, omit_defaults=True):
    """The node itself. A field that its kernel does not report is None."""

    memory_total_bytes: Size | None = None
    memory_available_bytes: Size | None = None
    fabric_manager: bool | None = None  # the service runs; False: it ran earlier in this boot; None: not known
    memory_errors_corrected: Reading | None = None  # EDAC, of all memory controllers, since boot
    memory_errors_uncorrected: Reading | None = None
    clock_synchronised: bool | None = None  # by the kernel's own judgement
    clock_error_seconds: Measure | None = None  # the kernel's bound on how far it is off
    cpu_pressure_percent: Measure | None = None  # of the last minute, in which some task waited for a processor
    io_pressure_percent: Measure | None = None  # ... in which all tasks that had work waited for storage
    memory_pressure_percent: Measure | None = None  # ... in which all waited for memory
    disks: list[Disk] = []
    versions: Annotated[dict[Name, Name], Meta(max_length=VERSIONS_PER_NODE_MAX)] = {}  # of kernel, BIOS, firmware


STUCK_PROCESSES_MAX = 16


class Stuck(WireEnum):
    UNKNOWN = "unknown"

    KILLED = "killed"  # or exits, and has not ended
    WAITING = "waiting"  # in the kernel, without a context switch
    ZOMBIE = "zombie"  # its first thread has ended, and others have not
    LEFT = "left"  # in the cgroup of a job of Slurm, and older than each slurmstepd that the job has on this node
    OUTSIDE = "outside"  # computes in no cgroup of a job of Slurm, and no step has started it


class StuckProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that has a GPU open and neither ends nor continues, or that no job of Slurm accounts for."""

    pid: Count
    user_id: Size
    command: Label  # 15 characters of its program's name
    why: Stuck
    seconds: Measure
    where: Label = ""  # function of the kernel in which it waits
    gpus: list[BusId] = []  # that it has open
    job_id: Count | None = None  # of Slurm, whose cgroup it is in
    age_seconds: Measure | None = None  # since it began


class PartKind(WireEnum):
    UNKNOWN = "unknown"
    BOARD = "board"
    CARD = "card"  # a network adapter
    MODULE = "module"  # a cable or optical module


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the node that can be replaced. What the agent may not read is empty."""

    kind: PartKind
    place: Name  # "board", "mlx5_0", "eth0"
    model: Text = ""
    serial: Text = ""
    guid: Text = ""  # of a card, which also those may read that may not read its serial
