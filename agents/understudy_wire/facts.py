"""Facts: what happened once. The agent repeats a fact until the control plane has stored it."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from understudy_wire.ranks import Value
from understudy_wire.values import (
    WITHOUT_NUL,
    AnyText,
    Checksum,
    Count,
    Duration,
    Label,
    Line,
    Name,
    PackedNodes,
    RowLabel,
    ShortLine,
    Signed,
    Size,
    Step,
    Text,
    Time,
    UserId,
    WireEnum,
    WorldSize,
)

FILES_PER_SHARD_MAX = 256
EVIDENCE_CHARACTERS_MAX = 32_768
KERNEL_PATTERNS_MAX = 64
PREFIXES_MAX = 32
PREFIX_CHARACTERS_MAX = 128
FORM_CHARACTERS_MAX = 4096


class KernelPattern(msgspec.Struct, frozen=True):
    """Lines of the kernel log that the regular expression `form` fits from their first character on. Each begins with
    one of `prefixes`, so that most lines need no expression.
    """

    prefixes: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=PREFIX_CHARACTERS_MAX)], ...],
        Meta(min_length=1, max_length=PREFIXES_MAX),
    ]
    form: Annotated[str, Meta(min_length=1, max_length=FORM_CHARACTERS_MAX)]

    def match(self, text: str) -> re.Match[str] | None:
        """Never searches: users choose names that stand in lines of the kernel. Raises re.error."""
        return re.compile(self.form, re.DOTALL).match(text) if text.startswith(self.prefixes) else None


class KernelLogPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines of the kernel log that an agent passes on, besides those of the driver about GPUs and switches."""

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


class OfRank(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rank of a gang that a fact is about."""

    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize


class OfLaunch(msgspec.Struct, frozen=True, omit_defaults=True):
    """Launch of a gang that a fact is about."""

    job_id: Count
    restart_count: Count
    launch: Count


class RankStarted(OfRank, frozen=True, omit_defaults=True, tag="rank_started"):
    """A rank of a gang connected to its node's agent. Key: (job, restart_count, launch, rank, started_at)."""

    started_at: Time  # when the rank's process was created, as the kernel reports
    pid: Count
    launch: Count = 0
    user_id: UserId = 0  # of that process, as the kernel reports
    run: ShortLine = ""  # of the run to which the job belongs; empty: not known
    run_folder: Line = ""  # where the run goes by the job's name, in this folder; empty: a user named it
    arguments: Label = ""  # a sum of the program's name and arguments; empty: not known


class TrainingInputs(OfRank, frozen=True, omit_defaults=True, tag="training_inputs"):
    """What an attempt's training runs with, as its rank 0 names it. What is not known is empty.
    Key: (job, restart_count, launch).
    """

    code: ShortLine = ""  # a commit and a sum of files, or a sum of the main script
    config: ShortLine = ""  # a sum of the files that the user names, or of the command line's arguments
    data: ShortLine = ""  # a version that the user names
    launch: Count = 0
    user_id: UserId = 0


class FirstStep(OfRank, frozen=True, omit_defaults=True, tag="first_step"):
    """A rank finished the first step since its process started. Key: (job, restart_count, launch, rank, step, at)."""

    step: Step
    at: Time
    launch: Count = 0
    user_id: UserId = 0
    communicator_at: Time | None = None  # when its process groups were first seen; None: not known


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


class CheckpointShard(OfRank, frozen=True, omit_defaults=True, tag="shard"):
    """One rank wrote its part of a checkpoint. Key: (job, restart_count, launch, step, rank, path).

    A checkpoint is complete when all `world_size` shards of one attempt are in. `path` is what all of its shards
    share: a directory, and `file` the shard within it; or a checkpoint that is one file, and `file` is "." from the
    rank that wrote it. A rank that has no file to name, because others wrote its part, sends an empty `file`.
    """

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


class CheckpointDeleted(OfRank, frozen=True, omit_defaults=True, tag="checkpoint_deleted"):
    """The training has deleted a checkpoint, or is about to: it is not restored any more."""

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


class RestoreReport(OfRank, frozen=True, omit_defaults=True, tag="restore"):
    """What became of the checkpoint that a rank was to restore.

    Key: (job, restart_count, launch, rank, path, outcome).
    """

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


class Anomaly(OfRank, frozen=True, omit_defaults=True, tag="anomaly"):
    """A rank's loss or gradient norm was NaN or infinite, or jumped to several times the usual value, at this step, or
    the step gave another result when it was computed again; sent again with `until` when it was as before from that
    step on. Key: (job, restart_count, launch, rank, kind, step, until).
    """

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


class LaunchStarted(OfLaunch, frozen=True, omit_defaults=True, tag="launch_started"):
    """A launcher starts its gang within its allocation. Key: (job, restart_count, launch, at).

    The launcher writes this as JSON, the agent adds `user_id`, the control plane stores it.
    """

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


class LaunchEnded(OfLaunch, frozen=True, omit_defaults=True, tag="launch_ended"):
    """A launch is over, and what its launcher decided. Key: (job, restart_count, launch, at)."""

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
    """Reason of a launch's evidence."""

    @classmethod
    def _missing_(cls, value: object) -> EvidenceKind | None:
        return cls.OTHER if isinstance(value, str) else None

    HANG = "hang"  # what the ranks of a gang that hung were doing before they were ended
    CRASH = "crash"  # what ranks that failed wrote last
    OTHER = "other"


class LaunchEvidence(OfLaunch, frozen=True, omit_defaults=True, tag="launch_evidence"):
    """What the ranks of a launch showed before they were ended. Key: (job, restart_count, launch, kind)."""

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
