"""Pairs of ranks between which transfers are slow: who waits for whom, from the time that each rank spends in transfers
with each of its peers. Arrays in, verdicts out.

A rank that waits for a peer shows only that one of the two, or what lies between them, is slow. The one that is at
fault waits least itself: a peer that computes longer, waits for its data, for a collective or for another peer explains
the waiting, and passes it on. Where nothing explains it, the transfer itself is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.medians import MAD_TO_SIGMA, Floats, Indices, medians
from understudy_controlplane.fleet.steps import StepTable

PAIRS_MIN = 4
"""Pairs of the same roles, with which one of them is compared."""

RATIO_MIN = 1.5
"""Ratio to what the same transfer takes between others: less is the site's topology, or noise."""

SHARE_MIN = 0.05
"""Share of a step: a slow transfer that costs less is not worth a look."""

ROBUST_Z = 6.0

EXPLAINS = 0.5
"""A peer that is later than others by this share of the waiting for it explains it."""

RANKS_MIN = 3
"""Ranks of a role, without which it is not known whether one of them is late."""


@dataclass(frozen=True, slots=True)
class SlowTransfer:
    """`rank` waits for `peer`, and nothing about `peer` explains it."""

    rank: int
    peer: int
    seconds: float  # of each step
    usual: float  # the same between other ranks of these roles
    step_seconds: float

    @property
    def share_lost(self) -> float:
        """Largest share of the gang's time that it can cost."""
        return min(1.0, (self.seconds - self.usual) / self.step_seconds)


def slow_transfers(table: StepTable, policy: Straggler) -> list[SlowTransfer]:
    """Transfers that are slow in most of the last windows, and in the last two."""
    known = table.transfers
    count = min(policy.windows, table.self_seconds.shape[1] // policy.window_steps)
    if known is None or count < policy.windows_slow_min:
        return []
    return list(_Judged(table, policy, known.pairs, known.seconds, count).slow())


class _Judged:
    def __init__(self, table: StepTable, policy: Straggler, pairs: Indices, seconds: Floats, count: int) -> None:
        self._table, self._policy, self._pairs, self._count = table, policy, pairs, count
        self._steps = slice(-count * policy.window_steps, None)
        width = policy.window_steps
        # (pairs, windows): what a step's transfers with the peer take
        self._windows = medians(seconds[:, self._steps].reshape(len(pairs), count, width), least=width // 2)
        self._usual = np.full_like(self._windows, np.nan)
        self._limit = np.full_like(self._windows, np.inf)
        for group in self._alike():
            middle = medians(np.ascontiguousarray(self._windows[group].T), least=PAIRS_MIN)
            away = np.abs(self._windows[group] - middle)
            spread = MAD_TO_SIGMA * medians(np.ascontiguousarray(away.T), least=PAIRS_MIN)
            self._usual[group] = middle
            self._limit[group] = np.maximum((RATIO_MIN - 1) * middle, ROBUST_Z * spread)

    def slow(self) -> list[SlowTransfer]:
        excess = self._windows - self._usual
        step = self._step_seconds
        over = excess > np.maximum(self._limit, SHARE_MIN * step)
        steady = (over.sum(axis=1) >= self._policy.windows_slow_min) & over[:, -2:].all(axis=1)
        found = []
        for place in np.flatnonzero(steady).tolist():
            rank, peer = self._pairs[place].tolist()
            longer = float(np.nanmean(excess[place, -self._policy.windows_slow_min :]))
            if self._late(rank, peer) < EXPLAINS * longer:
                usual = float(np.nanmean(self._usual[place]))
                found.append(SlowTransfer(rank, peer, usual + longer, usual, step))
        return found

    def _alike(self) -> list[Indices]:
        """Pairs of the same roles, in the same direction."""
        numbers: dict[str, int] = {}
        roles = self._table.roles
        codes = np.fromiter((numbers.setdefault(role, len(numbers)) for role in roles), np.intp, len(roles))
        kinds = codes[self._pairs[:, 0]] * len(numbers) + codes[self._pairs[:, 1]]
        ordered = np.argsort(kinds, kind="stable")
        begins = np.flatnonzero(np.diff(kinds[ordered])) + 1
        return [places for places in np.split(ordered, begins) if len(places) >= PAIRS_MIN]

    def _late(self, rank: int, peer: int) -> float:
        """Seconds by which the peer is later than others of its role, for whatever reason. Not known: inf."""
        others = (
            self._windows[place, -2:] - self._usual[place, -2:]
            for place in np.flatnonzero(self._pairs[:, 0] == peer).tolist()
            if self._pairs[place, 1] != rank
        )
        waits = [float(known.mean()) for excess in others if len(known := excess[np.isfinite(excess)])]
        own = self._lateness[peer]
        return max([float(own), *waits]) if np.isfinite(own) else np.inf

    @cached_property
    def _step_seconds(self) -> float:
        wall = self._table.wall_seconds[np.isfinite(self._table.wall_seconds)]
        return float(np.median(wall)) if wall.size else float(np.nanmedian(self._table.self_seconds))

    @cached_property
    def _lateness(self) -> Floats:
        """Lateness of each rank: the most that it computes, waits for data, or waits for all others longer than its
        role.
        """
        own = _of_steps(self._table.self_seconds[:, self._steps])
        data = self._table.data_seconds
        waits_for_data = np.zeros_like(own) if data is None else _of_steps(data[:, self._steps])
        in_transfers = np.zeros_like(own)
        np.add.at(in_transfers, self._pairs[:, 0], np.nan_to_num(medians(self._windows, least=1)))
        wall = self._table.wall_seconds if self._table.wall_seconds.size else np.full_like(own, np.nan)
        collectives = np.nan_to_num(wall - own - waits_for_data - in_transfers)
        parts = [_beyond_role(values, self._table.roles) for values in (own, waits_for_data, collectives)]
        return np.asarray(np.maximum.reduce(parts))


def _of_steps(values: Floats) -> Floats:
    return medians(np.ascontiguousarray(values), least=values.shape[1] // 2)


def _beyond_role(values: Floats, roles: Sequence[str]) -> Floats:
    """Less the median of ranks of the same role; NaN: too few are known."""
    found = np.full_like(values, np.nan)
    names = np.array(roles)
    for role in dict.fromkeys(roles):
        mine = np.flatnonzero(names == role)
        if len(mine) >= RANKS_MIN:
            found[mine] = values[mine] - np.nanmedian(values[mine])
    return found
