"""What the ranks of a gang that hangs are doing, collected on their node before they are killed.

The ranks are asked (`understudy.evidence` answers in them), the kernel and the files of PyTorch's flight recorder are
read, within a time and a size. What cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import shutil
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from understudy_launcher.process_tree import below, has_handler
from understudy_wire.process_stat import read_stat

EVIDENCE_VARIABLE = "UNDERSTUDY_EVIDENCE"
STACKS_SIGNAL = 50
"""The hook has both. A test compares them."""
COLLECT_SECONDS = 4.0
"""The seat sends what it has after this time."""
STACKS_SECONDS = 1.5
"""Time for ranks with a handler to show their stacks: milliseconds where a processor is free."""
ANSWER_SECONDS = 0.5
"""Time for ranks to answer, which need Python's lock."""
STEADY_SECONDS = 0.04
"""Stacks that have not grown for this time are whole."""
SPY_SECONDS = 2.5
PROCESSES_MAX = 32
"""Processes of each rank: itself, and what it has started, such as workers that load data."""
THREADS_MAX = 512
SHOWN_CHARACTERS_MAX = 16_384
"""Most characters of the text of one rank."""
RECORDER_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
RECORDER_PREFIX = "/tmp/nccl_trace_rank_"  # noqa: S108 - PyTorch's default; only files of this user are read
RECORDER_BYTES_MAX = 64 * 1024 * 1024
ENTERED_MAX = 8
GROUPS_MAX = 32
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


@dataclass(slots=True)
class Place:
    """Descriptors by which one local rank is asked, and answers, in memory: a file system may be what hangs."""

    asked: int
    ask: int
    stacks: int
    answers: int
    seen: tuple[int, int] = (0, 0)
    """Sizes of both before it was asked."""

    def new(self) -> tuple[bytes, bytes]:
        return os.pread(self.stacks, 1 << 20, self.seen[0]), os.pread(self.answers, 1 << 20, self.seen[1])


class Places:
    """Places of a seat's ranks. They stay until the seat ends."""

    def __init__(self) -> None:
        self._places: list[Place] = []

    def variable(self, count: int) -> str:
        """Value for the ranks' environment; empty where no files are left."""
        try:
            while len(self._places) < count:
                asked, ask = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
                os.set_blocking(asked, True)
                self._places.append(Place(asked, ask, os.memfd_create("stacks"), os.memfd_create("answers")))
        except OSError:
            return ""
        places = (f"{one.asked}:{one.stacks}:{one.answers}" for one in self._places[:count])
        return ",".join((str(os.getpid()), *places))

    def descriptors(self, local_rank: int) -> list[int]:
        """Descriptors for a rank that cannot open them through this process; none where no files are left."""
        here = self._places[local_rank : local_rank + 1]
        return [descriptor for one in here for descriptor in (one.asked, one.stacks, one.answers)]

    def close(self) -> None:
        for one in self._places:
            for descriptor in (one.asked, one.ask, one.stacks, one.answers):
                os.close(descriptor)
        self._places.clear()

    def ask(self, count: int) -> list[Place]:
        for one in self._places[:count]:
            one.seen = (os.fstat(one.stacks).st_size, os.fstat(one.answers).st_size)
            with contextlib.suppress(OSError):  # no rank has read the questions before
                os.write(one.ask, b"?")
        return self._places[:count]


@dataclass(frozen=True, slots=True)
class RanksHere:
    first: int
    """The rank of the first one."""
    count: int
    processes: Mapping[int, int]
    """Local rank → process id. With torchrun: torchrun's."""
    wrote: Mapping[int, str]
    """Local rank → the last lines of its standard error."""
    since: float
    """Time at which they were started. Older files are of other launches."""

    def process_of(self, local_rank: int) -> int:
        """Process that the rank is, or below which it runs."""
        return self.processes.get(local_rank, next(iter(self.processes.values()), 0))


@dataclass(slots=True, eq=False)
class Collection:
    """Runs in a thread of its own: what it reads may hang for good."""

    here: RanksHere
    places: Places
    environment: Mapping[str, str]
    helpers: set[int]
    """Gets the processes that it starts."""
    roots: Callable[[int], list[int]] = lambda pid: [pid]
    """Process of a rank → those of which the rank consists, with all below these."""
    begun: float = field(default_factory=time.monotonic)
    _found: dict[int, dict[str, Any]] = field(default_factory=dict)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        waited = time.monotonic() - self.begun
        return waited > COLLECT_SECONDS or self._thread is None or not self._thread.is_alive()

    def result(self, bytes_max: int) -> list[dict[str, Any]]:
        """Findings for each rank, in no more than that many bytes."""
        each = bytes_max // max(1, self.here.count)
        return [_cut(one, each) for _, one in sorted(self._found.items())]

    def _run(self) -> None:
        here = self.here
        places = self.places.ask(here.count)
        processes = {pid: self._processes_of(pid)[:PROCESSES_MAX] for pid in here.processes.values()}
        asked = {root: [pid for pid in pids if has_handler(pid, STACKS_SIGNAL)] for root, pids in processes.items()}
        for pid in (pid for pids in asked.values() for pid in pids):
            with contextlib.suppress(OSError):
                os.kill(pid, STACKS_SIGNAL)
        waits = {pid: _threads(pid) for pids in processes.values() for pid in pids}
        for local_rank in range(here.count):
            lines = [line for pid in processes.get(here.processes.get(local_rank, -1), ()) for line in waits[pid]]
            self._note(local_rank, waits="\n".join(lines), wrote=here.wrote.get(local_rank, ""))
        _await([place for one, place in enumerate(places) if asked.get(here.process_of(one))])
        without = [local_rank for local_rank, place in enumerate(places) if not self._note_answers(local_rank, place)]
        for local_rank in range(here.count):
            if not self._found[local_rank].get("entered"):
                self._note(local_rank, **recorded_in_file(self.environment, here.first + local_rank, here.since))
        self._spy({one: here.processes[one] for one in without if one in here.processes})

    def _processes_of(self, pid: int) -> list[int]:
        return [one for root in self.roots(pid) for one in (root, *below(root))]

    def _note(self, local_rank: int, **what: object) -> None:
        found = self._found.get(local_rank, {"rank": self.here.first + local_rank})
        self._found = {**self._found, local_rank: {**found, **what}}

    def _note_answers(self, local_rank: int, place: Place) -> bool:
        """True if it has shown its stacks."""
        stacks, answers = place.new()
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            answer = json.loads(answers.splitlines()[-1]) if answers.endswith(b"\n") else {}
            self._note(local_rank, **{name: answer[name] for name in ("last", "entered", "groups") if name in answer})
        if stacks:
            self._note(local_rank, stacks=_ADDRESS.sub("0x…", stacks.decode(errors="replace")))
        return bool(stacks)

    def _spy(self, processes: Mapping[int, int]) -> None:
        """Asks py-spy for the stacks of ranks that have not shown them."""
        spy = shutil.which("py-spy", path=self.environment.get("PATH")) if processes else None
        if spy is None:
            return
        running: dict[int, tuple[subprocess.Popen[bytes], int]] = {}
        for local_rank, pid in processes.items():
            output = os.memfd_create("py-spy")
            with contextlib.suppress(OSError):
                command = [spy, "dump", "--nonblocking", "--pid", str(pid)]
                program = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, process_group=0
                )
                self.helpers.add(program.pid)
                running[local_rank] = (program, output)
        until = time.monotonic() + SPY_SECONDS
        while time.monotonic() < until and any(program.poll() is None for program, _ in running.values()):
            time.sleep(0.02)
        for local_rank, (program, output) in running.items():
            if program.poll() is None:
                program.kill()
            if stacks := os.pread(output, 1 << 20, 0).decode(errors="replace"):
                self._note(local_rank, stacks=_ADDRESS.sub("0x…", stacks))
            os.close(output)


def _await(places: Sequence[Place]) -> None:
    """Returns when all that were asked have shown all and nothing more comes; what needs Python's lock is not waited
    for long.
    """
    begun = steady_since = time.monotonic()
    sizes = [(0, 0)]
    while places and (now := time.monotonic()) - begun < STACKS_SECONDS:
        found = [place.new() for place in places]
        if sizes != (sizes := [(len(stacks), len(answers)) for stacks, answers in found]):
            steady_since = now
        answered = all(answers.endswith(b"\n") for _, answers in found) or now - begun > ANSWER_SECONDS
        if answered and all(stacks for stacks, _ in found) and now - steady_since >= STEADY_SECONDS:
            return
        time.sleep(0.01)


def _cut(one: Mapping[str, Any], bytes_max: int) -> dict[str, Any]:
    """Texts of a rank are cut first, then what its flight recorder has."""
    cut = {name: one[name] for name in ("rank", "last", "entered", "groups") if name in one}
    if len(json.dumps(cut)) > bytes_max // 2:
        cut = {"rank": one["rank"]}
    characters = min(SHOWN_CHARACTERS_MAX, bytes_max // 8)  # of each; JSON writes some with six bytes
    for name in ("waits", "stacks", "wrote"):
        text = str(one.get(name, ""))
        cut[name] = text if len(text) <= characters else f"{text[:characters]}\n(cut)"
    return cut


# -- the kernel ------------------------------------------------------------------------------------------------------


def _threads(pid: int) -> list[str]:
    """What each thread of a process waits for; those that wait alike in one line. None of these files needs the lock of
    the process's memory, which a thread that hangs in a page fault may hold.
    """
    found: Counter[str] = Counter()
    with contextlib.suppress(OSError):
        for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int)[:THREADS_MAX]:  # noqa: PTH208 - by number
            place = f"/proc/{pid}/task/{task}"
            state = "?"
            with contextlib.suppress(OSError):
                state = read_stat(Path(place, "stat")).state
            call = _read(f"{place}/syscall").split()[:1]
            kernel = " < ".join(line.split("] ")[-1].split("+")[0] for line in _read(f"{place}/stack").splitlines()[:6])
            where = kernel or _read(f"{place}/wchan").strip("\0 \n0") or "?"
            found[f"state {state}, waits in {where}, system call {''.join(call) or '?'}"] += 1
    name = _read(f"/proc/{pid}/comm").strip()
    return [f"{name}: {count} thread{'s' if count > 1 else ''}: {what}" for what, count in found.most_common()]


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as file:  # noqa: PTH123 - many small files
            return file.read(65536)
    except OSError:
        return ""


# -- files of PyTorch's flight recorder ------------------------------------------------------------------------------


class _PlainUnpickler(pickle.Unpickler):
    """The recorder's files are dictionaries, lists, texts and numbers. Anything else could run a program."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is no plain value")


def recorded_in_file(environment: Mapping[str, str], rank: int, since: float) -> dict[str, Any]:
    """What PyTorch has written for this rank after `since`, as the hook reports it. Empty: there is no such file."""
    prefix = next((environment[name] for name in RECORDER_VARIABLES if environment.get(name)), RECORDER_PREFIX)
    try:
        descriptor = os.open(f"{prefix}{rank}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return {}
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()
        if not own or found.st_size > RECORDER_BYTES_MAX or found.st_mtime < since:
            return {}
        try:
            return recorded(_PlainUnpickler(file).load())
        except Exception:  # noqa: BLE001 - of another release of PyTorch, or half written
            return {}


def recorded(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same as `understudy.evidence.recorded`: a test compares the two."""
    rows: dict[str, list[list[Any]]] = {}
    for one in content["entries"]:
        if not one.get("is_p2p"):
            of_group = rows.setdefault(_group(one), [])
            of_group.append([int(one["collective_seq_id"]), str(one["profiling_name"])[:64]])
            del of_group[:-ENTERED_MAX]
    groups = {_name(name, one): str(one.get("ranks", "")) for name, one in content.get("pg_config", {}).items()}
    return {
        "entered": dict(list(rows.items())[-GROUPS_MAX:]),
        "groups": {name: ranks for name, ranks in list(groups.items())[:GROUPS_MAX] if len(ranks) <= 4096},
    }


def _group(entry: Mapping[str, Any]) -> str:
    return ":".join(map(str, entry.get("process_group") or (entry.get("pg_id", 0),)))[:64]


def _name(key: object, group: Mapping[str, Any]) -> str:
    return f"{group.get('name') or key}:{group.get('desc', '')}"[:64]
