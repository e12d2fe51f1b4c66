"""Step times of one attempt, kept in arrays: a ring of the last steps for every rank."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass

import numpy as np

from understudy_agent.wire import Collective, RankWindow
from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.steps import Durations, StepTable

STEPS_KEPT = 128


@dataclass(frozen=True, slots=True)
class RankNow:
    """Where one rank of an attempt was at its last report."""

    rank: int
    node: str  # empty: it never reported
    role: str
    gpu_index: int | None
    last_step: int | None  # the furthest step it finished
    collective: Collective | None  # the last it entered, if it reports them


class StepBuffer:
    """`ring[rank, step % STEPS_KEPT]` is the self time of `step`; NaN where a step was not reported."""

    def __init__(self, attempt: Attempt, world_size: int, learnt: Durations | None = None) -> None:
        """`learnt` is what earlier attempts of the job took."""
        self.attempt = attempt
        self.durations = learnt or Durations()
        self.world_size = world_size
        self.advanced_at = 0.0
        self.heard_since = 0.0
        self._newest, self._newest_at = -1, 0.0
        self._sections: dict[int, tuple[str, float]] = {}
        """Rank → the section that it is in, and since when it was reported."""
        self._left_section_at = 0.0
        self._stacks: dict[int, str] = {}
        """Rank → where it stands still. Ranks that wait for the same have one text in memory."""
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
        self._last = np.full(world_size, -1, dtype=np.int64)

    def add(self, window: RankWindow, node: str, now: float) -> None:
        """Steps that were reported before are ignored; missing ones stay NaN."""
        rank = window.rank
        self.heard_since = self.heard_since or now
        self.nodes[rank] = node
        self.roles[rank] = window.role
        self.gpus[rank] = window.gpu_index
        self._note_place(rank, window, now)
        times = window.self_seconds
        first, last = window.first_step, int(self._last[rank])
        if first <= last:
            times = times[last + 1 - first :]
            first = last + 1
        if not times:
            return
        if last >= 0 and first > last + 1:
            self._forget(rank, last + 1, first)
        times = times[-STEPS_KEPT:]
        end = window.first_step + len(window.self_seconds)
        start = (end - len(times)) % STEPS_KEPT
        until_wrap = STEPS_KEPT - start
        row = self._ring[rank]
        if len(times) <= until_wrap:
            row[start : start + len(times)] = times
        else:
            row[start:] = times[:until_wrap]
            row[: len(times) - until_wrap] = times[until_wrap:]
        if end - 1 > self._newest:
            if self._newest >= 0:
                pause = now - max(self._newest_at, self._left_section_at)
                self._pauses.append(pause)
                self.durations = self.durations.with_pause(pause)
            else:
                self.durations = self.durations.with_startup(now - self.heard_since)
            self._newest, self._newest_at = end - 1, now
        self._last[rank] = end - 1
        self.advanced_at = now
        if self.first_step is None or first < self.first_step:
            self.first_step = first

    def _note_place(self, rank: int, window: RankWindow, now: float) -> None:
        if window.collective is not None:
            self.collectives[rank] = window.collective
            self._sequences[rank], self._inside[rank] = window.collective.sequence, window.collective.inside
        if window.section is not None:
            self._enter_section(rank, window.section, now)
        if window.stack:
            self._stacks[rank] = sys.intern(window.stack)
        elif window.self_seconds:
            self._stacks.pop(rank, None)

    def table(self, job: JobKey) -> StepTable:
        """A copy of the last steps, oldest first."""
        newest = int(self._last.max(initial=-1))
        begin = max(newest + 1 - STEPS_KEPT, self.first_step or 0)
        steps = np.arange(begin, newest + 1)
        values = self._ring[:, steps % STEPS_KEPT].copy()
        furthest = self.collectives[int(self._sequences.argmax())]
        section, section_since = min(self._sections.values(), key=lambda one: one[1], default=("", 0.0))
        # In the slots of steps that a slower rank has not reached, its older steps still stand.
        values[steps[None, :] > self._last[:, None]] = np.nan
        return StepTable(
            job=job,
            attempt=self.attempt,
            first_step=begin,
            self_seconds=values,
            last_step=self._last.copy(),
            nodes=tuple(self.nodes),
            roles=tuple(self.roles),
            gpus=tuple(self.gpus),
            advanced_at=self.advanced_at,
            heard_since=self.heard_since,
            longest_pause_seconds=max(self._pauses, default=0.0),
            sequences=self._sequences.copy(),
            inside=self._inside.copy(),
            furthest_collective=furthest.name if furthest else "",
            durations=self.durations,
            section=section,
            section_since=section_since,
            left_section_at=self._left_section_at,
            stacks=dict(self._stacks),
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
                int(last[rank]) if last[rank] >= 0 else None,
                self.collectives[rank],
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
    def last_step(self) -> int:
        """The furthest step that any rank has finished; -1: none."""
        return int(self._last.max(initial=-1))

    def _forget(self, rank: int, begin: int, end: int) -> None:
        gap = np.arange(max(begin, end - STEPS_KEPT), end) % STEPS_KEPT
        self._ring[rank, gap] = np.nan
