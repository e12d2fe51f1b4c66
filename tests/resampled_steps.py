"""Steps of a real job in which work varies, drawn again and again: gangs as long and as many as a test needs.

A drawn step is a recorded one as a whole, so that what its ranks have in common stays. The replicas of a gang are in
another order in each step, or in one order for each gang. Limits were chosen with the steps of FITTED; JUDGED has the
others.
"""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import slow_ranks
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.steps import StepTable

TRACE = Path(__file__).resolve().parent / "data" / "steps-sequence-imbalance.csv.gz"
STEPS_KEPT = 128
STEP_SECONDS = 8.85
FITTED, JUDGED = slice(0, None, 2), slice(1, None, 2)

Floats = npt.NDArray[np.float32]


def recorded() -> Floats:
    """Seconds of compute, of shape (stages, replicas, steps)."""
    with gzip.open(TRACE, "rt") as file:
        rows = list(csv.DictReader(file))
    steps = {step: place for place, step in enumerate(sorted({int(row["step"]) for row in rows}))}
    times = np.full((2, len(rows) // 2 // len(steps), len(steps)), np.nan, np.float32)
    for row in rows:
        seconds = float(row["forward_seconds"]) + float(row["backward_seconds"])
        times[int(row["stage"]), int(row["dp_rank"]), steps[int(row["step"])]] = seconds
    return times


class ResampledGangs:
    """Gangs side by side in one table: no role and no replica is in two of them."""

    def __init__(self, gangs: int, steps: slice, seed: int, *, shuffled_each_step: bool = True) -> None:
        self._rng = np.random.default_rng(seed)
        self._recorded = recorded()[:, :, steps]
        self._stages, self._replicas, _ = self._recorded.shape
        self._gangs = gangs
        self._order = None if shuffled_each_step else self._orders((gangs, 1, self._replicas))
        self._slow: tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], float, int] | None = None
        self._longest = False
        self.times = np.empty((gangs, self._stages, self._replicas, 0), np.float32)
        self.steps = 0
        gang, stage, replica = np.indices(self.times.shape[:3])
        self._roles = tuple(f"{g} stage {s}" for g, s in zip(gang.ravel(), stage.ravel(), strict=True))
        self._replica_of = (gang * self._replicas + replica).ravel().astype(np.int64)
        self.ranks = len(self._roles)

    def slow_down(self, by: float, *, longest: bool = False, every: int = 1) -> list[int]:
        """One rank of each gang from now on, in one step of `every`. `longest`: its replica has the longest sequences
        in each step.
        """
        stages = self._rng.integers(0, self._stages, self._gangs)
        replicas = self._rng.integers(0, self._replicas, self._gangs)
        if longest and self._order is not None:  # in the mean, because it stays the same one
            replicas = self.times.sum(axis=(1, 3)).argmax(axis=1)
        self._slow, self._longest = (stages, replicas, by, every), longest and self._order is None
        ranks = (np.arange(self._gangs) * self._stages + stages) * self._replicas + replicas
        return [int(rank) for rank in ranks]

    def train(self, steps: int) -> None:
        which = self._rng.integers(0, self._recorded.shape[2], (self._gangs, steps, 1))
        order = self._orders((self._gangs, steps, self._replicas)) if self._order is None else self._order
        times = self._recorded[:, order, which].transpose(1, 0, 3, 2).copy()
        if self._slow is not None:
            stages, replicas, by, every = self._slow
            if self._longest:
                _exchange(times, replicas, times.sum(axis=1).argmax(axis=1))
            slow = np.arange(self.steps, self.steps + steps) % every == 0
            times[np.arange(self._gangs), stages, replicas] *= np.where(slow, 1 + by, 1).astype(np.float32)
        self.times = np.concatenate([self.times, times], axis=3)[..., -STEPS_KEPT:]
        self.steps += steps

    def table(self, *, replicas_known: bool = True) -> StepTable:
        times = self.times.reshape(self.ranks, -1)
        return StepTable(
            job=b.job().key,
            attempt=Attempt(0),
            first_step=self.steps - times.shape[1],
            self_seconds=times,
            last_step=np.full(self.ranks, self.steps - 1, np.int64),
            nodes=("",) * self.ranks,
            roles=self._roles,
            gpus=(0,) * self.ranks,
            advanced_at=b.NOW,
            replicas=self._replica_of if replicas_known else np.full(self.ranks, -1, np.int64),
        )

    def _orders(self, shape: tuple[int, int, int]) -> npt.NDArray[np.intp]:
        return self._rng.permuted(np.broadcast_to(np.arange(shape[2]), shape), axis=2)


def _exchange(times: Floats, replicas: npt.NDArray[np.intp], longest: npt.NDArray[np.intp]) -> None:
    """`longest` has for each gang and step the replica that changes its place with the gang's in `replicas`."""
    gang, step = np.indices(longest.shape)
    place = replicas[:, None]
    times[gang, :, place, step], times[gang, :, longest, step] = (
        times[gang, :, longest, step],
        times[gang, :, place, step],
    )


def steps_to_detection(
    gangs: ResampledGangs, by: float, *, longest: bool = False, known: bool = True, every: int = 1
) -> list[int]:
    """Steps after which each gang's rank is named that is slower from step 100 to 220, in one step of `every`; those
    that are not named are left out. Fails if another rank is named.
    """
    gangs.train(90)
    half = Straggler().window_steps // 2
    gangs.train(half)
    slow = gangs.slow_down(by, longest=longest, every=every)
    taken: dict[int, int] = {}
    for steps in range(half, 121, half):
        gangs.train(half)
        for one in slow_ranks(gangs.table(replicas_known=known), Straggler()):
            assert one.rank in slow, one
            taken.setdefault(one.rank, steps)
    return list(taken.values())


def false_alarms(gangs: ResampledGangs, rounds: int) -> tuple[int, float]:
    """How many healthy ranks are ever named, and in how many days of ranks."""
    half = Straggler().window_steps // 2
    gangs.train(STEPS_KEPT)
    named: set[int] = set()
    for _ in range(rounds):
        gangs.train(half)
        named |= {one.rank for one in slow_ranks(gangs.table(), Straggler())}
    return len(named), gangs.ranks * rounds * half * STEP_SECONDS / 86_400
