"""What a rank says to its node's agent, and what it is answered: one JSON object a line, told apart by
`type`.

The hook in `agents.train` (to its users `understudy`) speaks the other side without importing this. Unknown
fields are ignored, so that an older agent understands a newer hook.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from agents.wire import COLLECTIVE_CHARACTERS_MAX, STEPS_PER_WINDOW_MAX, TEXT_CHARACTERS_MAX

LINE_BYTES_MAX = 65_536

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
Size = Annotated[int, Meta(ge=0, le=2**62)]
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
Time = Annotated[float, Meta(ge=0, le=1e11)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
NonEmpty = Annotated[str, Meta(min_length=1, max_length=TEXT_CHARACTERS_MAX)]
Durations = Annotated[list[Seconds], Meta(min_length=1, max_length=STEPS_PER_WINDOW_MAX)]


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    job_id: Count
    restart_count: Count
    rank: Count
    world_size: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    pid: Count = 0  # for the log; the kernel is asked for the true one
    gpu_index: Count | None = None
    role: Text = ""
    launch: Count = 0  # UNDERSTUDY_LAUNCH, where a launcher starts the gang several times within an allocation


class Steps(msgspec.Struct, frozen=True, tag="steps"):
    first_step: Step
    self_seconds: Durations
    wall_seconds: Durations


class CollectiveEntered(msgspec.Struct, frozen=True, tag="collective"):
    """The last one; told when it is another than before, or the rank came out of it."""

    name: Annotated[str, Meta(min_length=1, max_length=COLLECTIVE_CHARACTERS_MAX)]
    sequence: Size
    entered_at: Time
    step: Step | None = None
    inside: bool = False


class FirstStepNotice(msgspec.Struct, frozen=True, tag="first_step"):
    id: Size
    step: Step
    at: Time


class ShardNotice(msgspec.Struct, frozen=True, tag="shard"):
    id: Size
    step: Step
    path: NonEmpty
    file: Text  # "." is the path itself; empty: this rank wrote no file of its own
    size_bytes: Size
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    at: Time


class RestorePointQuestion(msgspec.Struct, frozen=True, tag="restore_point"):
    id: Size


class JobRestorePointQuestion(msgspec.Struct, frozen=True, tag="job_restore_point"):
    """Needs no hello: the TaskProlog is no rank. A job that did not ask for us gets a plain no."""

    id: Size
    job_id: Count
    restart_count: Count
    launch: Count = 0


Message = (
    Hello | Steps | CollectiveEntered | FirstStepNotice | ShardNotice | RestorePointQuestion | JobRestorePointQuestion
)


class Acknowledged(msgspec.Struct, frozen=True, tag="ack"):
    """The control plane has it in its database."""

    id: int


class RestorePointAnswer(msgspec.Struct, frozen=True, omit_defaults=True, tag="restore_point"):
    id: int
    step: int
    path: str
    managed: bool = True  # False: the job did not ask for us


class ErrorAnswer(msgspec.Struct, frozen=True, tag="error"):
    """With an id: that one failed. Without: the agent hangs up after this line."""

    error: str
    id: int | None = None


Answer = Acknowledged | RestorePointAnswer | ErrorAnswer

_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)
_encoder = msgspec.json.Encoder()


def decode(line: bytes) -> Message:
    """Raises msgspec.MsgspecError, whose text says what is wrong."""
    return _decoder.decode(line)


def encode(answer: Answer) -> bytes:
    return _encoder.encode(answer) + b"\n"
