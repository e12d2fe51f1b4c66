"""The messages between a node agent and the control plane: their types, version and limits, without behaviour.

The control plane imports this module, `wire_unknown` and `kernel_line`, and nothing else of the agent.

Two kinds of content travel in one `Report`:

* **telemetry** (`gpus`, `ports`, `host`, `ranks`): the newest sample; may be lost, because the next report replaces it;
* **facts** (`facts`): things that happened once. The agent repeats a fact until a report that carried it was
  acknowledged with HTTP 200; the control plane acknowledges only what its database holds, and knows a repeated
  fact by its key. So every fact arrives at least once and counts exactly once.

A rank is a process of any user. The agent takes its user id from the kernel; the control plane believes a rank only
what concerns a job of that user.

Times are seconds since the Unix epoch by the sending node's clock; durations are seconds.
"""

from __future__ import annotations

import re
from enum import StrEnum
from importlib import metadata
from typing import Annotated, Self

import msgspec
from msgspec import Meta

NOT_UNDERSTOOD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding a message may raise, also for strings that are not UTF-8 and for endless nesting."""

RELEASE = metadata.version("slurm-understudy")
"""Release of this package. A report has that of its sender; in those of others the receiver looks for new content."""

WIRE_VERSION = 1
"""Version of every message here. The control plane refuses other versions and names them (HTTP 400).

Releases of one version understand each other in both directions. A release may add to a version: fields
with a default, kinds of facts, values of enums, types of rank messages. The receiver ignores what it does not know,
takes the rest of the message, and counts what it ignored (`wire_unknown.py`). Whatever an older release would misread
needs a new version: a field that is removed, loses its default or changes its meaning or unit.

1   0.3.0
"""

REPORT_BYTES_MAX = 262_144
"""A report above this size is refused (HTTP 413). 8 GPUs, 8 ports and 8 ranks' windows are about 10 KB."""

FACTS_PER_REPORT_MAX = 256
"""An agent with more unacknowledged facts sends them in several reports, oldest first."""

STEPS_PER_WINDOW_MAX = 512
GPUS_PER_NODE_MAX = 64
PARTS_PER_NODE_MAX = 128
PORTS_PER_NODE_MAX = 64
DISKS_PER_NODE_MAX = 16
VERSIONS_PER_NODE_MAX = 16
RANKS_PER_NODE_MAX = 256
KEEPER_JOBS_MAX = 64
KEEPER_SAVES_MAX = 128
KEPT_RANKS_MAX = 1024
FILES_PER_SHARD_MAX = 256
TEXT_CHARACTERS_MAX = 2048
COLLECTIVE_CHARACTERS_MAX = 64
SECTION_CHARACTERS_MAX = 64
STACK_CHARACTERS_MAX = 512
EVIDENCE_CHARACTERS_MAX = 32_768
PROGRAM_CHARACTERS_MAX = 32_768
PROGRAMS_PER_NODE_MAX = 2
PACKED_NODES_CHARACTERS_MAX = 57_344
EPOCH_SECONDS_MAX = 4_102_444_800.0
"""The year 2100."""
WORK_MAX = 1e30
PEERS_MAX = 6
"""With which a rank's transfers are reported: in a pipeline it has two or four."""
LAUNCHER_WAIT_SECONDS_MAX = 20.0


WITHOUT_NUL = r"\A[^\x00]*\Z"
"""No database stores the character NUL."""

PRINTABLE = r"\A[^\x00-\x1f\x7f-\x9f]*\Z"
"""Nothing that a terminal or a log would carry out, and no line ends."""


def in_words(error: Exception) -> str:
    """What is wrong with a message, without regular expressions."""
    text = str(error)
    for pattern, words in (
        (WITHOUT_NUL, "text without the character NUL"),
        (PRINTABLE, "text without control characters"),
    ):
        text = text.replace(f"`str` matching regex {pattern!r}", words)
    return text


def printable(text: str, characters_max: int = TEXT_CHARACTERS_MAX) -> str:
    """As a report may have it: of hardware, files and errors, which contain anything. It is cut; what is not printed,
    half a character too, becomes a space.
    """
    text = text[:characters_max]
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
SIZE_MAX = 2**53
Size = Annotated[int, Meta(ge=0, le=SIZE_MAX)]
"""A thousand of them are below 2**63."""
Signed = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
READING_MAX = 2**62
Reading = Annotated[int, Meta(ge=-READING_MAX, le=READING_MAX)]
"""A whole number as hardware reports it."""
Measure = Annotated[float, Meta(ge=-1e15, le=1e15)]
Time = Annotated[float, Meta(ge=0, le=EPOCH_SECONDS_MAX)]
"""The control plane also compares a fact's time with its own clock."""
Step = Annotated[int, Meta(ge=0, le=2**53)]
WorldSize = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX, pattern=WITHOUT_NUL)]
"""For people. What a terminal would carry out is replaced where it is stored."""
AnyText = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
"""Of hardware, whose facts count whatever they contain: the control plane replaces what cannot be stored."""
Line = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX, pattern=PRINTABLE)]
NAME_CHARACTERS_MAX = 255
ShortLine = Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX, pattern=PRINTABLE)]
UserId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX, pattern=PRINTABLE)]
LABEL_CHARACTERS_MAX = 64
Label = Annotated[str, Meta(max_length=LABEL_CHARACTERS_MAX, pattern=PRINTABLE)]
"""As hardware is known by, such as a serial number."""
BusId = Annotated[str, Meta(max_length=32, pattern=PRINTABLE)]
PART_NUMBER_CHARACTERS_MAX = 80
PartNumber = Annotated[str, Meta(max_length=PART_NUMBER_CHARACTERS_MAX, pattern=PRINTABLE)]
Duration = Annotated[float, Meta(ge=0, le=1e7)]
PackedNodes = Annotated[str, Meta(max_length=PACKED_NODES_CHARACTERS_MAX, pattern=PRINTABLE)]
"""Seats, spares and lost nodes of a gang whose names are too long for a line: three host lists of Slurm in as many
lines, compressed with zlib, base85. The fields of their own are empty then.
"""
RowLabel = Annotated[str, Meta(max_length=32, pattern=PRINTABLE)]
CollectiveName = Annotated[str, Meta(min_length=1, max_length=COLLECTIVE_CHARACTERS_MAX, pattern=PRINTABLE)]
Section = Annotated[str, Meta(max_length=SECTION_CHARACTERS_MAX, pattern=PRINTABLE)]
Stack = Annotated[str, Meta(max_length=STACK_CHARACTERS_MAX, pattern=WITHOUT_NUL)]
PackedProgram = Annotated[str, Meta(min_length=1, max_length=PROGRAM_CHARACTERS_MAX, pattern=PRINTABLE)]
Checksum = Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]


class WireEnum(StrEnum):
    """A value that a newer release added is read as UNKNOWN, which is sent only by an agent that passes it on."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        unknown: Self | None = cls.__members__.get("UNKNOWN")
        return unknown if isinstance(value, str) else None


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
    down_seconds: Measure | None = None  # since it was last seen active; None: it is
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

    @property
    def label(self) -> str:
        return f"{self.device}/{self.number}"


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


class Collective(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last collective that a rank entered. A rank that hangs usually hangs there.

    Ranks that run the same program enter the same collectives in the same order, so a rank whose `sequence` is behind
    its peers' is the one that they wait for.
    """

    name: CollectiveName
    sequence: Size  # counts the collectives that this rank's process entered; the first is 1
    entered_at: Time
    step: Step | None = None  # the step that the rank was in; None between steps
    inside: bool = False  # it had not left it when the rank reported this


Value = Annotated[float, Meta(ge=-1e30, le=1e30)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]


class Training(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank last reported of its training; None: not reported, or no number."""

    step: Step | None = None
    loss: Value | None = None
    grad_norm: Value | None = None
    tokens_per_second: Amount | None = None  # of its replica
    flops_per_token: Amount | None = None  # that the model needs
    compute_step: Step | None = None  # after which its GPU was tested last
    compute_seconds: Amount | None = None  # that the same multiplication took there as on all ranks
    all_reduce_seconds: Amount | None = (
        None  # that the same all-reduce took in its group, such as the ranks of its node
    )


class OrderState(WireEnum):
    """Of an order to save, on its way to all ranks of a gang."""

    UNKNOWN = "unknown"
    PROPOSED = "proposed"  # no rank follows it yet; of a rank: it can follow
    VALID = "valid"  # every rank can follow: they do
    WITHDRAWN = "withdrawn"
    FOLLOWED = "followed"  # of a rank: it has reached the step, and the order counts from there on
    LATE = "late"  # of a rank: it had passed the step before it knew of it


class SaveOrder(msgspec.Struct, frozen=True, omit_defaults=True, tag="save_order"):
    """To all ranks of an attempt: save before `step`, and from there on every so many steps.

    The agent passes it on unchanged to ranks of this attempt and user.
    """

    job_id: Count
    restart_count: Count
    launch: Count
    user_id: UserId
    number: Count  # counts the orders of an attempt, from 1
    step: Step
    state: OrderState
    every: Count = 0  # 0: as the training's own code says
    memory_every: Count = 0  # the same of saves in the memory of its nodes


class ComputeTestOrder(msgspec.Struct, frozen=True, omit_defaults=True, tag="compute_test_order"):
    """To all ranks of an attempt that test their GPUs between steps: do so after `step` as well. A rank that has ended
    this step ignores it.
    """

    job_id: Count
    restart_count: Count
    launch: Count
    user_id: UserId
    step: Step


class JobNote(msgspec.Struct, frozen=True, omit_defaults=True, tag="job_note"):
    """What the owner of a job should know now: rank 0 of this attempt writes it into the job's output, once."""

    job_id: Count
    restart_count: Count
    launch: Count
    user_id: UserId
    key: str  # a note that has this one already was written
    text: str


class SavesFollowed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank knows of the orders to save, where its training asks for them."""

    asked: Step  # the last step for which the training has asked
    number: Count = 0  # of the newest order that it knows; 0: none
    state: OrderState | None = None  # of that order, on this rank
    step: Step = 0  # ... and what it says
    every: Count = 0
    own_every: Count = 0  # what counts without an order; 0: nothing
    in_force: Count | None = None  # number of the order by which the rank saves; 0: by none; None: an older hook
    asks_memory: bool = False  # its training asks when to save in the memory of its nodes, too
    memory_every: Count = 0  # as `every` and `own_every`
    own_memory_every: Count = 0


class Transfers(msgspec.Struct, frozen=True):
    """What a rank spent in transfers with one peer, in each step of a window, waiting for the peer included."""

    peer: Count  # its rank
    seconds: list[float]


class RankWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The training steps that one rank finished since the agent's last report; none where only its last collective is
    reported again.

    Steps are consecutive: the i-th entry of each list belongs to step `first_step + i`.
    `self_seconds` is the step's duration less the time spent waiting in collectives: the rank's own
    time. In a synchronous job the wall time is equal on all ranks; the self time shows the slow one.
    """

    job_id: Count
    restart_count: Count  # SLURM_RESTART_COUNT; it and `launch` identify the attempt of the job
    rank: Count
    world_size: WorldSize
    gpu_index: Count | None = None  # on this node; None where the rank uses no GPU
    user_id: UserId = 0  # of the rank's process, as the kernel reports
    role: Line = ""  # ranks are compared with peers of the same role only, such as a pipeline stage
    first_step: Step = 0
    self_seconds: list[float] = []
    wall_seconds: list[float] = []
    launch: Count = 0  # of the gang within this allocation, as its launcher counts
    collective: Collective | None = None  # None: none was reported
    section: Section | None = None
    """What the training does besides steps, such as "evaluation"; empty: nothing that it names; None: not reported."""
    stack: Stack = ""  # where it stands still, innermost frame first
    dp_rank: Count | None = None  # ranks that have the same one process the same batches; None: not known
    data_seconds: list[float] = []  # waiting for data, of each step; empty: none waited
    work: list[float | None] = []  # how much each step had to do, in a unit of the training's own; empty: not known
    training: Training | None = None
    saves: SavesFollowed | None = None  # None: the training does not ask
    transfers: Annotated[list[Transfers], Meta(max_length=PEERS_MAX)] = []  # with single peers; empty: not known
    ended: bool = False  # its process has ended, or reports no more


KERNEL_PATTERNS_MAX = 64
PATTERN_CHARACTERS_MAX = 128
FORM_CHARACTERS_MAX = 512


class KernelPattern(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines of the kernel log that begin with `prefix` and go on as the regular expression `form` says. Agents of
    releases that know no `form` want each of `contains` somewhere behind the prefix.
    """

    prefix: Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARACTERS_MAX)]
    contains: tuple[Annotated[str, Meta(max_length=PATTERN_CHARACTERS_MAX)], ...] = ()
    form: Annotated[str, Meta(max_length=FORM_CHARACTERS_MAX)] = ""  # empty: the control plane is older; fits no line

    def match(self, text: str) -> re.Match[str] | None:
        """Never searches: users choose names that stand in lines of the kernel. Raises re.error."""
        if not self.form or not text.startswith(self.prefix):
            return None
        return re.compile(self.form, re.DOTALL).match(text, len(self.prefix))


class KernelLogPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which lines of the kernel log an agent passes on, besides those of the driver about GPUs and switches."""

    version: Annotated[str, Meta(min_length=1, max_length=64)]
    patterns: Annotated[tuple[KernelPattern, ...], Meta(max_length=KERNEL_PATTERNS_MAX)]


class KernelEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag="kernel"):
    """A line of the kernel log that the driver wrote about a GPU or switch, or that the control plane asks for by its
    policy. Key: (node, boot_id, sequence).

    The control plane parses the text itself. `xid` and `bus_id` are what the agent parsed: they count where the control
    plane is older than the agent and does not know the form.
    """

    boot_id: str
    sequence: Size  # of the kernel log record within this boot
    at: float
    text: AnyText  # the message as logged, cut at TEXT_CHARACTERS_MAX
    xid: Count | None = None
    bus_id: str = ""


class RankStarted(msgspec.Struct, frozen=True, omit_defaults=True, tag="rank_started"):
    """A rank of a gang connected to its node's agent. Key: (job, restart_count, launch, rank, started_at)."""

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    started_at: Time  # when the rank's process was created, as the kernel reports
    pid: Count
    launch: Count = 0
    user_id: UserId = 0  # of that process, as the kernel reports
    run: ShortLine = ""  # of the run to which the job belongs; empty: not known
    run_folder: Line = ""  # where the run goes by the job's name, in this folder; empty: a user named it
    arguments: Label = ""  # a sum of the program's name and arguments; empty: not known


class TrainingInputs(msgspec.Struct, frozen=True, omit_defaults=True, tag="training_inputs"):
    """What an attempt's training runs with, as its rank 0 names it. What is not known is empty.
    Key: (job, restart_count, launch).
    """

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    code: ShortLine = ""  # a commit and a sum of files, or a sum of the main script
    config: ShortLine = ""  # a sum of the files that the user names, or of the command line's arguments
    data: ShortLine = ""  # a version that the user names
    launch: Count = 0
    user_id: UserId = 0


class FirstStep(msgspec.Struct, frozen=True, omit_defaults=True, tag="first_step"):
    """A rank finished the first step since its process started. Key: (job, restart_count, launch, rank, step, at)."""

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    step: Step
    at: Time
    launch: Count = 0
    user_id: UserId = 0


class ShardFile(msgspec.Struct, frozen=True):
    """A further file of a rank's part of a checkpoint."""

    file: Line
    size_bytes: Size
    checksum: Checksum = ""


class Layout(WireEnum):
    """Who can restore a checkpoint."""

    UNKNOWN = "unknown"
    FIXED = "fixed"  # a gang of as many ranks
    RESHARDABLE = "reshardable"  # a gang of any size


class Tier(WireEnum):
    """What a checkpoint lies on, nearest first: the nearer, the more failures it is lost with."""

    UNKNOWN = "unknown"
    PEER = "peer"  # memory of the gang's nodes
    LOCAL = "local"  # a disk or memory of the node that wrote it: a file system that no other node has
    SHARED = "shared"  # a file system of several nodes
    OBJECT = "object"  # an object store


class CheckpointShard(msgspec.Struct, frozen=True, omit_defaults=True, tag="shard"):
    """One rank wrote its part of a checkpoint. Key: (job, restart_count, launch, step, rank, path).

    A checkpoint is complete when all `world_size` shards of one attempt are in. `path` is what all of its shards
    share: a directory, and `file` the shard within it; or a checkpoint that is one file, and `file` is "." from the
    rank that wrote it. A rank that has no file to name, because others wrote its part, sends an empty `file`.
    """

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    step: Step  # training continues with this step after a restore
    path: Line
    file: Line
    size_bytes: Size
    checksum: Checksum  # that the writer made; empty: none
    at: Time
    launch: Count = 0
    user_id: UserId = 0
    more_files: Annotated[tuple[ShardFile, ...], Meta(max_length=FILES_PER_SHARD_MAX)] = ()
    layout: Layout = Layout.UNKNOWN
    blocked_seconds: Duration | None = None  # by which this rank's training was held up; None: not known
    write_seconds: Duration | None = None  # from its begin until it was written
    tier: Tier = Tier.UNKNOWN
    copy_to: Line = ""  # where it is to be copied by the nodes that wrote it, as `path`; empty: nowhere
    then_copy_to: Line = ""  # where that copy is to be copied in turn


class CheckpointDeleted(msgspec.Struct, frozen=True, omit_defaults=True, tag="checkpoint_deleted"):
    """The training has deleted a checkpoint, or is about to: it is not restored any more."""

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    step: Step
    path: Line
    at: Time
    launch: Count = 0
    user_id: UserId = 0


class RestoreOutcome(WireEnum):
    UNKNOWN = "unknown"
    SEEN = "seen"  # the checkpoint is there
    MISSING = "missing"
    FAILED = "failed"  # it is there, and cannot be restored


class RestoreReport(msgspec.Struct, frozen=True, omit_defaults=True, tag="restore"):
    """What became of the checkpoint that a rank was to restore.

    Key: (job, restart_count, launch, rank, path, outcome).
    """

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    step: Step
    path: Line
    outcome: RestoreOutcome
    at: Time
    error: Text = ""
    launch: Count = 0
    user_id: UserId = 0


class AnomalyKind(WireEnum):
    UNKNOWN = "unknown"
    LOSS_NAN = "loss_nan"
    LOSS_JUMP = "loss_jump"
    GRAD_NORM_NAN = "grad_norm_nan"
    GRAD_NORM_JUMP = "grad_norm_jump"
    RECOMPUTE_DIFFERS = "recompute_differs"


class Anomaly(msgspec.Struct, frozen=True, omit_defaults=True, tag="anomaly"):
    """A rank's loss or gradient norm was NaN or infinite, or jumped to several times the usual value, at this step, or
    the step gave another result when it was computed again; sent again with `until` when it was as before from that
    step on. Key: (job, restart_count, launch, rank, kind, step, until).
    """

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    kind: AnomalyKind
    step: Step
    at: Time
    value: Label = ""  # as the rank printed it: JSON knows no NaN
    usual: Value = 0.0  # the median of what was seen before; 0 while too little was
    until: Step | None = None  # None: it continues
    launch: Count = 0
    user_id: UserId = 0


class JobRefused(msgspec.Struct, frozen=True, omit_defaults=True, tag="job_refused"):
    """Understudy's Prolog kept a job off this node, because the control plane's last verdict was that it is unfit.
    Key: (node, job_id, at).
    """

    job_id: Count
    at: float
    reason: AnyText = ""  # the control plane's reason, as the Prolog read it
    restart_count: Count | None = (
        None  # of the attempt that was kept off; None where Slurm does not give it to its Prolog
    )


class HardwareKind(WireEnum):
    """What a `HardwareEvent` reports. `number` is given with each in brackets."""

    UNKNOWN = "unknown"

    PORT_OUTAGE = "port_outage"  # a port of the fabric was down for `seconds` and came back [link_downed since]; 0:
    # it did so between two samples, as link_downed shows
    NVML_XID = "nvml_xid"  # an Xid that NVML reported and the kernel log did not [Xid]
    NVML_UNAVAILABLE = "nvml_unavailable"  # the GPU became unavailable
    NVML_RECOVERY_ACTION = "nvml_recovery_action"  # the driver's recovery action changed [action]
    NVML_MEMORY_STORM = "nvml_memory_storm"  # a storm of corrected memory errors
    NVML_PAGE_RETIREMENT = "nvml_page_retirement"  # a page was retired, or waits for it
    NVML_POISON = "nvml_poison"  # poisoned memory


class HardwareEvent(msgspec.Struct, frozen=True, omit_defaults=True, tag="hardware"):
    """Something happened to a part of this node, and the kernel log did not report it.
    Key: (node, boot_id, kind, part, at).
    """

    boot_id: str
    at: float
    kind: HardwareKind
    part: AnyText  # a GPU's bus address, or a port as "mlx5_0/1"
    number: Size | None = None
    seconds: float = 0.0
    text: AnyText = ""


class LaunchStarted(msgspec.Struct, frozen=True, omit_defaults=True, tag="launch_started"):
    """A launcher starts its gang within its allocation. Key: (job, restart_count, launch, at).

    The launcher writes this as JSON, the agent adds `user_id`, the control plane stores it.
    """

    job_id: Count
    restart_count: Count
    launch: Count
    seats: tuple[Name, ...]  # the gang's nodes by node rank
    spares: tuple[Name, ...]
    at: Time
    user_id: UserId = 0  # of the launcher's process, as the kernel reports
    lost: tuple[Name, ...] = ()  # nodes of the allocation that it does not use any more
    nodes_packed: PackedNodes = ""


class LaunchCause(StrEnum):
    """Why a launch was over, as its launcher sees it."""

    @classmethod
    def _missing_(cls, value: object) -> LaunchCause | None:
        """A cause that a newer release added blames no node."""
        return cls.PROGRAM if isinstance(value, str) else None

    DONE = "done"  # every rank ended well
    STOPPED = "stopped"  # the job was stopping
    HARDWARE = "hardware"  # nodes were bad: verdicts, nodes that are gone or stuck
    BLACK_HOLE = "black_hole"  # ranks failed first on the same node again, while others ran well
    PROGRAM = "program"  # a rank failed, and no node is blamed
    HANG = "hang"
    OUTSIDE = "outside"  # a user or administrator ended its step in Slurm


class LaunchEnded(msgspec.Struct, frozen=True, omit_defaults=True, tag="launch_ended"):
    """A launch is over, and what its launcher decided. Key: (job, restart_count, launch, at)."""

    job_id: Count
    restart_count: Count
    launch: Count
    table_row: RowLabel  # of the launcher's own table: docs/launcher.md
    reason: Text
    at: Time
    progressed: bool = False  # beyond what any launch before it had reached
    counted: bool = False  # it cost a launch of the budget for launches without progress
    cause: LaunchCause = LaunchCause.PROGRAM
    failed_node: ShortLine = ""  # where a rank failed first; empty: no rank failed
    rank: Count | None = None
    status: Signed | None = None  # of that rank: its exit code, or a signal's number below zero
    blamed: tuple[Name, ...] = ()  # nodes that the launcher does not use any more from now on
    user_id: UserId = 0


class EvidenceKind(StrEnum):
    """Of what a launch's evidence is."""

    @classmethod
    def _missing_(cls, value: object) -> EvidenceKind | None:
        return cls.OTHER if isinstance(value, str) else None

    HANG = "hang"  # what the ranks of a gang that hung were doing before they were ended
    CRASH = "crash"  # what ranks that failed wrote last
    OTHER = "other"


class LaunchEvidence(msgspec.Struct, frozen=True, omit_defaults=True, tag="launch_evidence"):
    """What the ranks of a launch showed before they were ended. Key: (job, restart_count, launch, kind)."""

    job_id: Count
    restart_count: Count
    launch: Count
    kind: EvidenceKind
    at: Time
    summary: Text
    text: Annotated[str, Meta(max_length=EVIDENCE_CHARACTERS_MAX, pattern=WITHOUT_NUL)]
    user_id: UserId = 0


JobFact = (
    RankStarted
    | TrainingInputs
    | FirstStep
    | CheckpointShard
    | CheckpointDeleted
    | Anomaly
    | RestoreReport
    | LaunchStarted
    | LaunchEnded
    | LaunchEvidence
)
"""Facts that processes of a job report about it."""

RankFact = RankStarted | TrainingInputs | FirstStep | CheckpointShard | CheckpointDeleted | Anomaly | RestoreReport

Fact = KernelEvent | HardwareEvent | JobRefused | JobFact


class FileOutcome(WireEnum):
    SAMPLED = "sampled"  # sizes, structure and samples are as they should be
    VERIFIED = "verified"  # every byte is what was written
    READ = "read"  # every byte can be read, and there is nothing to compare it with
    SUSPECT = "suspect"  # written again after it was announced
    BAD = "bad"
    LOST = "lost"  # not there, while its folder is
    UNSEEN = "unseen"  # the owner cannot read, copy or delete it on this node
    COPIED = "copied"  # every byte, and it is what was written, as far as checksums say
    DELETABLE = "deletable"  # its files are what was announced, and not pinned
    DELETED = "deleted"
    WARMED = "warmed"  # files of a program are in the page cache, as many as there are
    UNKNOWN = "unknown"


class FileResult(msgspec.Struct, frozen=True, omit_defaults=True):
    number: Size  # of the task
    outcome: FileOutcome
    why: Text = ""


class ProgramFiles(msgspec.Struct, frozen=True):
    """Shared objects and compiled Python modules that a rank of a job has read to start, as its hook packed them."""

    job_id: Count
    restart_count: Count
    user_id: UserId  # from the kernel
    packed: PackedProgram


class KeptJob(msgspec.Struct, frozen=True):
    """A job of which a node's keeper holds parts, as the processes that gave them name it."""

    job_id: Count
    user_id: UserId  # of these processes, from the kernel


class KeptSave(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node's keeper holds of one save of a job in memory."""

    job_id: Count
    user_id: UserId
    restart_count: Count
    launch: Count
    step: Step  # training continues with this step after a restore
    world_size: WorldSize
    ranks: Annotated[list[Count], Meta(max_length=KEPT_RANKS_MAX)]  # whose parts are here
    size_bytes: Size
    at: Time  # of the newest part
    restored: Count = 0  # attempts that went on from it, as far as this keeper knows
    blocked_seconds: Duration | None = None  # by which the training of a rank of this node was held up


class Keeper(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the node's keeper holds. Counts are since its start."""

    bytes_held: Size
    bytes_max: Size
    bytes_taken: Size = 0  # from ranks of this node
    bytes_received: Size = 0  # from other keepers
    bytes_sent: Size = 0  # to ranks and other keepers
    refused: Size = 0  # parts
    jobs: Annotated[list[KeptJob], Meta(max_length=KEEPER_JOBS_MAX)] = []
    saves: Annotated[list[KeptSave], Meta(max_length=KEEPER_SAVES_MAX)] = []


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent sends: about once a second, and at once when it has a new fact."""

    version: int
    cluster: Name
    node: Name
    boot_id: Name
    sequence: Size  # counts up within one life of the agent process
    agent_started_at: Time
    sent_at: Time
    driver_version: Label = ""
    gpus: list[Gpu] = []
    ranks: list[RankWindow] = []
    facts: list[Fact] = []
    problems: list[Text] = []  # what the agent could not read, as text
    ports: list[Port] = []
    host: Host | None = None
    nvml_silent_seconds: Measure = 0.0  # since the call that NVML has not answered; 0: it answers in time
    nvml_unkillable: bool = False  # the process that asks NVML was killed and does not end: it hangs inside the kernel
    ports_silent_seconds: Measure = 0.0  # since reading the ports began; they are left out meanwhile. 0: they are read
    host_silent_seconds: Measure = 0.0  # the same of the host
    release: Text = ""  # of the agent
    stopping: bool = False  # the last report before the agent stops, as for an upgrade
    kernel_log_policy: Text | None = None  # version of the policy it follows; empty: none yet; None: it knows of none
    file_result: FileResult | None = None  # of the last task on files that it was given
    keeper: Keeper | None = None  # None: there is none
    parts: Annotated[list[Part], Meta(max_length=PARTS_PER_NODE_MAX)] = []  # every few minutes; else none
    programs: Annotated[list[ProgramFiles], Meta(max_length=PROGRAMS_PER_NODE_MAX)] | None = None
    """Of the ranks 0 on this node. None: as they were reported before; all are reported every few minutes."""


class AnnouncedFile(msgspec.Struct, frozen=True):
    file: str  # "." is the checkpoint's path itself
    size_bytes: int
    checksum: str
    at: float  # when it was announced


class ReadFiles(msgspec.Struct, frozen=True, tag="read"):
    """Read a checkpoint back, or what one node wrote of it."""

    number: int
    user_id: int  # each task is carried out with the rights of this user alone
    path: str
    files: list[AnnouncedFile]
    bytes_per_second: float
    whole: bool  # every byte; else sizes, structure and samples
    look_for_nan: bool = False  # in tensors of safetensors and .distcp files, where every byte is read


class CopyFiles(msgspec.Struct, frozen=True, tag="copy"):
    number: int
    user_id: int
    path: str
    files: list[AnnouncedFile]
    bytes_per_second: float
    copy_to: str  # in place of `path`; s3://… in an object store


class DeleteFiles(msgspec.Struct, frozen=True, tag="delete"):
    number: int
    user_id: int
    path: str
    files: list[AnnouncedFile]
    only_look: bool  # whether all of them can be deleted


class WarmFiles(msgspec.Struct, frozen=True, tag="warm"):
    """Read the files of a user's program into the page cache."""

    number: int
    user_id: int
    program: str  # as in ProgramFiles
    bytes_max: int
    bytes_per_second: float


FileTask = ReadFiles | CopyFiles | DeleteFiles | WarmFiles


class Acknowledgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to a report: all of its facts are in the database, but for those named in `dropped`."""

    facts: int
    dropped: list[str] = []  # what was not accepted, and why
    unfit: str = ""  # why no new job may start on this node now; empty: no objection
    kernel_log: KernelLogPolicy | None = None  # what the agent follows from now on; None: what it has stays
    file_task: FileTask | None = None  # None: there is nothing to do
    save_orders: list[SaveOrder] = []  # that ranks of this node do not know yet, as it was reported
    jobs_over: list[KeptJob] = []  # of those whose parts its keeper holds: they have ended for good
    compute_tests: list[ComputeTestOrder] = []  # for ranks of this node that have not ended the step
    job_notes: list[JobNote] = []  # for ranks 0 on this node, again with each answer


class RestorePoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to `GET /v1/restore-point`: the checkpoint with which this attempt of the job continues.

    `path` is empty and `step` 0 when there is no complete checkpoint: start from the beginning. All ranks of an
    attempt get the same answer, however often and whenever they ask.
    """

    job_id: Count
    restart_count: Count
    step: Step
    path: str
    launch: Count = 0
    managed: bool = True  # False: the job is not managed; there is nothing to restore, and nothing was decided
    look: bool = False  # report whether the checkpoint is there, then ask again
    look_file: str = ""  # in `path`; empty: `path` itself
    look_sizes: list[ShardFile] = []  # files in `path` ("." is `path` itself), whose sizes are compared by who looks
    nearer_path: str = ""  # a copy of the same checkpoint that this rank has on its own node, if it sees it there
    nearer_file: str = ""  # in `nearer_path`: this rank's part
    files: list[str] = []  # in an object store: what this rank is to fetch; none: all of it
    line: str = ""  # for the job's output, of its rank 0: what it continues, or why it begins


class LauncherPhase(WireEnum):
    UNKNOWN = "unknown"
    SEATING = "seating"
    RUNNING = "running"
    ENDING = "ending"
    WAITING = "waiting"  # for a node, or for the job to be requeued
    LEAVING = "leaving"
    DONE = "done"


class LauncherState(msgspec.Struct, frozen=True, omit_defaults=True, tag="launcher"):
    """A gang as its launcher reports it, and reports it again whenever it has changed.

    The launcher writes this as JSON (`understudy_launcher.messages`: it needs nothing but Python), the agent passes it
    on unchanged in a `LauncherReport`, the control plane keeps it.
    """

    job_id: Count
    restart_count: Count
    launch: Count
    phase: LauncherPhase
    seats: tuple[Name, ...]  # by node rank; before 0.3.0 never empty
    spares: tuple[Name, ...] = ()
    lost: tuple[Name, ...] = ()  # nodes of the allocation that it does not use any more
    nodes_min: Count = 1  # it continues with no fewer
    group_sizes: Text = ""  # of the ranks' groups, as the command's own options name them: "tp=8 pp=4", also cp and ep
    ranks_per_node: Count = 0  # 0: not known yet
    unwell: dict[Name, Text] = {}  # nodes whose self-check failed before the first launch, and why
    nodes_packed: PackedNodes = ""
    ended_well: bool = False  # every rank of the last launch has, and nothing more is started: the job is done
    asks_requeue: bool = False  # it has too few nodes, waits for the job to be requeued, and ends where it is not


class LauncherReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """`POST /v1/launchers`, a long poll that an agent holds for each launcher on its node.

    The control plane answers at once where the orders are others than the `known` ones, else after `wait_seconds`.
    """

    version: int
    cluster: Name
    node: Name
    user_id: UserId  # of the launcher's process, as the kernel reports
    state: LauncherState
    known: Text = ""  # `orders_version` of the orders that the launcher has; empty: none
    wait_seconds: Annotated[float, Meta(ge=0, le=LAUNCHER_WAIT_SECONDS_MAX)] = 0.0


class Restart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The launcher must restart the gang, although no rank of it has ended."""

    launch: Count  # this launch, or an earlier one, must end
    reason: str
    without: tuple[str, ...] = ()  # nodes that a spare replaces, where there is one; they are not bad


class RankLayout(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a gang whose groups of ranks need several nodes: what the launcher needs to keep each within a domain."""

    group_sizes: str = ""  # as in `LauncherState`, or as the job's comment names them
    domains: dict[str, tuple[str, ...]] = {}  # of each good node of the allocation, as "rack r1"


class LauncherOrders(msgspec.Struct, frozen=True, omit_defaults=True):
    """All orders that are valid now. A node that is not in `bad` any more can be used again."""

    bad: dict[str, str] = {}  # node → why nothing of the gang may run there
    restart: Restart | None = None
    places: dict[str, str] = {}  # node that the gang leaves → the spare that costs the gang least in its place
    layout: RankLayout | None = None  # None: the order of ranks makes no difference, or is not known to make one
    may_shrink: bool = False  # without a spare of its own it may continue with fewer nodes, if its job allows that


class EarlierAllocations(msgspec.Struct, frozen=True, omit_defaults=True):
    """What earlier allocations of a job have used up and reached."""

    launches_without_progress: Count = 0  # since the job's last progress
    best_step: Step | None = None
    newcomers: tuple[Name, ...] = ()  # nodes of this one on which it never finished a step; none: not known


class LauncherAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="answer"):
    """The control plane's answer to a `LauncherReport`, which the agent passes on to the launcher unchanged."""

    orders_version: str = ""
    orders: LauncherOrders | None = None  # None: the earlier orders stay valid
    earlier: EarlierAllocations = EarlierAllocations()
    launch: Count = 0
    step: Step | None = None  # the furthest that this launch has finished, as this allocation counts; None: not known
    restore_step: Step = 0  # of the newest good checkpoint, for launches while no control plane answers
    restore_path: str = ""  # empty: there is none
    restore_ranks: Count = 0  # a gang of no other size can restore it; 0: any can, or it is not known
    count_from: Step = 0  # what has to be taken off `step` for the number that the program gave it


CREDENTIAL_CHARACTERS_MAX = 4096


class Challenge(msgspec.Struct, frozen=True):
    """The answer to `GET /v1/challenge`: what the agent's next credential must contain."""

    challenge: Annotated[str, Meta(min_length=1, max_length=256)]


class NodeClaim(msgspec.Struct, frozen=True, tag="understudy node token"):
    """What the agent signs with MUNGE, as root. The tag keeps credentials of other programs out."""

    cluster: Name
    node: Name
    challenge: Annotated[str, Meta(min_length=1, max_length=256)]


class NodeTokenRequest(msgspec.Struct, frozen=True):
    """`POST /v1/node-token`: `credential` is MUNGE's for this claim."""

    version: int
    claim: NodeClaim
    credential: Annotated[str, Meta(min_length=1, max_length=CREDENTIAL_CHARACTERS_MAX)]


class NodeToken(msgspec.Struct, frozen=True):
    """The agent's token for the next `seconds`. It speaks for its node alone."""

    token: Annotated[str, Meta(min_length=1, max_length=256)]
    seconds: float


class Refusal(msgspec.Struct, frozen=True):
    """Body of every answer of 4xx and 5xx, by RFC 9457: `detail` is what failed and why, `hint` what to do."""

    title: str
    status: int
    code: str  # one of `understudy_controlplane.ingest.answers.ErrorCode`; a newer release may know more
    detail: str
    hint: str = ""
    type: str = "about:blank"
