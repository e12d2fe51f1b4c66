"""A small coverage-guided fuzzer: it changes inputs that are known, and keeps those that reach new lines.

Coverage is taken with `sys.settrace`, of the target's own files only, and of a function only until each of its lines
was reached. The same seed gives the same inputs.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests import REPOSITORY

CORPUS = REPOSITORY / "tests" / "data" / "fuzz"
CRASHES = REPOSITORY / "build" / "fuzz"
INPUT_BYTES_MAX = 20_000
EACH_KEPT_MAX = 2_000
"""Inputs in memory of one run."""

STRANGE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    255,
    2**31,
    2**53 + 1,
    2**62,
    2**63,
    2**64,
    -(2**63) - 1,
    0.5,
    1e308,
    -1e-308,
    "",
    "\0",
    "a\nb",
    "\ud7ff\ue000\uffff",
    "ä" * 3000,
    "x" * 300,
    "../../x",
    "\ud800",
    "\x1b[2J\x07\r",
    "n[1-99999][1-99999][1-99999]",
    ",".join(f"n[{number}-99999]" for number in range(60)),
    2**63 - 1,
    math.nan,
    -math.inf,
    [2**62] * 300,
    ["n1"] * 5000,
    [],
    {},
    [[[[]]]],
    {"type": "hello"},
)
BYTES: tuple[bytes, ...] = (
    b"\0",
    b"\xff",
    b"\n",
    b"\\u0000",
    b"\\ud800",
    b"[" * 300,
    b'"',
    b"9" * 40,
    b";",
    b",",
    b":",
)


@dataclass(frozen=True, slots=True)
class Target:
    """What `run` raises is a defect. Coverage is of source files whose path contains one of `files`."""

    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    files: tuple[str, ...]

    def corpus(self) -> list[bytes]:
        kept = sorted((CORPUS / self.name).iterdir()) if (CORPUS / self.name).is_dir() else []
        return [*self.seeds, *(path.read_bytes() for path in kept)]


class DefectError(Exception):
    """This input broke the target."""

    def __init__(self, content: bytes, cause: BaseException) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}; the input was {content[:2000]!r}")
        self.content = content


@dataclass(slots=True)
class Fuzzer:
    target: Target
    seed: int
    found: list[bytes] = field(default_factory=list)
    """Inputs that reached lines which no input of the corpus reaches."""
    executions: int = 0
    lines: int = 0
    """Reached so far."""
    _unseen: dict[CodeType, set[int]] = field(default_factory=dict)

    def replay(self) -> None:
        """Raises DefectError."""
        for content in self.target.corpus():
            self._execute(content)

    def run(self, executions: int | None = None, seconds: float = math.inf) -> None:
        """Until that many, or for so many seconds of processor time.

        Raises DefectError.
        """
        rng = random.Random(self.seed)
        known = self.target.corpus()
        self.replay()
        began = time.process_time()
        while executions is None or self.executions < executions:
            if time.process_time() - began >= seconds:
                return
            content = _changed(rng, rng.choice(known), known)[:INPUT_BYTES_MAX]
            if self._execute(content):
                self.found.append(content)
                known = [*known, content][-EACH_KEPT_MAX:]

    def keep(self) -> Iterator[Path]:
        """Adds what was found to the corpus."""
        directory = CORPUS / self.target.name
        directory.mkdir(parents=True, exist_ok=True)
        for content in self.found:
            path = directory / f"{hashlib.sha256(content).hexdigest()[:16]}.bin"
            path.write_bytes(content)
            yield path

    def save(self, content: bytes) -> Path:
        """An input that broke the target, in build/fuzz."""
        CRASHES.mkdir(parents=True, exist_ok=True)
        path = CRASHES / f"{self.target.name}-{hashlib.sha256(content).hexdigest()[:16]}"
        path.write_bytes(content)
        return path

    def _execute(self, content: bytes) -> bool:
        """True if it reached a new line. Raises DefectError."""
        before = self.lines
        self.executions += 1
        sys.settrace(self._trace)
        try:
            self.target.run(content)
        except Exception as error:
            raise DefectError(content, error) from error
        finally:
            sys.settrace(None)
        return self.lines > before

    def _trace(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        unseen = self._unseen.get(code)
        if unseen is None:
            traced = any(part in code.co_filename for part in self.target.files)
            unseen = self._unseen[code] = {line for *_, line in code.co_lines() if line} if traced else set()
            self._see(unseen, code.co_firstlineno)  # Python calls nothing for it
        return self._trace_line if unseen else None

    def _trace_line(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            self._see(self._unseen[frame.f_code], frame.f_lineno)
        return self._trace_line

    def _see(self, unseen: set[int], line: int) -> None:
        if line in unseen:
            unseen.remove(line)
            self.lines += 1


def _changed(rng: random.Random, content: bytes, known: Iterable[bytes]) -> bytes:
    for _ in range(rng.choice((1, 1, 1, 1, 2, 4))):
        lines = content.split(b"\n")
        number = rng.randrange(len(lines))
        lines[number] = changed_json(rng, lines[number]) or changed_bytes(rng, lines[number])
        if rng.random() < 0.1:
            lines.insert(number, rng.choice(rng.choice(list(known)).split(b"\n")))
        content = b"\n".join(lines)
    return content


def changed_json(rng: random.Random, line: bytes) -> bytes | None:
    """The same JSON with one value replaced, removed or added. None: no JSON, or to be changed otherwise."""
    if rng.random() < 0.1:
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    places = list(_places(value))
    if not places:
        return None
    container, key = rng.choice(places)
    choice = rng.random()
    if choice < 0.15:
        del container[key]
    elif choice < 0.3 and isinstance(container, dict):
        container[rng.choice(("new", "type", "id", "facts", "a\0"))] = rng.choice(STRANGE)
    elif choice < 0.45 and isinstance(container, list):
        container[key:key] = [container[key]] * rng.choice((1, 2, 300))
    elif isinstance(container[key], int) and choice < 0.7:
        container[key] += rng.choice((-1, 1, 1000))
    else:
        container[key] = rng.choice(STRANGE)
    return json.dumps(value).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value inside this one, as its container and its key there."""
    keys: Iterable[Any] = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def changed_bytes(rng: random.Random, line: bytes) -> bytes:
    at, length = rng.randrange(len(line) + 1), rng.choice((0, 0, 1, 2, 8, 64))
    inserted = rng.choice((rng.choice(BYTES), rng.randbytes(rng.choice((1, 2, 8))), line[at : at + length] * 2))
    return line[:at] + inserted + line[at + length :]
