"""Messages between the ranks and launchers of a node and its agent: one JSON object in each line, with its `type`.

The hook (`understudy`) and the launcher write and read them without importing this. Unknown fields and types are
ignored, so that an older agent works with a newer hook.
"""

from __future__ import annotations

from typing import Annotated, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from understudy_wire.facts import (
    FILES_PER_SHARD_MAX,
    AnomalyKind,
    LaunchEnded,
    LaunchEvidence,
    LaunchStarted,
    Layout,
    RestoreOutcome,
    ShardFile,
    Tier,
)
from understudy_wire.launcher import LauncherAnswer, LauncherState
from understudy_wire.ranks import (
    PEERS_MAX,
    STEPS_PER_WINDOW_MAX,
    Collective,
    CollectiveTimes,
    ComputeTestOrder,
    HangQuestion,
    JobNote,
    Recorder,
    SaveOrder,
    SavesFollowed,
    Training,
    Value,
)
from understudy_wire.unknown import unknown_in_any
from understudy_wire.values import (
    NOT_UNDERSTOOD,
    PRINTABLE,
    TEXT_CHARACTERS_MAX,
    WORK_MAX,
    Count,
    Duration,
    Label,
    Line,
    PackedProgram,
    Section,
    ShortLine,
    Size,
    Stack,
    Step,
    Text,
    Time,
    WorldSize,
)

LINE_BYTES_MAX = 65_536

NonEmpty = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX, pattern=PRINTABLE)]
WrittenChecksum = Annotated[str, Meta(max_length=64, pattern=r"\A([a-z0-9]+:[0-9a-f]+)?\Z")]
Durations = Annotated[list[Duration], Meta(min_length=1, max_length=STEPS_PER_WINDOW_MAX)]
MoreDurations = Annotated[list[Duration], Meta(max_length=STEPS_PER_WINDOW_MAX)]
Works = Annotated[list[Annotated[float, Meta(ge=0, le=WORK_MAX)] | None], Meta(max_length=STEPS_PER_WINDOW_MAX)]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    job_id: Count
    restart_count: Count
    rank: Count
    world_size: WorldSize
    pid: Count = 0  # the agent replaces it by the kernel's
    gpu_index: Count | None = None
    role: Line = ""
    launch: Count = 0  # UNDERSTUDY_LAUNCH, where a launcher starts the gang several times within an allocation
    release: Line = ""  # of the hook
    dp_rank: Count | None = None  # ranks that have the same one process the same batches
    run: ShortLine = ""  # of the run to which the job belongs; empty: not known
    run_folder: Line = ""  # where the run goes by the job's name, in this folder; empty: a user named it
    arguments: Label = ""  # a sum of the program's name and arguments; empty: not known
    takes_orders: bool = False  # the hook knows SaveOrder
    takes_tests: bool = False  # the hook knows ComputeTestOrder
    takes_notes: bool = False  # the hook knows JobNote
    takes_questions: bool = False  # the hook knows HangQuestion


class PeerSeconds(msgspec.Struct, frozen=True):
    peer: Count
    seconds: Durations  # as long as those of the steps


class Steps(msgspec.Struct, frozen=True, tag="steps"):
    first_step: Step
    self_seconds: Durations
    wall_seconds: Durations
    data_seconds: MoreDurations = []  # waiting for data; as long as `self_seconds`, or empty: no step waited
    work: Works = []  # how much each step had to do; as long, or empty: not known of any
    transfers: Annotated[list[PeerSeconds], Meta(max_length=PEERS_MAX)] = []  # in transfers with single peers


class CollectiveEntered(Collective, frozen=True, tag="collective"):
    """The last one; sent when it changes, and when the rank leaves it."""


class SectionEntered(msgspec.Struct, frozen=True, tag="section"):
    """What the training does besides steps, from now on; an empty name: nothing that it names."""

    name: Section = ""


class GpuUsed(msgspec.Struct, frozen=True, tag="gpu"):
    """The GPU that this rank uses. It goes before the index in the hello, which counts within the rank's cgroup."""

    uuid: Annotated[str, Meta(max_length=96, pattern=PRINTABLE)]


class FirstStepNotice(msgspec.Struct, frozen=True, tag="first_step"):
    id: Size
    step: Step
    at: Time
    communicator_at: Time | None = None


class MoreFile(msgspec.Struct, frozen=True):
    file: NonEmpty
    size_bytes: Size
    checksum: WrittenChecksum = ""


class ShardNotice(msgspec.Struct, frozen=True, tag="shard"):
    id: Size
    step: Step
    path: NonEmpty
    file: Line  # "." is the path itself; empty: this rank wrote no file of its own
    size_bytes: Size
    at: Time
    checksum: WrittenChecksum = ""
    more: Annotated[list[MoreFile], Meta(max_length=FILES_PER_SHARD_MAX)] = []  # of this rank's part
    layout: Layout = Layout.UNKNOWN
    blocked_seconds: Duration | None = None
    write_seconds: Duration | None = None
    tier: Tier = Tier.UNKNOWN
    copy_to: Line = ""
    then_copy_to: Line = ""


class DeletedNotice(msgspec.Struct, frozen=True, tag="checkpoint_deleted"):
    """The training has deleted a checkpoint, or is about to."""

    id: Size
    step: Step
    path: NonEmpty
    at: Time


class AnomalyNotice(msgspec.Struct, frozen=True, tag="anomaly"):
    """Loss or gradient norm is NaN or jumped; with `until`: it is as before since that step."""

    id: Size
    kind: AnomalyKind
    step: Step
    at: Time
    value: Label = ""
    usual: Value = 0.0
    until: Step | None = None


class RestoreNotice(msgspec.Struct, frozen=True, tag="restore"):
    """True if the checkpoint that was named is there, and that it could not be restored."""

    id: Size
    step: Step
    path: NonEmpty
    outcome: RestoreOutcome
    at: Time
    error: Text = ""


class RestorePointQuestion(msgspec.Struct, frozen=True, tag="restore_point"):
    id: Size
    looks: bool = False  # this rank looks whether the checkpoint is there, when it is asked to


class JobRestorePointQuestion(msgspec.Struct, frozen=True, tag="job_restore_point"):
    """Needs no hello: the TaskProlog is no rank. For a job that is not managed the answer has `managed` false."""

    id: Size
    job_id: Count
    restart_count: Count
    launch: Count = 0
    run: ShortLine = ""  # of the run to which the job belongs; empty: not known
    run_folder: Line = ""  # where the run goes by the job's name, in this folder; empty: a user named it


class LaunchNotice(msgspec.Struct, frozen=True, tag="launch"):
    """A launcher's fact about a launch of the gang whose state it has reported."""

    id: Size
    fact: LaunchStarted | LaunchEnded | LaunchEvidence


class StackSeen(msgspec.Struct, frozen=True, tag="stack"):
    """The training thread's stack when no step has ended for minutes, innermost frame first."""

    text: Stack


class RecorderSeen(Recorder, frozen=True, tag="recorder"):
    """What the flight recorder shows when no step has ended for long, and again when it shows something else."""


class CollectiveTimesSeen(CollectiveTimes, frozen=True, tag="collective_times"):
    """What collectives took within the last whole minute."""


class TrainingSeen(Training, frozen=True, tag="training"):
    """What the training reports of itself."""


class ProgramSeen(msgspec.Struct, frozen=True, tag="program"):
    """Files that this rank has read to start, after its first step. Only rank 0 sends it."""

    packed: PackedProgram


class InputsSeen(msgspec.Struct, frozen=True, tag="inputs"):
    """What the training runs with. Only rank 0 sends it."""

    code: ShortLine = ""
    config: ShortLine = ""
    data: ShortLine = ""


class SavesSeen(SavesFollowed, frozen=True, tag="saves"):
    """Orders to save that the rank follows."""


Whereabouts = (
    CollectiveEntered
    | SectionEntered
    | GpuUsed
    | StackSeen
    | RecorderSeen
    | CollectiveTimesSeen
    | TrainingSeen
    | SavesSeen
)
"""Only the last message of each kind counts."""

LauncherMessage = LauncherState | LaunchNotice

Message = (
    Hello
    | Steps
    | Whereabouts
    | ProgramSeen
    | InputsSeen
    | FirstStepNotice
    | ShardNotice
    | DeletedNotice
    | AnomalyNotice
    | RestoreNotice
    | RestorePointQuestion
    | JobRestorePointQuestion
    | LauncherMessage
)


class Acknowledged(msgspec.Struct, frozen=True, tag="ack"):
    """The control plane has it in its database."""

    id: int


class RestorePointAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="restore_point"):
    id: int
    step: int
    path: str
    managed: bool = True  # False: the job is not managed
    look: bool = False  # report whether the checkpoint is there, then ask again
    look_file: str = ""
    look_sizes: list[ShardFile] = []
    nearer_path: str = ""
    nearer_file: str = ""
    files: list[str] = []
    line: str = ""


class ControlPlaneSilent(msgspec.Struct, frozen=True, tag="silent"):
    """The launcher learns that the control plane does not answer now. The next `LauncherAnswer` ends this."""


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """The launcher learns the furthest step that a rank of this launch has finished on its node."""

    launch: int
    step: int
    count_from: int = 0  # what has to be taken off for the number that the program gave it


class ErrorAnswer(msgspec.Struct, frozen=True, tag="error"):
    """`id`: that message failed. None: the agent closes the connection after this line."""

    error: str
    id: int | None = None
    final: bool | UnsetType = UNSET  # to a question: to ask again changes nothing


Answer = (
    Acknowledged
    | RestorePointAnswer
    | LauncherAnswer
    | ControlPlaneSilent
    | Progress
    | SaveOrder
    | ComputeTestOrder
    | JobNote
    | HangQuestion
    | ErrorAnswer
)


class UnknownFact(msgspec.Struct, frozen=True):
    type: NonEmpty


class UnknownMessage(msgspec.Struct, frozen=True):
    """A hook or launcher that is newer than this agent sent it."""

    type: NonEmpty
    id: Size | None = None
    fact: UnknownFact | None = None  # in a LaunchNotice


class Identified(msgspec.Struct, frozen=True):
    id: Size | None = None


_TYPES = frozenset(str(kind.__struct_config__.tag) for kind in get_args(Message))
_FACT_TYPES = frozenset(str(kind.__struct_config__.tag) for kind in (LaunchStarted, LaunchEnded, LaunchEvidence))
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_unknown_decoder = msgspec.json.Decoder(UnknownMessage)
_identified_decoder = msgspec.json.Decoder(Identified)
_encoder = msgspec.json.Encoder()


def decode(line: bytes) -> Message | UnknownMessage:
    """Raises msgspec.MsgspecError; its text names the cause."""
    try:
        return _decode(line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def _decode(line: bytes) -> Message | UnknownMessage:
    try:
        return _decoder.decode(line)
    except msgspec.ValidationError:
        unknown = _unknown_decoder.decode(line)
        if unknown.fact is not None and unknown.fact.type not in _FACT_TYPES:
            return unknown
        if unknown.type in _TYPES:
            raise
        return unknown


def identifier_in(line: bytes) -> int | None:
    """The id of a message that decode() could not read; None: it has none."""
    try:
        return _identified_decoder.decode(line).id
    except NOT_UNDERSTOOD:
        return None


def unknown_content(line: bytes) -> list[str]:
    """What this release does not know in a line that decode() read, as wire_unknown names it. Raises DecodeError where
    a name that decode() skipped is no text.
    """
    try:
        return unknown_in_any(get_args(Message), line)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error


def encode(answer: Answer) -> bytes:
    return _encoder.encode(answer) + b"\n"
