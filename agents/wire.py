"""THE SHARED WORDS: everything that travels between a node agent and the control plane.

Belongs here: the message types, their version, their limits. Must not: behaviour.
The control plane imports this module and nothing else of `agents`.

Two kinds of content travel in one `Report`:

* **telemetry** (`gpus`, `ranks`): the newest picture; may be lost, the next report replaces it;
* **facts** (`facts`): things that happened once. The agent repeats a fact until a report that carried it was
  acknowledged with HTTP 200; the control plane acknowledges only what its database holds, and knows a repeated
  fact by its key. So every fact arrives at least once and counts exactly once.

A rank is a process of any user. The agent takes its user id from the kernel; the control plane believes a rank only
what concerns a job of that user.

Times are seconds since the Unix epoch by the sending node's clock; durations are seconds.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

WIRE_VERSION = 1
"""Version of every message here. The control plane refuses others by name (HTTP 400)."""

REPORT_BYTES_MAX = 262_144
"""A report above this size is refused (HTTP 413). 8 GPUs with 8 ranks' windows are about 4 KB."""

FACTS_PER_REPORT_MAX = 256
"""An agent with more unacknowledged facts sends them in several reports, oldest first."""

STEPS_PER_WINDOW_MAX = 512
GPUS_PER_NODE_MAX = 64
RANKS_PER_NODE_MAX = 256
TEXT_CHARACTERS_MAX = 2048
COLLECTIVE_CHARACTERS_MAX = 64


Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
World = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
UserId = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]


class GpuStatus(StrEnum):
    """What NVML answered when asked for this GPU."""

    OK = "ok"
    LOST = "lost"  # NVML_ERROR_GPU_IS_LOST (15)
    RESET_REQUIRED = "reset_required"  # NVML_ERROR_RESET_REQUIRED (16)
    UNREADABLE = "unreadable"  # any other error; `error` says which


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One GPU as NVML shows it now. A field that the GPU does not support is None."""

    index: int
    status: GpuStatus
    uuid: str = ""
    bus_id: str = ""  # "0000:1b:00.0": domain of four hex digits, lower case
    serial: str = ""
    name: str = ""
    error: str = ""
    temperature_celsius: int | None = None
    power_watts: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    clock_event_reasons: int | None = None  # bit mask, nvmlClocksEventReason*
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    ecc_uncorrected: int | None = None  # volatile, since the driver was loaded
    remapped_rows_pending: bool | None = None
    remapped_rows_failed: bool | None = None
    recovery_action: int | None = None  # NVML field 230; 0 = none
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None


class Collective(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The last collective that a rank entered: what it hangs in, if it hangs.

    Ranks that run the same program enter the same collectives in the same order, so a rank whose `sequence` is behind
    its peers' is the one that they wait for.
    """

    name: Annotated[str, Meta(min_length=1, max_length=COLLECTIVE_CHARACTERS_MAX)]
    sequence: Size  # counts the collectives that this rank's process entered; the first is 1
    entered_at: Annotated[float, Meta(ge=0, le=1e11)]
    step: Step | None = None  # the step that the rank was in; None between steps
    inside: bool = False  # it had not come out when this was told


class RankWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The training steps that one rank finished since the agent's last report: none, where it is only told again in
    which collective the rank is.

    Steps are consecutive: the i-th entry of each list belongs to step `first_step + i`.
    `self_seconds` is the step's duration less the time spent waiting in collectives: what this rank itself
    took. In a synchronous job the wall time is equal on all ranks and names nobody; self time does.
    """

    job_id: Count
    restart_count: Count  # SLURM_RESTART_COUNT; with `launch` it says which attempt of the job
    rank: Count
    world_size: World
    gpu_index: int | None = None  # on this node; None where the rank uses no GPU
    user_id: UserId = 0  # of the rank's process, as the kernel tells
    role: Text = ""  # ranks are compared with peers of the same role only, such as a pipeline stage
    first_step: Step = 0
    self_seconds: list[float] = []
    wall_seconds: list[float] = []
    launch: Count = 0  # of the gang within this allocation, as its launcher counts
    collective: Collective | None = None  # None: none was told


class KernelEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="kernel"):
    """A line of the kernel log that the driver wrote about a GPU. Key: (node, boot_id, sequence)."""

    boot_id: str
    sequence: Size  # of the kernel log record within this boot
    at: float
    text: Text  # the message as logged, cut at TEXT_CHARACTERS_MAX
    xid: int | None = None
    bus_id: str = ""


class RankStarted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="rank_started"):
    """A rank of a gang said hello to its node's agent. Key: (job, restart_count, launch, rank, started_at)."""

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: World
    started_at: float  # when the rank's process was created, as the kernel tells
    pid: Count
    launch: Count = 0
    user_id: UserId = 0  # of that process, as the kernel tells


class FirstStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="first_step"):
    """A rank finished the first step since its process started. Key: (job, restart_count, launch, rank, step, at)."""

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: World
    step: Step
    at: float
    launch: Count = 0
    user_id: UserId = 0


class CheckpointShard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="shard"):
    """One rank wrote its part of a checkpoint. Key: (job, restart_count, launch, step, rank, path).

    A checkpoint is complete when all `world_size` shards of one attempt are in. `path` is what all of its shards
    share: a directory, and `file` the shard within it; or a checkpoint that is one file, and `file` is "." from the
    rank that wrote it. A rank that has no file to name, because others wrote its part, says so with an empty `file`.
    """

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: World
    step: Step  # training continues with this step after a restore
    path: Text
    file: Text
    size_bytes: Size
    sha256: str
    at: float
    launch: Count = 0
    user_id: UserId = 0


class JobRefused(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="job_refused"):
    """Our Prolog kept a job off this node, because the control plane's last word was that it is unfit.
    Key: (node, job_id, at).
    """

    job_id: Count
    at: float
    reason: Text = ""  # the control plane's own words, as the Prolog read them
    restart_count: Count | None = None  # of the attempt that was kept off; None where Slurm does not tell its Prolog


JobFact = RankStarted | FirstStep | CheckpointShard
"""Facts that ranks tell of their job."""

Fact = KernelEvent | JobRefused | JobFact


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an agent sends: about once a second, and at once when it has a new fact."""

    version: int
    cluster: Name
    node: Name
    boot_id: Name
    sequence: Size  # counts up within one life of the agent process
    agent_started_at: float
    sent_at: float
    driver_version: str = ""
    gpus: list[Gpu] = []
    ranks: list[RankWindow] = []
    facts: list[Fact] = []
    problems: list[str] = []  # what the agent could not read, in words


class Acknowledgement(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to a report: all of its facts are in the database, but for those named in `dropped`."""

    facts: int
    dropped: list[str] = []  # what was not believed, and why
    unfit: str = ""  # why no new job may start on this node now; empty: no objection


class RestorePoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """Answer to `GET /v1/restore-point`: where this attempt of the job goes on.

    `path` is empty and `step` 0 when there is no complete checkpoint: start from the beginning. All ranks of an
    attempt get the same answer, however often and whenever they ask.
    """

    job_id: Count
    restart_count: Count
    step: Step
    path: str
    launch: Count = 0
    managed: bool = True  # False: the job did not ask for us; nothing is to be restored, and nothing was settled


class Refusal(msgspec.Struct, frozen=True):
    """Body of every 4xx answer: what happened, and what to do."""

    error: str
    hint: str = ""
