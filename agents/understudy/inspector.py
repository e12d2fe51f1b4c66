"""What NCCL's collectives took: the file that NVIDIA's plugin Inspector writes for this process, a line for each.

A thread of its own reads it, because a file system may not answer. In each minute it names the shortest tenth of the
collectives of each kind: all ranks of one end together, so the last to enter has the time of the transfer alone.

The form is `v4.0` (`inspector_json.cc`), read in NCCL's source of 2.28.3 to 2.30.7; it never ran on several GPUs.
"""

from __future__ import annotations

import json
import os
import re
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .never_raise import never_raise

LOOK_SECONDS = 10.0
MINUTE_SECONDS = 60.0
BYTES_MAX = 256 * 1024
"""Newest part of what was written since the look before: some 600 lines, which take 5 ms to read."""
FORM = "v4.0"
COUNT_MIN = 10
SHORTEST_SHARE = 0.1
KINDS_MAX = 6
KINDS_HELD_MAX = 256
NAME_CHARACTERS_MAX = 48
NUMBER_MAX = 2**31 - 1
SIZE_MAX = 2**53
MICROS_MAX = 10**12
_NOT_SENT = re.compile(r'[^ -~]|["\\]')
_DIGITS = re.compile(r"\d+")


class Kind(NamedTuple):
    communicator: str
    ranks: int
    nodes: int
    operation: str
    size_bytes: int
    purpose: str


class InspectorWatch:
    """The thread `follow` writes `message`, the link's reads it."""

    def __init__(self) -> None:
        self.message: dict[str, Any] | None = None
        """The last whole minute in which there were collectives."""
        self._minute = 0
        self._micros: dict[Kind, list[int]] = {}

    @never_raise
    def start(self, environment: Mapping[str, str]) -> None:
        path = written_to(environment)
        if path:
            follow = threading.Thread(target=self._follow, args=(path,), name="understudy-inspector", daemon=True)
            follow.start()

    @never_raise
    def _follow(self, path: str) -> None:
        file = NewLines(path)
        while True:
            time.sleep(LOOK_SECONDS)
            try:
                lines = file.read()
            except OSError:  # not there yet, or its file system is away
                lines = []
            self.add(lines, time.time())

    def add(self, lines: Iterable[bytes], now: float) -> None:
        minute = int(now // MINUTE_SECONDS)
        if minute != self._minute:
            kinds = most_of_the_time(self._micros)
            if kinds:
                self.message = {"type": "collective_times", "minute": self._minute, "kinds": kinds}
            self._minute, self._micros = minute, {}
        for line in lines:
            found = timed(line)
            if found is not None and (found[0] in self._micros or len(self._micros) < KINDS_HELD_MAX):
                self._micros.setdefault(found[0], []).append(found[1])


class NewLines:
    """Lines that were written since this was made: what is there before is of another process with this number."""

    def __init__(self, path: str) -> None:
        self._path = path
        try:
            self._read_to = os.stat(path).st_size
        except OSError:
            self._read_to = 0

    def read(self) -> list[bytes]:
        """Raises OSError."""
        with open(self._path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < self._read_to:  # begun again
                self._read_to = 0
            begin = max(self._read_to, size - BYTES_MAX)
            file.seek(begin)
            content = file.read(size - begin)
        whole = content.rfind(b"\n") + 1  # the rest is being written
        lines = content[:whole].splitlines()
        cut = begin > self._read_to
        self._read_to = begin + whole
        return lines[1:] if cut else lines


def written_to(environment: Mapping[str, str]) -> str:
    """The file of this process, as `inspector.cc` names it; empty: none is written while it runs."""
    numbers = {
        name: _number(environment.get(f"NCCL_INSPECTOR_{name}", otherwise))
        for name, otherwise in (
            ("ENABLE", "0"),
            ("DUMP_THREAD_ENABLE", "1"),
            ("DUMP_THREAD_INTERVAL_MICROSECONDS", "-1"),
            ("PROM_DUMP", "0"),
        )
    }
    wanted = numbers["ENABLE"] and numbers["DUMP_THREAD_ENABLE"] and not numbers["PROM_DUMP"]
    if not wanted or numbers["DUMP_THREAD_INTERVAL_MICROSECONDS"] < 0:
        return ""
    folder = environment.get("NCCL_INSPECTOR_DUMP_DIR")
    if folder is None:
        folder = f"nccl-inspector-{environment.get('SLURM_JOBID', 'unknown-jobid')}"
    return os.path.abspath(f"{folder}/{socket.gethostname()}-pid{os.getpid()}.log")


def _number(text: str) -> int:
    """The number that C's `atoi` finds."""
    found = re.match(r"\s*[+-]?\d{1,18}", text)
    return int(found.group()) if found else 0


def timed(line: bytes) -> tuple[Kind, int] | None:
    """A collective that the GPU has timed, and its microseconds; None: something else."""
    try:
        content = json.loads(line)
        header, one = content["header"], content["coll_perf"]
        known = content["metadata"]["inspector_output_format_version"] == FORM
        if not known or one.get("coll_timing_source") != "kernel_gpu":
            return None
        name = header.get("comm_name", "unknown")
        kind = Kind(
            _short(header["id"]),
            int(header["n_ranks"]),
            int(header["nnodes"]),
            _short(one["coll"]),
            int(one["coll_msg_size_bytes"]),
            "" if name == "unknown" else _short(_DIGITS.sub("#", name)),
        )
        micros = int(one["coll_exec_time_us"])
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None  # a transfer, or another form
    possible = 1 < kind.ranks <= NUMBER_MAX and 0 < kind.nodes <= NUMBER_MAX and 0 <= kind.size_bytes <= SIZE_MAX
    return (kind, micros) if possible and 0 < micros < MICROS_MAX else None


def _short(text: str) -> str:
    return _NOT_SENT.sub("?", text)[:NAME_CHARACTERS_MAX]


def most_of_the_time(micros: Mapping[Kind, list[int]]) -> list[dict[str, Any]]:
    """Kinds that took the most time, with the longest of their shortest tenth in seconds."""
    known = [kind for kind, times in micros.items() if len(times) >= COUNT_MIN]
    most = sorted(known, key=lambda kind: (-sum(micros[kind]), kind))[:KINDS_MAX]
    return [
        {
            **kind._asdict(),
            "seconds": sorted(micros[kind])[int(len(micros[kind]) * SHORTEST_SHARE)] / 1e6,
        }
        for kind in most
    ]
