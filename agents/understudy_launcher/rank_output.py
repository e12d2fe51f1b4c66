"""What the ranks of a seat write: to the job's output, to files, and the last lines of it for the launcher.

Each stream of a rank has a thread, which passes on what comes. A destination that hangs holds its rank up, as it would
without the seat, and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from understudy_launcher.follow_up_errors import Fold
from understudy_launcher.join_launcher import node_name

PIECE_BYTES = 65_536
LAST_BYTES_MAX = 8192
LAST_LINES_MAX = 50
PATH_CODES = re.compile(r"%(%|\d*[AaJjLNnstux])")


class Stream(Enum):
    OUTPUT = 1
    ERROR = 2

    @property
    def bit(self) -> int:
        """torchrun's --tee has the same: 1 for standard output, 2 for standard error, 3 for both."""
        return self.value


@dataclass(frozen=True, slots=True)
class OutputOptions:
    output: str = ""
    """Path with srun's codes; empty: the job's output."""
    error: str = ""
    tee: int = 0
    """Streams that go to the job's output although they go to a file."""
    label: bool = False
    only_local_ranks: frozenset[int] | None = None
    """The job's output shows these alone. None: all."""
    torchrun: tuple[str, ...] = ()
    """Options for torchrun, whose ranks' output is its own, with the same codes."""

    def for_seat(self) -> str:
        only = None if self.only_local_ranks is None else sorted(self.only_local_ranks)
        return json.dumps([self.output, self.error, self.tee, self.label, only, self.torchrun])

    def path(self, stream: Stream) -> str:
        return self.output if stream is Stream.OUTPUT else self.error or self.output

    def relays(self, stream: Stream) -> bool:
        """True if a stream passes through the seat. Standard error does, for its last lines."""
        return bool(stream is Stream.ERROR or self.output or self.label or self.only_local_ranks is not None)


def output_for_seat(text: str) -> OutputOptions:
    output, error, tee, label, only, torchrun = json.loads(text)
    return OutputOptions(output, error, tee, label, None if only is None else frozenset(only), tuple(torchrun))


@dataclass(frozen=True, slots=True)
class Speaker:
    path: str
    """The stream's file; empty: none."""
    on_console: bool
    prefix: bytes = b""


def path_of(pattern: str, environment: Mapping[str, str]) -> str:
    """The path with srun's codes replaced, and %L: the launch. `environment`: the rank's."""
    found = environment.get
    job = found("SLURM_ARRAY_JOB_ID") or found("SLURM_JOB_ID", "")
    step = found("SLURM_STEP_ID", "")
    values = {
        "A": job,
        "a": found("SLURM_ARRAY_TASK_ID", "4294967294"),
        "J": f"{found('SLURM_JOB_ID', '')}.{step}",
        "j": found("SLURM_JOB_ID", ""),
        "L": found("UNDERSTUDY_LAUNCH", "0"),
        "N": found("SLURMD_NODENAME", ""),
        "n": found("NODE_RANK", "0"),
        "s": step,
        "t": found("SLURM_PROCID", "0"),
        "u": found("USER") or found("SLURM_JOB_USER", ""),
        "x": found("SLURM_JOB_NAME", ""),
        "%": "%",
    }

    def replaced(match: re.Match[str]) -> str:
        code = match[1]
        value = values[code[-1]].replace("/", "_")
        return value.zfill(min(10, int(code[:-1]))) if code[:-1] else value

    return PATH_CODES.sub(replaced, pattern)


class Relay:
    """One stream of one process. It is a rank's once it has a speaker."""

    def __init__(self, stream: Stream, console: Console) -> None:
        self.stream = stream
        self._console = console
        self._read, self.write_end = os.pipe2(os.O_CLOEXEC)
        self._speaker: Speaker | None = None
        self._path = ""
        self._file: int | None = None
        self._fold = Fold()
        self._last = b""
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)
        self._thread.start()

    def started(self) -> None:
        """The process has the other end, and is the only one to have it."""
        os.close(self.write_end)

    def speak_for(self, speaker: Speaker) -> None:
        self._last = b""
        self._speaker = speaker

    def wait(self, seconds: float) -> bool:
        """True if all that the process has written is passed on."""
        self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def last_words(self, lines_max: int = LAST_LINES_MAX) -> str:
        lines = self._last.decode(errors="replace").splitlines()
        if len(self._last) >= LAST_BYTES_MAX:
            lines = lines[1:]  # its beginning was cut
        return "\n".join(lines[-lines_max:])

    def _run(self) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while piece := os.read(self._read, PIECE_BYTES):
                self._last = (self._last + piece)[-LAST_BYTES_MAX:]
                whole = rest + piece
                # Lines of different ranks stay whole where that does not delay them.
                by_line = len(piece) == PIECE_BYTES or (self._speaker is not None and bool(self._speaker.prefix))
                end = whole.rfind(b"\n") + 1 if by_line and len(whole) < 4 * PIECE_BYTES else len(whole)
                rest = whole[end:]
                self._pass_on(whole[:end])
        self._pass_on(rest)
        self._show(self._fold.end())
        os.close(self._read)
        if self._file is not None:
            os.close(self._file)

    def _pass_on(self, piece: bytes) -> None:
        speaker = self._speaker
        if not piece:
            return
        written = speaker is not None and bool(speaker.path) and self._write_file(speaker.path, piece)
        if speaker is None or speaker.on_console or (speaker.path and not written):
            self._show(self._fold.feed(piece) if self.stream is Stream.ERROR else piece)

    def _show(self, piece: bytes) -> None:
        if piece:
            self._console.write(self.stream, piece, self._speaker.prefix if self._speaker else b"")

    def _write_file(self, path: str, piece: bytes) -> bool:
        try:
            if path != self._path:
                if self._file is not None:
                    os.close(self._file)
                self._path, self._file = path, None
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if self._file is None:
                return False
            _write_all(self._file, piece)
        except OSError as error:
            why = f"understudy: {node_name()}: cannot write {path}: {error.strerror}; see the job's output\n"
            self._console.write(Stream.ERROR, why.encode())
            if self._file is not None:
                os.close(self._file)
            self._file = None
            return False
        return True


class Console:
    """The seat's own output, which Slurm brings to that of the job. One writer at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def write(self, stream: Stream, piece: bytes, prefix: bytes = b"") -> None:
        if prefix:
            lines = piece.removesuffix(b"\n").split(b"\n")
            piece = b"".join(prefix + line + b"\n" for line in lines)
        with self._lock, contextlib.suppress(OSError):  # no program reads it any more: the ranks go on
            self.put(stream, piece)

    def put(self, stream: Stream, piece: bytes) -> None:
        """Raises OSError."""
        _write_all(stream.value, piece)


class Outputs:
    def __init__(self, options: OutputOptions, console: Console) -> None:
        self._options = options
        self._console = console
        self._of: dict[int, Sequence[Relay]] = {}  # process id → its streams
        self._all: list[Relay] = []

    def open(self) -> Sequence[Relay]:
        """Raises OSError."""
        return tuple(Relay(stream, self._console) for stream in Stream if self._options.relays(stream))

    def started(self, pid: int, relays: Sequence[Relay]) -> None:
        for one in relays:
            one.started()
        self._of[pid] = relays
        self._all = [*(one for one in self._all if not one.wait(0)), *relays]

    def of(self, pid: int) -> Sequence[Relay]:
        return self._of.get(pid, ())

    def speak_for(self, relays: Sequence[Relay], environment: Mapping[str, str]) -> None:
        """What comes from now on is this rank's. `environment`: the rank's."""
        options = self._options
        rank, local_rank = environment["SLURM_PROCID"], int(environment["SLURM_LOCALID"])
        shown = options.only_local_ranks is None or local_rank in options.only_local_ranks
        for one in relays:
            pattern = options.path(one.stream)
            path = path_of(pattern, environment) if pattern else ""
            on_console = shown and (not path or bool(options.tee & one.stream.bit))
            prefix = f"{rank}: ".encode() if options.label else b""
            one.speak_for(Speaker(path, on_console, prefix))

    def ended(self, pid: int) -> Relay | None:
        """The standard error of a process that has ended."""
        return next((one for one in self._of.pop(pid, ()) if one.stream is Stream.ERROR), None)

    def last_words(self, pid: int, lines_max: int) -> str:
        return "".join(one.last_words(lines_max) for one in self.of(pid) if one.stream is Stream.ERROR)

    def finish(self, seconds: float) -> None:
        """Waits until all is passed on, for a while. A process that has left the ranks' tree may hold an end open."""
        until = time.monotonic() + seconds
        for one in self._all:
            one.wait(until - time.monotonic())


def _write_all(descriptor: int, piece: bytes) -> None:
    """Raises OSError."""
    while piece:
        piece = piece[os.write(descriptor, piece) :]
