"""What a launcher that is started again has to know of the one that was killed, kept where it outlives a process."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_launcher.launch_over import LaunchEnd
from understudy_launcher.launch_result import Failure, History
from understudy_launcher.messages import LaunchNotice

_HEADER = struct.Struct("!QQI")
"""Number of the record, length, checksum."""


@dataclass(frozen=True, slots=True)
class StepMemory:
    generation: int
    nodes: tuple[str, ...]
    pid: int
    """srun's."""
    asked_at: float
    step_id: str
    probe: bool


@dataclass(frozen=True, slots=True)
class LaunchMemory:
    number: int
    seats: tuple[str, ...]
    generation: int
    """Its step."""
    ordered_at: float
    fault_at: float | None
    began_at: float | None
    processes: int
    torchrun: bool
    progressed: bool
    over: LaunchEnd | None
    failures: tuple[Failure, ...]
    running_when_over: int


@dataclass(frozen=True, slots=True)
class LauncherMemory:
    """Times are of the machine's monotonic clock, which goes on."""

    phase: str
    launch: LaunchMemory
    steps: tuple[StepMemory, ...]
    history: History
    best_step: int | None
    took_over: bool
    lost: Mapping[str, str] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    barred: Mapping[str, float] = field(default_factory=dict)
    warned_at: float | None = None
    ending_for: signal.Signals | None = None
    exit_code: int = 0
    until: float = 0.0
    notices: tuple[LaunchNotice, ...] = ()
    """What the control plane has not acknowledged."""


class MemoryFile:
    """Two records in memory that child processes share. A process that is killed while it writes spoils one of them."""

    def __init__(self) -> None:
        self._records = (os.memfd_create("launcher"), os.memfd_create("launcher"))
        self._number = 0

    def read(self) -> LauncherMemory | int | None:
        """The newest whole record: what to remember, or the exit code of a launcher that has done its work."""
        found: dict[int, LauncherMemory | int] = {}
        for record in self._records:
            number, length, checksum = _HEADER.unpack(os.pread(record, _HEADER.size, 0).ljust(_HEADER.size, b"\0"))
            content = os.pread(record, length, _HEADER.size)
            if number and len(content) == length and zlib.crc32(content) == checksum:
                found[number] = pickle.loads(content)  # noqa: S301 - of this program, in its own memory
        self._number = max(found, default=0)
        return found.get(self._number)

    def write(self, value: LauncherMemory | int) -> None:
        """An exit code: the launcher has done its work, and is not started again."""
        self._number += 1
        content = pickle.dumps(value)
        record = self._records[self._number % 2]
        os.pwrite(record, content, _HEADER.size)
        os.pwrite(record, _HEADER.pack(self._number, len(content), zlib.crc32(content)), 0)
