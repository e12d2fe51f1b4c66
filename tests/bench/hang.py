"""Real gloo gangs that hang in each way of a catalogue, and some that wait for a rank at work: who is named.

Ranks are processes of this machine. In each a thread reads the flight recorder as the hook does; the agent's process
watch looks at them, and the control plane's verdict judges. The times between looks are shorter than in the product.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import mmap
import multiprocessing
import os
import random
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import msgspec

from tests.bench.result import Result, Size, result
from understudy import recorder
from understudy_agent.process_watch import ProcessWatch
from understudy_agent.rank_messages import RecorderSeen, decode
from understudy_controlplane.detect import hang_verdict
from understudy_controlplane.detect.hang import ASK_SECONDS
from understudy_controlplane.detect.hang_verdict import Cause, RankShown, Verdict
from understudy_wire.ranks import Entered, GroupPlace, ProcessNow, ProcessState, Recorder

RANKS = 8
RUNS = 20
WAITS = 1000
"""Waits for a rank at work: each run has one gang for its part of them."""
WAITS_NAME = "waits for a rank at work"
LANES = 2
SECONDS_MAX = 4500.0
"""No run begins after this time."""
LARGE = 2048
LOOK_SECONDS = 0.3
IDLE_SECONDS = 1.0
COLLECTIVES = 6
"""Collectives of each rank between two waits."""
ENTER_SECONDS = 1.0
"""Time without another collective after which all ranks are where they hang, on a machine that does nothing else."""
ANSWER_SECONDS = 2.0
"""Time there for a rank to answer; in the product `ASK_SECONDS`, as for one whose collectives still move."""


@dataclass(frozen=True, slots=True)
class Gang:
    """What a rank uses to hang."""

    torch: Any
    dist: Any
    rank: int
    pair: Any  # its process group with a neighbour
    folder: Path
    sums: Any
    entered: memoryview[float]  # shared by all: when each rank last entered a collective, then how many each entered
    wait: int = 0  # which of several; the bench lets a rank go on that others wait for

    @property
    def holds(self) -> bool:
        return not self.over.exists()

    @property
    def over(self) -> Path:
        return _over(self.folder, self.wait)

    def reduce(self, group: Any = None) -> None:
        self.enter()
        self.dist.all_reduce(self.sums, group=group)

    def enter(self) -> None:
        self.entered[self.rank] = time.monotonic()
        self.entered[RANKS + self.rank] += 1


def sleeps(_gang: Gang) -> None:
    time.sleep(600)


def sleeps_before_its_pairs_collective(gang: Gang) -> None:
    gang.reduce()
    time.sleep(600)


def is_stopped(_gang: Gang) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def computes(gang: Gang) -> None:
    while gang.holds:
        pass


def waits_for_data(gang: Gang) -> None:
    os.open(gang.folder / "fifo", os.O_RDONLY)


def blocks_in_the_kernel(gang: Gang) -> None:
    """A new process does not get to its program: its parent waits inside the kernel, and holds Python's lock."""
    os.posix_spawn(
        "/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 9, gang.folder / "fifo", os.O_RDONLY, 0)]
    )


def ends(_gang: Gang) -> None:
    os._exit(9)


def throws_and_goes_on(_gang: Gang) -> None:
    while True:
        with contextlib.suppress(OSError):
            raise OSError("a worker of the data loader")
        time.sleep(30)


def enters_another(gang: Gang) -> None:
    gang.enter()
    gang.dist.broadcast(gang.sums, gang.rank)


def enters_its_pair_first(gang: Gang) -> None:
    gang.reduce(gang.pair)


def saves_slowly(gang: Gang) -> None:
    with (gang.folder / "checkpoint").open("wb") as file:
        while gang.holds:
            file.write(b"x" * 65536)
            file.flush()
            time.sleep(0.05)


def compiles(gang: Gang) -> None:
    program = f"import os\nwhile not os.path.exists({str(gang.over)!r}): pass"
    os.waitpid(os.posix_spawn(sys.executable, ["python", "-S", "-c", program], {}), 0)


@dataclass(frozen=True, slots=True)
class Fault:
    cause: Cause
    act: Callable[[Gang], None]
    suspect: bool = True
    partner: bool = False  # its neighbour is named, too
    second: Callable[[Gang], None] | None = None  # of another rank at the same time


FAULTS: Mapping[str, Fault] = {
    "sleeps": Fault(Cause.NOT_ENTERED, sleeps),
    "sleeps before its pair's collective": Fault(Cause.NOT_ENTERED, sleeps_before_its_pairs_collective),
    "waits for data": Fault(Cause.NOT_ENTERED, waits_for_data),
    "throws and is caught": Fault(Cause.NOT_ENTERED, throws_and_goes_on),
    "stopped": Fault(Cause.PROCESS, is_stopped),
    "blocked in the kernel": Fault(Cause.PROCESS, blocks_in_the_kernel),
    "ends in silence": Fault(Cause.PROCESS, ends),
    "stopped, and another sleeps": Fault(Cause.PROCESS, is_stopped, second=sleeps),
    "loops in Python": Fault(Cause.NOT_ENTERED, computes, suspect=False),
    "enters another collective": Fault(Cause.OTHER_ARGUMENTS, enters_another, suspect=False),
    "enters two groups in another order": Fault(Cause.OTHER_ORDER, enters_its_pair_first, suspect=False, partner=True),
}
INNOCENT: Mapping[str, Fault] = {
    "evaluates": Fault(Cause.NOT_ENTERED, computes, suspect=False),
    "saves slowly": Fault(Cause.NOT_ENTERED, saves_slowly, suspect=False),
    "compiles": Fault(Cause.NOT_ENTERED, compiles, suspect=False),
}
QUICK = ("sleeps", "stopped", "enters another collective")


@dataclass(frozen=True, slots=True)
class Outcome:
    right: bool
    innocents: int  # ranks whose nodes are suspects without a fault
    seconds: float  # from the last collective that a rank entered to the verdict
    verdict: Verdict


def hang(name: str, seed: int) -> Outcome:
    """Called in a process that has no other threads: it forks the ranks."""
    importlib.import_module("torch")  # once, for all of them
    fault, draw = {**FAULTS, **INNOCENT}[name], random.Random(seed)  # noqa: S311 - a seed
    bad, other = draw.sample(range(0, RANKS, 2), 2)
    acts = {bad: fault.act} | ({other: fault.second} if fault.second else {})
    with _gang([acts]) as (ranks, entered, _):
        while time.monotonic() - _last(entered) < ENTER_SECONDS * max(1.0, load() / 4):
            time.sleep(LOOK_SECONDS)
        verdict = hang_verdict.verdict(ask(ranks))
        seconds = time.monotonic() - _last(entered)
    named = {*acts, *([bad + 1] if fault.partner else [])}
    suspects = {*acts} if fault.suspect else set()
    right = (verdict.cause, {*verdict.ranks}, {*verdict.suspects}) == (fault.cause, named, suspects)
    return Outcome(right, len({*verdict.suspects} - suspects), seconds, verdict)


def innocent_waits(seed: int, count: int) -> list[Outcome]:
    """One gang that waits `count` times for a rank at work, and goes on each time. Called like `hang`."""
    importlib.import_module("torch")
    draw = random.Random(seed)  # noqa: S311 - a seed
    faults = [draw.choice([*INNOCENT.values()]) for _ in range(count)]
    acts = [{draw.randrange(RANKS): one.act} for one in faults]
    found = []
    with _gang(acts) as (ranks, entered, folder):
        for wait, (fault, act) in enumerate(zip(faults, acts, strict=True)):
            until = time.monotonic() + 60 * load()
            while any(entered[RANKS + rank] < COLLECTIVES * (wait + 1) + 1 for rank in ranks if rank not in act):
                assert time.monotonic() < until, "the ranks do not enter their collective"
                time.sleep(LOOK_SECONDS)
            verdict = hang_verdict.verdict(ask(ranks))
            right = (verdict.cause, {*verdict.ranks}, verdict.suspects) == (fault.cause, {*act}, ())
            found.append(Outcome(right, len(verdict.suspects), time.monotonic() - _last(entered), verdict))
            _over(folder, wait).touch()
    return found


def _last(entered: memoryview[float]) -> float:
    """When a rank last entered a collective."""
    return max(entered[:RANKS])


def _over(folder: Path, wait: int) -> Path:
    return folder / f"over-{wait}"


@dataclass(slots=True)
class Rank:
    pid: int
    ask: int
    answers: int
    asked: int = 0
    rest: bytes = b""  # of a line


def ask(ranks: Mapping[int, Rank]) -> list[RankShown]:
    for one in ranks.values():
        one.asked += 1
        with contextlib.suppress(BrokenPipeError):  # it has ended
            os.write(one.ask, b"?")
    recorders = _answers(ranks)
    watches = {rank: ProcessWatch(one.pid) for rank, one in ranks.items()}
    for watch in watches.values():
        watch.look()
    time.sleep(IDLE_SECONDS + 0.1)
    return [RankShown(rank, recorders[rank], watches[rank].look(), idle_seconds_min=IDLE_SECONDS) for rank in ranks]


def load() -> float:
    """Factor by which everything takes longer here now."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def _answers(ranks: Mapping[int, Rank]) -> dict[int, Recorder | None]:
    """Newest answer of each, when all that answer stand still. Some never answer."""
    of = {one.answers: rank for rank, one in ranks.items()}
    found: dict[int, Recorder | None] = dict.fromkeys(ranks)
    asked = time.monotonic()
    silent_until, moving_until = asked + ANSWER_SECONDS * load(), asked + ASK_SECONDS
    while (left := moving_until - time.monotonic()) > 0:
        silent = any(one is None for one in found.values()) and silent_until > time.monotonic()
        if not silent and all(one is None or one.still for one in found.values()):
            break
        for ready in select.select([*of], [], [], min(left, LOOK_SECONDS))[0]:
            rank, chunk = of[ready], os.read(ready, 65536)
            if not chunk:
                del of[ready]
            whole = (ranks[rank].rest + chunk).split(b"\n")
            ranks[rank].rest = whole.pop()
            for line in whole:
                number, _, content = line.partition(b" ")
                seen = decode(content + b"\n")
                assert isinstance(seen, RecorderSeen)
                if int(number) == ranks[rank].asked:
                    found[rank] = Recorder(seen.groups, seen.peers, seen.still)
    return found


Acts = Mapping[int, Callable[[Gang], None]]


@contextlib.contextmanager
def _gang(waits: Sequence[Acts]) -> Iterator[tuple[dict[int, Rank], memoryview[float], Path]]:
    """Ranks that train, and at each wait do what is asked; when each last entered a collective; and their folder."""
    entered = memoryview(mmap.mmap(-1, 2 * 8 * RANKS)).cast("d")
    ranks: dict[int, Rank] = {}
    ready, is_ready = os.pipe()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as home:
        folder = Path(home)
        os.mkfifo(folder / "fifo")
        try:
            for rank in range(RANKS):
                asked, to_rank = os.pipe()
                answers, from_rank = os.pipe()
                pid = os.fork()
                if pid == 0:
                    try:
                        own = [acts.get(rank) for acts in waits]
                        _train(_begun(folder, rank, entered), own, (asked, from_rank), is_ready)
                    finally:
                        os._exit(1)
                os.close(asked)
                os.close(from_rank)
                ranks[rank] = Rank(pid, to_rank, answers)
            for _ in ranks:
                assert select.select([ready], [], [], 60 * load())[0], "the gang does not begin"
                os.read(ready, 1)
            yield ranks, entered, folder
        finally:
            for one in ranks.values():
                os.killpg(one.pid, signal.SIGKILL)
                os.waitpid(one.pid, 0)
                os.close(one.ask)
                os.close(one.answers)
            os.close(ready)
            os.close(is_ready)


def _begun(folder: Path, rank: int, entered: memoryview[float]) -> Gang:
    os.setpgid(0, 0)
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    pairs = [dist.new_group([first, first + 1]) for first in range(0, RANKS, 2)]
    return Gang(torch, dist, rank, pairs[rank // 2], folder, torch.ones(64), entered)


def _train(
    gang: Gang, acts: Sequence[Callable[[Gang], None] | None], questions: tuple[int, int], is_ready: int
) -> None:
    _reduce(gang)
    threading.Thread(target=_show_when_asked, args=questions, daemon=True).start()
    os.write(is_ready, b".")
    with contextlib.suppress(RuntimeError):  # gloo's, where a peer has ended
        for wait, act in enumerate(acts):
            if act is not None:
                act(replace(gang, wait=wait))
            _reduce(gang)
    time.sleep(600)


def _reduce(gang: Gang) -> None:
    for _ in range(COLLECTIVES // 2):
        gang.reduce()
        gang.reduce(gang.pair)


def _show_when_asked(asked: int, answers: int) -> None:
    """Shows what the recorder has from a question on until the next one, with the question's number."""
    watch, number = recorder.RecorderWatch(), 0
    with patch.object(recorder, "LOOK_SECONDS", LOOK_SECONDS):
        while True:
            if select.select([asked], [], [], LOOK_SECONDS if number else None)[0]:
                number += len(os.read(asked, 1))
                watch = recorder.RecorderWatch()
            watch.ask(time.monotonic())
            message = watch.latest(time.monotonic(), 0.0)
            os.write(answers, b"%d %s\n" % (number, json.dumps(message).encode()))


def large_gang(draw: random.Random) -> list[RankShown]:
    """Recorded answers of eight ranks, replayed for 2,048 in groups of eight; one has not entered."""
    late = draw.randrange(LARGE)
    shown = []
    for rank in range(LARGE):
        number = 119 if rank == late else 120
        sums = [Entered(one, "all_reduce [[64]] Float") for one in range(number - 2, number + 1)]
        world = GroupPlace("0:default_pg", number, 0 if rank == late else number, sums)
        own = [GroupPlace(f"{rank // 8 + 1 + 256 * one}:undefined", 40, 0, sums) for one in range(4)]
        content = msgspec.json.encode(Recorder([world, *own], [], still=True))
        shown.append(
            RankShown(rank, msgspec.json.decode(content, type=Recorder), ProcessNow(ProcessState.SLEEPS, 60.0))
        )
    return shown


def look_share() -> float:
    """Part of a processor that the looks take while a rank is asked: of a full recorder of PyTorch's 2,000 entries."""
    entry = {
        "record_id": 0,
        "process_group": ("0", "default_pg"),
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4096, 4096]],
        "input_dtypes": ["Float"],
        "output_sizes": [[4096, 4096]],
        "output_dtypes": ["Float"],
        "state": "completed",
        "retired": True,
        "is_p2p": False,
    }
    content = {"entries": [{**entry, "collective_seq_id": number} for number in range(2000)], "pg_config": {}}
    began = time.process_time()
    recorder.places(content)
    return (time.process_time() - began) / recorder.LOOK_SECONDS


def _show(name: str, outcomes: Sequence[Outcome]) -> None:
    right, innocents = sum(one.right for one in outcomes), sum(one.innocents for one in outcomes)
    unnamed = sum(not one.verdict.ranks for one in outcomes)
    print(f"{name}: {right} of {len(outcomes)} right, {unnamed} named no rank, {innocents} innocents", flush=True)
    for wrong in [one for one in outcomes if not one.right][:3]:
        print(f"  {wrong.verdict}", flush=True)


def _round(names: Sequence[str], waits: int, seed: int, until: float) -> dict[str, list[Outcome]]:
    """Each fault once, and one gang's innocent waits. Empty when the bench has taken too long."""
    if time.monotonic() > until:
        return {}
    return {**{name: [hang(name, seed)] for name in names}, WAITS_NAME: innocent_waits(seed, waits)}


def measure(size: Size) -> list[Result]:
    names, count = size.of((*FAULTS, *INNOCENT), QUICK), size.of(WAITS // RUNS, 2)
    outcomes: dict[str, list[Outcome]] = {name: [] for name in names}
    waits: list[Outcome] = []
    until = time.monotonic() + SECONDS_MAX
    with ProcessPoolExecutor(LANES, multiprocessing.get_context("spawn")) as forks:
        rounds = [forks.submit(_round, names, count, seed, until) for seed in range(size.of(RUNS, 1))]
        for one in as_completed(rounds):
            for name, many in one.result().items():
                (waits if name == WAITS_NAME else outcomes[name]).extend(many)
            print(f"load {os.getloadavg()[0]:.0f}", flush=True)
            for name, many in {**outcomes, WAITS_NAME: waits}.items():
                _show(name, many)
    all_of = [one for many in (*outcomes.values(), waits) for one in many]
    faults = [one for name in names if name in FAULTS for one in outcomes[name]]
    at_fault = sum(
        1 + bool(FAULTS[name].second) + FAULTS[name].partner for name in names if name in FAULTS for _ in outcomes[name]
    )
    unit = f"of {RANKS * len(all_of) - at_fault} ranks without a fault"
    large = []
    for seed in range(size.of(5, 1)):
        shown = large_gang(random.Random(seed))  # noqa: S311 - a seed
        began = time.monotonic()
        assert hang_verdict.verdict(shown).suspects
        large.append(time.monotonic() - began)
    shares = [sum(one.right for one in many) / len(many) for name, many in outcomes.items() if name in FAULTS]
    return [
        result("named_right_share", "of hangs, by fault", [median(shares), min(shares)], {}, more_is_better=True),
        result("innocents_named", unit, [sum(one.innocents for one in all_of)], {}, more_is_better=False),
        result("seconds_to_verdict", "s", [one.seconds for one in faults], {}, more_is_better=False),
        result("seconds_to_verdict_2048_ranks", "s", large, {}, more_is_better=False),
        result("cost_of_collection_share", "of a processor", [look_share()], {}, more_is_better=False),
    ]
