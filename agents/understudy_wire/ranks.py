"""Reports of the ranks of a node, and what the control plane sends them."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from understudy_wire.values import (
    CollectiveName,
    Count,
    Duration,
    Label,
    Line,
    PackedProgram,
    Section,
    Size,
    Stack,
    Step,
    Time,
    UserId,
    WireEnum,
    WorldSize,
)

STEPS_PER_WINDOW_MAX = 512
RANKS_PER_NODE_MAX = 256

PEERS_MAX = 6
"""Most peers with which a rank's transfers are reported: in a pipeline it has two or four."""


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
    """State of an order to save, on its way to all ranks of a gang."""

    UNKNOWN = "unknown"
    PROPOSED = "proposed"  # no rank follows it yet; of a rank: it can follow
    VALID = "valid"  # every rank can follow: they do
    WITHDRAWN = "withdrawn"
    FOLLOWED = "followed"  # of a rank: it has reached the step, and the order counts from there on
    LATE = "late"  # of a rank: it had passed the step before it knew of it


class OfAttempt(msgspec.Struct, frozen=True, omit_defaults=True):
    """Attempt of a user's job. The agent passes an order on to its ranks alone."""

    job_id: Count
    restart_count: Count
    launch: Count
    user_id: UserId


class SaveOrder(OfAttempt, frozen=True, omit_defaults=True, tag="save_order"):
    """All ranks of an attempt save before `step`, and from there on every so many steps. The agent passes it on
    unchanged to ranks of this attempt and user.
    """

    number: Count  # counts the orders of an attempt, from 1
    step: Step
    state: OrderState
    every: Count = 0  # 0: as the training's own code says
    memory_every: Count = 0  # the same of saves in the memory of its nodes


class ComputeTestOrder(OfAttempt, frozen=True, omit_defaults=True, tag="compute_test_order"):
    """All ranks of an attempt that test their GPUs between steps do so after `step` as well. A rank that has ended this
    step ignores it.
    """

    step: Step


class JobNote(OfAttempt, frozen=True, omit_defaults=True, tag="job_note"):
    """What the owner of a job should know now: rank 0 of this attempt writes it into the job's output, once."""

    key: str  # a note that has this one already was written
    text: str


NCCL_ASKED_MAX = 3
"""Most nodes of a gang whose agent asks NCCL. One rank gathers the answers of all, and may be the one that hangs."""


class HangQuestion(OfAttempt, frozen=True, omit_defaults=True, tag="hang_question"):
    """The gang stands still and is about to be restarted: each rank of this attempt shows its flight recorder."""

    nccl_ranks: Annotated[tuple[Count, ...], Meta(max_length=NCCL_ASKED_MAX)] = ()
    """The agents of these ranks ask NCCL as well."""


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


class ProcessState(WireEnum):
    """What the kernel shows of a rank's main thread."""

    UNKNOWN = "unknown"
    RUNS = "runs"
    SLEEPS = "sleeps"
    BLOCKED = "blocked"  # inside the kernel, where no signal ends it
    STOPPED = "stopped"  # by a signal
    TRACED = "traced"  # by a debugger
    GONE = "gone"  # it has ended


class ProcessNow(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rank's process, while it finishes no step."""

    state: ProcessState
    idle_seconds: Duration = 0.0  # since it last computed, read or wrote, as far as the agent has looked


RECORDED_GROUPS_MAX = 6
RECORDED_PEERS_MAX = 4
RECORDED_RECENT_MAX = 3
RECORDED_NAME_CHARACTERS_MAX = 48
RECORDED_WHAT_CHARACTERS_MAX = 64
RECORDERS_PER_REPORT_MAX = 32

_Recorded = r"\A[!#-\[\]-~ ]*\Z"
"""ASCII without what JSON escapes: as many bytes as characters."""
RecordedName = Annotated[str, Meta(max_length=RECORDED_NAME_CHARACTERS_MAX, pattern=_Recorded)]
RecordedWhat = Annotated[str, Meta(max_length=RECORDED_WHAT_CHARACTERS_MAX, pattern=_Recorded)]


class Entered(msgspec.Struct, frozen=True):
    number: Size
    what: RecordedWhat  # operation, sizes and types, as far as they must be alike on all ranks


class GroupPlace(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a rank has come with the collectives of one process group, as PyTorch's flight recorder numbers them."""

    group: RecordedName
    last: Size  # that it entered, or put into its GPU's queue; 0: none
    open: Size = 0  # the first that is not over; 0: all are
    recent: Annotated[list[Entered], Meta(max_length=RECORDED_RECENT_MAX)] = []  # up to that one; else the last
    begun: bool = False  # its GPU has begun it, as far as the recorder notes that


class Recorder(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a rank's flight recorder shows while no step ends."""

    groups: Annotated[list[GroupPlace], Meta(max_length=RECORDED_GROUPS_MAX)] = []  # none: it has no recorder
    peers: Annotated[list[Count], Meta(max_length=RECORDED_PEERS_MAX)] = []  # ranks of transfers that are not over
    still: bool = False  # the same as a look before


NCCL_COMMUNICATORS_MAX = 6
NCCL_RANKS_MAX = 16


NcclRanks = Annotated[list[Count], Meta(max_length=NCCL_RANKS_MAX)]


class NcclCommunicator(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of which ranks do not answer, or have begun fewer operations than others. Ranks are those of the gang; there
    are none where they are too many, or where it is not known which they are.
    """

    name: RecordedName
    size: Count
    missing: NcclRanks = []  # whose process NCCL's own network does not reach
    missing_count: Count = 0
    behind: NcclRanks = []  # that have begun fewer operations; transfers are not counted
    behind_count: Count = 0
    what: RecordedWhat = ""  # the operation, how many the last ranks have begun, and how many the first


class NcclSeen(msgspec.Struct, frozen=True, omit_defaults=True):
    """What NCCL's RAS knows of all ranks of a gang, as one of its processes answers."""

    version: Label
    count: Count  # of communicators
    communicators: Annotated[list[NcclCommunicator], Meta(max_length=NCCL_COMMUNICATORS_MAX)] = []  # the largest first
    checked: bool = False  # the numbers of this node's ranks are right by their pids
    still: bool = False  # the same as an answer some seconds before


KINDS_MAX = 6
"""Most kinds of collectives of a rank that are reported: those that take the most time."""


class CollectiveKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """What collectives of one communicator, operation and size took on a rank's GPU within a minute, as NCCL Inspector
    notes them: waiting for other ranks included.
    """

    communicator: RecordedName
    ranks: Count
    nodes: Count
    operation: RecordedName
    size_bytes: Size
    seconds: Amount  # the longest of the shortest tenth
    purpose: RecordedName = ""  # the communicator's name without its numbers; empty: not known


class CollectiveTimes(msgspec.Struct, frozen=True):
    minute: Count  # since 1970, by the rank's clock
    kinds: Annotated[list[CollectiveKind], Meta(max_length=KINDS_MAX)]


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
    recorder: Recorder | None = None  # while no step ends; None: not reported
    process: ProcessNow | None = None  # the same
    nccl: NcclSeen | None = None  # the same, where its agent was asked for it
    collective_times: CollectiveTimes | None = None  # of the last whole minute, once; None: not known


class ProgramFiles(msgspec.Struct, frozen=True):
    """Shared objects and compiled Python modules that a rank of a job has read to start, as its hook packed them."""

    job_id: Count
    restart_count: Count
    user_id: UserId  # from the kernel
    packed: PackedProgram
