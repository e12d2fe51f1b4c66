"""Step times of one attempt, kept in arrays: a ring of the last steps for every rank."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.steps import BLOCK_STEPS, Block, Durations, StepTable, Transfers
from understudy_controlplane.live.communicators import CommunicatorBuffer
from understudy_wire.places import NOWHERE, Place
from understudy_wire.ranks import (
    NCCL_ASKED_MAX,
    Collective,
    NcclSeen,
    ProcessNow,
    RankWindow,
    Recorder,
    Training,
)

STEPS_KEPT = 128
STEP_SECONDS_MAX = 1e6

RANKS_AT_ONCE = 8_192
"""Ranks whose steps are copied while no report is taken: some milliseconds."""

OF_STEPS = ("_last", "_ring", "_data", "_work")
"""Arrays with a row for each rank that belong together: how far it has come, and what its steps took."""

PAIRS_MAX = 16_384
"""Pairs of ranks of a gang whose transfers are kept: the first that are reported."""


@dataclass(frozen=True, slots=True)
class RankNow:
    """Step and time of one rank of an attempt at its last report."""

    rank: int
    node: str  # empty: it never reported
    role: str
    gpu_index: int | None
    last_step: int | None  # the number of the last step it finished
    collective: Collective | None  # the last it entered, if it reports them
    step_seconds: float | None  # the mean of its last report
    training: Training


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """The last steps as tables show them, until a rank reports more."""

    first_step: int
    last_step: npt.NDArray[np.int64]
    self_seconds: npt.NDArray[np.float32]
    data_seconds: npt.NDArray[np.float32] | None
    work: npt.NDArray[np.float32] | None
    transfers: Transfers | None
    kept: dict[str, object]  # as in `StepTable`


STARTUP_SECONDS_MIN = 1.0
"""Start of a gang whose first report has steps already: it is known to be short. 0 means not known."""


class StepBuffer:
    """`ring[rank, place % STEPS_KEPT]` is the self time of the step of this place; NaN where it was not reported.

    Places count the steps that end, so they only grow. The number that the program gives to a step may fall: where it
    counts within an epoch, trains a second time, or resumes from an older step. Then the places go on with that count,
    also in the next attempt: it continues, or repeats, what the last one was doing.
    """

    _added = 0  # how many times something was
    _table: StepTable | None = None  # None: something was added since it was made
    _steps: _Steps | None = None  # None: steps were

    def __init__(
        self, attempt: Attempt, world_size: int, learnt: Durations | None = None, before: Place = NOWHERE
    ) -> None:
        """`learnt` is what earlier attempts of the job took. `before`: how far this attempt had come when it was last
        heard, and where the count of the newest attempt began.
        """
        self.attempt = attempt
        self.durations = learnt or Durations()
        self.world_size = world_size
        self.advanced_at = self.heard_since = self._left_section_at = 0.0
        self._unheard_seconds = self._unheard_until = self._block_data = self._block_begun_at = 0.0
        self._newest, self._newest_at, self._reached = -1, 0.0, before.step
        self._sections: dict[int, tuple[str, float]] = {}
        """Rank → the section that it is in, and since when it was reported."""
        self._stacks: dict[int, str] = {}
        """Rank → where it stands still. Ranks that wait for the same have one text in memory."""
        self._at_rest: dict[int, tuple[Recorder | None, ProcessNow | None]] = {}  # as in `StepTable`
        self._nccl: dict[int, NcclSeen] = {}
        self._communicators = CommunicatorBuffer(world_size)
        self._training: dict[int, Training] = {}
        """Rank → what it last reported of its training."""
        self._leader: int | None = None
        self._block: list[float] = []
        self._block_self: list[float] = []
        self._block_tokens: list[float] = []
        self._wall = np.full(world_size, np.nan, dtype=np.float32)
        """Per rank: duration of a step, the mean of its last report."""
        self._pauses: deque[float] = deque(maxlen=STEPS_KEPT)
        """Seconds between reports of steps that no rank had finished before."""
        self.first_step: int | None = None  # of the attempt, as first reported by any rank
        self.nodes = [""] * world_size
        self.roles = [""] * world_size
        self.gpus: list[int | None] = [None] * world_size
        self.collectives: list[Collective | None] = [None] * world_size
        """The last collective that each rank was reported to have entered."""
        self._sequences = np.full(world_size, -1, dtype=np.int64)
        self._inside = np.zeros(world_size, dtype=np.bool_)
        self._ring = np.full((world_size, STEPS_KEPT), np.nan, dtype=np.float32)
        self._data: npt.NDArray[np.float32] | None = None
        self._work: npt.NDArray[np.float32] | None = None
        """Rings as well, once a rank reports such values."""
        self._pairs: dict[int, dict[int, int]] = {}
        """Rank → each of its peers → the row of `_transfers`."""
        self._pair_count = 0
        self._places = np.empty((0, 2), dtype=np.int64)
        """Rank and peer of each row, as far as it was asked for."""
        self._transfers = np.empty((0, STEPS_KEPT), dtype=np.float32)
        """A ring as the others."""
        self._replicas = np.full(world_size, -1, dtype=np.int64)
        self._last = np.full(world_size, -1, dtype=np.int64)
        self._ended = np.zeros(world_size, dtype=np.bool_)
        self._ahead, self._counts = [before.count_from] * world_size, [0] * world_size
        """Places that each rank is ahead of the numbers of its program, and its count."""
        self._count, self.count_from, self.fell_at = 0, before.count_from, 0.0
        """The newest count of any rank, the place at which its step 0 would be, and when it began."""

    def note_unheard(self, since: float, until: float) -> None:
        """The agent of one of its nodes was not heard. Gaps of several nodes at the same time count once."""
        self._added, self._table = self._added + 1, None
        begun = max(since, self._unheard_until, self.advanced_at)
        self._unheard_seconds += max(until - begun, 0.0)
        self._unheard_until = until

    def add(self, window: RankWindow, node: str, now: float) -> None:
        """Steps that were reported before are ignored; missing ones stay NaN."""
        self._added, self._table = self._added + 1, None
        rank = window.rank
        self.heard_since = self.heard_since or now
        self.nodes[rank] = node
        self.roles[rank] = window.role
        self.gpus[rank] = window.gpu_index
        self._replicas[rank] = -1 if window.dp_rank is None else window.dp_rank
        self._ended[rank] = window.ended
        self._note_place(rank, window, now)
        times, last = window.self_seconds, int(self._last[rank])
        if not times:
            return
        self._steps = None
        first = self._place(rank, window, now)
        end = first + len(times)
        if first <= last:
            times = times[last + 1 - first :]
            first = last + 1
        if last >= 0 and first > last + 1:
            self._forget(rank, last + 1, first)
        times = times[-STEPS_KEPT:]
        self._note_duration(rank, window, now)
        _write(self._ring[rank], end, times)
        if window.data_seconds and self._data is None:
            self._data = np.where(np.isnan(self._ring), self._ring, np.float32(0))
        if self._data is not None:
            _write(self._data[rank], end, (window.data_seconds or [0.0] * len(times))[-len(times) :])
        if window.work and self._work is None:
            self._work = np.full_like(self._ring, np.nan)
        if self._work is not None:
            known = [math.nan if value is None else value for value in window.work[-len(times) :]]
            _write(self._work[rank], end, known or [math.nan] * len(times))
        if window.transfers or rank in self._pairs:
            self._note_transfers(rank, window, end, len(times))
        if end - 1 > self._newest:
            if self._newest >= 0:
                pause = now - max(self._newest_at, self._left_section_at)
                self._pauses.append(pause)
                self.durations = self.durations.with_pause(pause)
            else:
                self.durations = self.durations.with_startup(max(now - self.heard_since, STARTUP_SECONDS_MIN))
            self._newest, self._newest_at = end - 1, now
        self._last[rank] = end - 1
        self.advanced_at = now
        self._unheard_seconds = 0.0
        if self.first_step is None or first < self.first_step:
            self.first_step = first

    def _place(self, rank: int, window: RankWindow, now: float) -> int:
        """Place of its first step. The first rank whose numbers fall begins a count, and the others follow."""
        first, last = self._ahead[rank] + window.first_step, int(self._last[rank])
        if first + len(window.self_seconds) - 1 > last:
            return first
        if self._counts[rank] == self._count:
            self._count += 1
            self.count_from, self.fell_at = self._newest + 1 - window.first_step, now
        self._counts[rank] = self._count
        first = max(self.count_from + window.first_step, last + 1)
        self._ahead[rank] = first - window.first_step
        return first

    def _note_transfers(self, rank: int, window: RankWindow, end: int, count: int) -> None:
        """A peer that the window does not name took no time in it."""
        reported = {one.peer: one.seconds for one in window.transfers}
        rows = self._pairs.setdefault(rank, {})
        for peer in reported.keys() - rows.keys():
            if self._pair_count < PAIRS_MAX:
                rows[peer] = self._pair_count
                self._pair_count += 1
        missing = self._pair_count - len(self._transfers)
        if missing > 0:
            more = np.full((max(missing, len(self._transfers), 16), STEPS_KEPT), np.nan, dtype=np.float32)
            self._transfers = np.concatenate([self._transfers, more])
        for peer, row in rows.items():
            _write(self._transfers[row], end, (reported.get(peer) or [0.0] * count)[-count:])

    def _known_transfers(self, begin: int, end: int, late: npt.NDArray[np.bool_]) -> Transfers | None:
        if not self._pair_count:
            return None
        if len(self._places) != self._pair_count:
            rows = sorted((row, rank, peer) for rank, peers in self._pairs.items() for peer, row in peers.items())
            self._places = np.array(rows, np.int64)[:, 1:]
        seconds = _read(self._transfers[: self._pair_count], begin, end, late[self._places[:, 0]])
        return Transfers(self._places, seconds)

    def _note_duration(self, rank: int, window: RankWindow, now: float) -> None:
        """Notes the duration of a step as the rank's process reports it: what cannot be is left out. A step takes all
        ranks the same time, so blocks are those of the first rank that reports.
        """
        wall_seconds = window.wall_seconds
        mean = sum(wall_seconds) / max(len(wall_seconds), 1)
        if not 0 < mean < STEP_SECONDS_MAX:
            return
        self._wall[rank] = mean
        if self._leader is None:
            self._leader = rank
        if rank == self._leader:
            self._block_begun_at = self._block_begun_at if self._block else now
            self._block += wall_seconds
            self._block_self += window.self_seconds
            self._block_data += sum(window.data_seconds)
            if window.training is not None and window.training.tokens_per_second is not None:
                self._block_tokens.append(window.training.tokens_per_second)
            if len(self._block) >= BLOCK_STEPS:
                self.durations = self.durations.with_block(self._whole_block())
                self._block, self._block_self, self._block_data, self._block_tokens = [], [], 0.0, []

    def _whole_block(self) -> Block:
        return Block(
            self._block_begun_at,
            median(self._block),
            median(self._block_self) if self._block_self else 0.0,
            self._block_data / len(self._block),
            tuple(self.nodes),
            self.attempt,
            median(self._block_tokens) if self._block_tokens else 0.0,
        )

    def _note_place(self, rank: int, window: RankWindow, now: float) -> None:
        if window.collective is not None:
            self.collectives[rank] = window.collective
            self._sequences[rank], self._inside[rank] = window.collective.sequence, window.collective.inside
        if window.section is not None:
            self._enter_section(rank, window.section, now)
        if window.collective_times is not None:
            self._communicators.add(rank, window.collective_times, now)
        if window.training is not None:
            self._training[rank] = window.training
        if window.stack:
            self._stacks[rank] = sys.intern(window.stack)
        elif window.self_seconds:
            self._stacks.pop(rank, None)
        if window.self_seconds:
            self._at_rest.pop(rank, None)
            self._nccl.pop(rank, None)
        elif window.recorder or window.process:
            before = self._at_rest.get(rank, (None, None))
            self._at_rest[rank] = (window.recorder or before[0], window.process or before[1])
            if window.nccl is not None and (rank in self._nccl or len(self._nccl) < NCCL_ASKED_MAX):
                self._nccl[rank] = window.nccl

    def copied(self, lock: AbstractContextManager[object]) -> StepBuffer:
        """A copy, made while others add windows under this lock. It holds the lock for RANKS_AT_ONCE ranks at a time:
        some are a few windows older than others, as they are where their reports come at different times. Each by
        itself is of one moment, and so are all together where transfers between ranks are known.
        """
        with lock:
            other = copy(self)
            other._table = other._steps = None
            for name, value in vars(self).items():
                if name not in OF_STEPS and isinstance(value, np.ndarray | list | dict | deque):
                    setattr(other, name, value.copy())
            other._pairs = {rank: peers.copy() for rank, peers in self._pairs.items()}
            rows = self.world_size if self._pairs else RANKS_AT_ONCE
            arrays = {name: np.empty_like(one) for name in OF_STEPS if (one := getattr(self, name)) is not None}
            self._copy_rows(arrays, 0, rows)
        vars(other).update(arrays)
        for first in range(rows, self.world_size, rows):
            with lock:
                self._copy_rows(arrays, first, rows)
        return other

    def _copy_rows(self, arrays: Mapping[str, npt.NDArray[Any]], first: int, count: int) -> None:
        for name, target in arrays.items():
            target[first : first + count] = getattr(self, name)[first : first + count]

    def table(self, job: JobKey) -> StepTable:
        """A copy of the last steps, oldest first; the one before, if nothing was added since."""
        if self._table is None or self._table.job != job:
            self._table = self._made_table(job)
        return self._table

    def has_table(self, job: JobKey) -> bool:
        """`table` has nothing to copy."""
        return self._table is not None and self._table.job == job

    def keep_table_of(self, copy: StepBuffer) -> None:
        """Takes over the table that a copy has made, if nothing was added since that was begun."""
        if copy._added == self._added:
            self._table, self._steps = copy._table, copy._steps

    def _made_table(self, job: JobKey) -> StepTable:
        self._steps = shown = self._steps or self._made_steps()
        furthest = self.collectives[int(self._sequences.argmax())]
        section, section_since = min(self._sections.values(), key=lambda one: one[1], default=("", 0.0))
        return StepTable(
            job=job,
            attempt=self.attempt,
            first_step=shown.first_step,
            self_seconds=shown.self_seconds,
            last_step=shown.last_step,
            nodes=tuple(self.nodes),
            roles=tuple(self.roles),
            gpus=tuple(self.gpus),
            advanced_at=self.advanced_at,
            heard_since=self.heard_since,
            unheard_seconds=self._unheard_seconds,
            longest_pause_seconds=max(self._pauses, default=0.0),
            sequences=self._sequences.copy(),
            inside=self._inside.copy(),
            furthest_collective=furthest.name if furthest else "",
            durations=self.durations,
            section=section,
            section_since=section_since,
            left_section_at=self._left_section_at,
            stacks=dict(self._stacks),
            at_rest=dict(self._at_rest),
            nccl=dict(self._nccl),
            communicators=self._communicators.shown,
            training=dict(self._training),
            wall_seconds=self._wall.copy(),
            replicas=self._replicas.copy() if self._replicas.max(initial=-1) >= 0 else np.empty(0, np.int64),
            data_seconds=shown.data_seconds,
            work=shown.work,
            transfers=shown.transfers,
            count_from=self.count_from,
            fell_at=self.fell_at,
            reached=self._reached,
            ended=self.ended,
            kept=shown.kept,
        )

    def _made_steps(self) -> _Steps:
        last = self._last.copy()
        last.setflags(write=False)  # several tables have it
        end = int(last.max(initial=-1)) + 1
        begin = max(end - STEPS_KEPT, self.first_step or 0)
        slowest = max(int(last.min(initial=end)) + 1, begin)  # the first step that not all ranks have finished
        late = np.arange(slowest, end) > last[:, None]
        return _Steps(
            begin,
            last,
            _read(self._ring, begin, end, late),
            None if self._data is None else _read(self._data, begin, end, late),
            None if self._work is None else _read(self._work, begin, end, late),
            self._known_transfers(begin, end, late),
            {},
        )

    def ranks(self, wanted: range) -> list[RankNow]:
        """Those of `wanted` that the gang has."""
        last = self._last
        return [
            RankNow(
                rank,
                self.nodes[rank],
                self.roles[rank],
                self.gpus[rank],
                int(last[rank]) - self._ahead[rank] if last[rank] >= 0 else None,
                self.collectives[rank],
                None if math.isnan(self._wall[rank]) else float(self._wall[rank]),
                self._training.get(rank, Training()),
            )
            for rank in range(len(last))[wanted.start : wanted.stop]
        ]

    def _enter_section(self, rank: int, name: str, now: float) -> None:
        before, since = self._sections.get(rank, ("", now))
        if name == before:
            return
        if before:
            self.durations = self.durations.with_section(before, now - since)
            self._left_section_at = now
        if name:
            self._sections[rank] = (name, now)
        else:
            self._sections.pop(rank, None)

    @property
    def ended(self) -> bool:
        """True if no rank is there any more: what its job does now is not known."""
        return int(np.count_nonzero(self._ended)) == self.world_size

    @property
    def place(self) -> Place:
        """Also of an attempt that was heard of before the control plane forgot its ranks."""
        return Place(self.last_step if self.last_step >= 0 else self._reached, self.count_from)

    @property
    def last_step(self) -> int:
        """The furthest place that any rank has reached; -1: none."""
        return self._newest

    def _forget(self, rank: int, begin: int, end: int) -> None:
        gap = np.arange(max(begin, end - STEPS_KEPT), end) % STEPS_KEPT
        for ring in (self._ring, self._data, self._work):
            if ring is not None:
                ring[rank, gap] = np.nan
        for row in self._pairs.get(rank, {}).values():
            self._transfers[row, gap] = np.nan


def _write(row: npt.NDArray[np.float32], end: int, values: Sequence[float]) -> None:
    """Values of the steps before `end`, at most as many as are kept."""
    start = (end - len(values)) % STEPS_KEPT
    until_wrap = STEPS_KEPT - start
    if len(values) <= until_wrap:
        row[start : start + len(values)] = values
    else:
        row[start:] = values[:until_wrap]
        row[: len(values) - until_wrap] = values[until_wrap:]


def _read(ring: npt.NDArray[np.float32], begin: int, end: int, late: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Ring without stale values: in slots of steps that a slower rank has not reached, its older steps still stand.
    `late` is of the last steps before `end`.
    """
    first = begin % STEPS_KEPT
    wrapped = max(first + end - begin - STEPS_KEPT, 0)
    values = np.concatenate((ring[:, first : first + end - begin], ring[:, :wrapped]), axis=1)
    if late.size:
        values[:, -late.shape[1] :][late] = np.nan
    values.setflags(write=False)
    return values
