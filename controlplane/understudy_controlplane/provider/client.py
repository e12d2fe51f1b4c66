"""Questions to the provider of the nodes: one JSON document each way, by the site's program.

The same `id` again is the same question: a provider answers with the same ticket.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import subprocess
import time
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from understudy_controlplane.access.secret_files import without
from understudy_controlplane.config import Provider
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.provider import Ask
from understudy_wire.values import NOT_UNDERSTOOD

VERSION = 1
TEXT_CHARACTERS_MAX = 500
END_SECONDS = 1.0

Read = TypeVar("Read")
READ_BYTES = 65_536

Name = Annotated[str, Meta(min_length=1, max_length=255)]
Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX, pattern=r"^[^\x00]*$")]


class ProviderError(Exception):
    """The provider was not asked, or has refused. The message has the cause."""


class NoAnswer(ProviderError):
    """The provider was asked, and what it made of the question is not known."""


class Question(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    ask: Ask
    id: str
    cluster: str
    target: str = ""  # name of a node, or of a rack as in "rack r1"
    code: str = ""  # rule that found the fault, such as "xid.79"
    summary: str = ""
    fault_at: float = 0.0  # seconds since the epoch; 0: not known
    evidence: dict[str, Json] = {}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One maintenance or retirement. Times have their offset from UTC."""

    ticket: Name
    kind: Literal["maintenance", "retirement"]
    targets: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=64)]
    begins: Annotated[datetime, Meta(tz=True)]
    ends: Annotated[datetime, Meta(tz=True)] | None = None
    summary: Text = ""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """`ticket`: the provider's number of a report or a replacement; empty: it takes none, and `summary` says why."""

    ticket: Annotated[str, Meta(max_length=255, pattern=r"^[^\x00]*$")] = ""
    summary: object = ""


class Plans(msgspec.Struct, frozen=True, kw_only=True):
    events: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=1000)] = ()


def program_of(policy: Provider) -> str:
    return shlex.split(policy.command)[0]


def ask(policy: Provider, question: Question) -> tuple[str, str]:
    """Ticket and summary of a report or a replacement. Takes up to the policy's time. Raises ProviderError.

    The provider may have accepted it: an odd summary is shortened or left out, and makes no error of the answer.
    """
    try:
        answer = _asked(policy, question, Answer)
    except NoAnswer as error:
        raise NoAnswer(f"{error}; it may have accepted {question.id}: ask it") from error
    summary = answer.summary if isinstance(answer.summary, str) else ""
    return answer.ticket.strip(), summary.replace("\0", "")[:TEXT_CHARACTERS_MAX]


def ask_for_plans(policy: Provider, question: Question) -> tuple[tuple[Planned, ...], tuple[str, ...]]:
    """Events that can be read, and what is wrong with each of the others. Raises ProviderError. See `ask`."""
    events, problems = [], []
    for number, content in enumerate(_asked(policy, question, Plans).events, start=1):
        try:
            events.append(_event(content))
        except (ValueError, OverflowError) as error:
            problems.append(f"event {number}: {_short(str(error))}")
    return tuple(events), tuple(problems)


def _event(content: msgspec.Raw) -> Planned:
    """Raises ValueError and OverflowError."""
    event = msgspec.json.decode(content, type=Planned)
    for at in (event.begins, event.ends):
        if at is not None:
            at.astimezone(UTC)
    if event.ends is not None and event.ends < event.begins:
        raise ValueError(f"{event.ticket} ends before it begins")
    return event


def _asked(policy: Provider, question: Question, kind: type[Read]) -> Read:
    answered = _printed(policy, question)
    try:
        return msgspec.json.decode(answered, type=kind)
    except NOT_UNDERSTOOD as error:
        raise NoAnswer(f"its answer cannot be read: {_short(str(error))}") from error


def _short(text: str) -> str:
    return " ".join(text.split())[:TEXT_CHARACTERS_MAX]


def _printed(policy: Provider, question: Question) -> bytes:
    """What it writes to standard error stands in the control plane's journal. No error shows its arguments."""
    command = shlex.split(policy.command)
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        problem = f"{_short(command[0])} cannot be run: {error.strerror}"
        raise ProviderError(f"{problem}; `understudy check-config` tries provider.command") from error
    ends_at = time.monotonic() + policy.timeout_seconds
    try:
        answered = _talk(process, msgspec.json.encode(question), policy, ends_at)
        process.wait(max(0.0, ends_at - time.monotonic()))
    except (subprocess.TimeoutExpired, TimeoutError):
        raise NoAnswer(f"no answer within {policy.timeout_seconds:g} s") from None
    finally:
        _end(process)
    if process.returncode < 0:
        raise NoAnswer(f"it was ended by signal {-process.returncode}")
    if process.returncode:
        words = _short(without(answered.decode(errors="replace"), command[1:]))
        raise ProviderError(
            f"it ended with exit code {process.returncode}: {words or 'it printed nothing; see the journal'}"
        )
    return answered


def _talk(process: subprocess.Popen[bytes], content: bytes, policy: Provider, ends_at: float) -> bytes:
    """What it printed. Also where its children keep its output open, this ends in time. Raises TimeoutError."""
    source, target = process.stdin, process.stdout
    assert source is not None
    assert target is not None
    os.set_blocking(source.fileno(), False)
    answered = b""
    with selectors.DefaultSelector() as ready, source, target:
        ready.register(source, selectors.EVENT_WRITE)
        ready.register(target, selectors.EVENT_READ)
        while True:
            found = [key.fileobj for key, _ in ready.select(max(0.0, ends_at - time.monotonic()))]
            if not found and time.monotonic() >= ends_at:
                raise TimeoutError
            if source in found and not (content := _send(source.fileno(), content)):
                ready.unregister(source)
                source.close()
            if target in found:
                read = os.read(target.fileno(), READ_BYTES)
                if not read:
                    return answered
                answered += read
                if len(answered) > policy.answer_bytes_max:
                    raise NoAnswer(f"its answer has more than {policy.answer_bytes_max} bytes")


def _send(descriptor: int, content: bytes) -> bytes:
    """What is left to send. A program that does not read has closed its input."""
    try:
        return content[os.write(descriptor, content) :]
    except BrokenPipeError:
        return b""


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, and what it has started. One that has become another user cannot be ended, and is left to itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
