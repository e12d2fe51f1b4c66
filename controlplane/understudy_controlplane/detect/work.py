"""Step times without work, where the training reports the work of its steps or where ranks of one replica show it.

Ranks of one data-parallel replica process the same batch, in stages of a pipeline or in parts of a tensor. What their
times have in common, and those of other replicas have not, is work and no fault. Arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from understudy_controlplane.detect.medians import MAD_TO_SIGMA, Floats, Indices, medians
from understudy_controlplane.fleet.steps import StepTable

Codes = npt.NDArray[np.int64]
Array = TypeVar("Array", Floats, Indices)

STEPS_MIN = 20
"""Fewest steps that show how times follow work."""

THINNED = 3
"""Every third step shows well enough how much steps vary."""

SCALE_MIN = 1e-9

NOISE_SAMPLE = 16
"""So many ranks of a role show well enough how much its steps vary: it is asked of all gangs."""

CELLS_AT_ONCE = 1024
"""So many stay in the processor's cache."""

SAMPLE = 256
"""This many ranks of a role, evenly chosen, show well enough what it usually takes."""

CLIP = 4.0
"""Steps that are further away than this many robust deviations count as this far: hiccups are no work."""

NOISE_MIN = 0.02
"""Steps that vary by less are judged as they are."""

NOISE_LEFT_MAX = 0.025
"""Noise of steps without their work above which more than work and pace is in them."""

NOISE_LEFT_SHARE = 0.5
"""Share of the noise before above which steps do not follow work."""

FITS = 2
"""How often a line is fitted again, each time without the points that are far from it."""

ALIKE_CORRELATION = 0.8
ALIKE_STEPS_MIN = 48
ALIKE_RANKS_MAX = 1024
"""Replicas are looked for in gangs of at most this many ranks: the time that it takes grows with their square."""

EXPECTED_MIN = 0.2
"""No step is expected to take less than this share of what its role usually takes."""


def without_work(table: StepTable, groups: Sequence[Indices]) -> StepTable | None:
    """The table with self times as if each step had the usual work of its role; NaN where they do not follow work or
    hardly vary, and for ranks of which it is not known. None: there is no other rank. Replicas are in it, also those
    that were found.

    Each array of `groups` has shape (roles, ranks): the ranks of roles that are equally large.
    """
    times = table.self_seconds
    by_correlation = sum(map(len, groups)) > 1 and len(times) <= ALIKE_RANKS_MAX and not table.replicas.size
    if times.shape[1] < STEPS_MIN or not (table.work is not None or table.replicas.size or by_correlation):
        return None
    varies = [_noise(times, group) for group in groups]
    if not any((noise >= NOISE_MIN).any() for noise in varies):
        return None
    if by_correlation and times.shape[1] >= ALIKE_STEPS_MIN:
        table = replace(table, replicas=_replicas_by_correlation(table, groups))
    if table.work is None and not (table.replicas >= 0).any():
        return None
    left = _by_work(table, table.work, groups) if table.work is not None else times
    if (table.replicas >= 0).any():
        left = _by_peers(left, table, groups)
    found = False
    for group, noise in zip(groups, varies, strict=True):
        now = _noise(left, group)
        useful = (noise >= NOISE_MIN) & (now <= NOISE_LEFT_MAX) & (now <= NOISE_LEFT_SHARE * noise)
        left[group[~useful]] = np.nan
        found = found or bool(useful.any())
    return replace(table, self_seconds=left) if found else None


def _by_work(table: StepTable, work: Floats, groups: Sequence[Indices]) -> Floats:
    """Times without the linear function of the work that fits the role."""
    left = np.full_like(table.self_seconds, np.nan)
    for group in groups:
        times = table.self_seconds[group]
        middle = _over_role(times)
        amount = np.asarray(work[group] / np.maximum(_over_role(work[group]), SCALE_MIN) - 1, np.float32)
        relative = np.asarray(times / middle - 1, np.float32)
        counts = np.isfinite(amount) & np.isfinite(relative)
        slope, offset = _line(amount, relative, counts)
        for _ in range(FITS):
            off = np.abs(relative - offset - slope * amount)
            counts &= off <= CLIP * MAD_TO_SIGMA * _over_role(off)
            slope, offset = _line(amount, relative, counts)
        expected = np.maximum(1 + offset + np.maximum(slope, 0) * amount, EXPECTED_MIN)
        left[group] = times / expected
    return left


def _over_role(values: Floats) -> Floats:
    """The median of a role's steps. Shapes (roles, ranks, steps) and (roles, 1, 1)."""
    some = _sample(values)[..., ::THINNED]
    return medians(some.reshape(len(some), -1), least=STEPS_MIN)[:, None, None]


def _line(x: Floats, y: Floats, counts: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Slope and value at 0 of the line through the points of each role that count."""
    number = np.maximum(counts.sum(axis=(1, 2), keepdims=True), 1)
    x, y = np.where(counts, x, 0), np.where(counts, y, 0)
    mean_x, mean_y = (values.sum(axis=(1, 2), keepdims=True) / number for values in (x, y))
    xx = (x * x).sum(axis=(1, 2), keepdims=True) / number - mean_x * mean_x
    xy = (x * y).sum(axis=(1, 2), keepdims=True) / number - mean_x * mean_y
    slope = xy / np.maximum(xx, SCALE_MIN)
    return slope, mean_y - slope * mean_x


def _replicas_by_correlation(table: StepTable, groups: Sequence[Indices]) -> Codes:
    """Ranks of different roles and nodes whose steps become longer and shorter together. The changes from one step to
    the next are compared: those of ranks that become slow at the same time have little in common.
    """
    times = table.self_seconds
    found = np.full(len(times), -1, np.int64)
    changes = np.zeros((len(times), times.shape[1] - 1), np.float32)
    for group in groups:
        changes[group] = np.diff(times[group] / _usual(times[group]), axis=2)
    deviation = MAD_TO_SIGMA * medians(np.abs(changes), least=ALIKE_STEPS_MIN)[:, None]
    known = np.nan_to_num(np.clip(changes / np.maximum(deviation, SCALE_MIN), -CLIP, CLIP))
    length = np.sqrt((known * known).sum(axis=1, keepdims=True))
    known /= np.maximum(length, SCALE_MIN)
    role, node = (np.unique(np.array(names), return_inverse=True)[1] for names in (table.roles, table.nodes))
    unknown = np.array([not name for name in table.nodes])
    apart = (role[:, None] != role) & ((node[:, None] != node) | unknown[:, None])
    alike = (known @ known.T > ALIKE_CORRELATION) & apart
    paired = alike.any(axis=1)
    np.fill_diagonal(alike, val=True)
    labels = np.arange(len(times))
    while not np.array_equal(labels, lowest := np.where(alike, labels, len(labels)).min(axis=1)):
        labels = lowest
    found[paired] = labels[paired]
    return found


def _by_peers(times: Floats, table: StepTable, groups: Sequence[Indices]) -> Floats:
    """Times without what a rank has in common with the other ranks of its replica."""
    away, middle = np.full_like(times, np.nan), np.full_like(times, np.nan)
    scale = np.ones((len(times), 1), np.float32)
    for group in groups:
        usual = _usual(times[group])
        middle[group] = usual
        away[group] = times[group] - usual
    own = medians(away[:, ::THINNED], least=STEPS_MIN // THINNED)[:, None]  # what a rank always has does not vary
    for group in groups:
        some = _sample(group)
        varies = np.abs(away[some][..., ::THINNED] - own[some]).reshape(len(some), -1)
        deviation = MAD_TO_SIGMA * medians(varies, least=STEPS_MIN)
        scale[group] = np.maximum(deviation, SCALE_MIN)[:, None, None]
    away /= scale
    own /= scale
    others = _others(away, _cells(table))
    usual_others = medians(others[:, ::THINNED], least=STEPS_MIN // THINNED)[:, None]
    expected = middle
    for group in groups:
        some = _sample(group)
        x = np.clip(others[some, ::THINNED] - usual_others[some], -CLIP, CLIP)
        y = np.clip(away[some, ::THINNED] - own[some], -CLIP, CLIP)
        both = np.isfinite(x) & np.isfinite(y)
        xy, xx = np.where(both, x * y, 0).sum(axis=(1, 2)), np.where(both, x * x, 0).sum(axis=(1, 2))
        slope = np.maximum(xy / np.maximum(xx, SCALE_MIN), 0)[:, None, None].astype(np.float32)
        expected[group] += slope * scale[group] * others[group]
    usual = times - away * scale
    np.maximum(expected, EXPECTED_MIN * usual, out=expected)
    left = times * usual / expected
    if table.work is not None:
        np.copyto(left, times, where=np.isnan(others))
    return left


def _usual(times: Floats) -> Floats:
    """What each step usually takes. Shapes (roles, ranks, steps) and (roles, 1, steps)."""
    some = _sample(times)
    return medians(np.ascontiguousarray(some.swapaxes(1, 2)), least=max(3, some.shape[1] // 2))[:, None, :]


def _sample(members: Array) -> Array:
    """Some ranks of each role. The first axes are roles and ranks."""
    return members[:, :: max(1, members.shape[1] // SAMPLE)]


@dataclass(frozen=True, slots=True)
class _Cells:
    """Ranks that count as one for the others of their replica."""

    of_rank: Indices  # -1: its replica is not known
    ranks: list[tuple[Indices, Indices]]  # cells of equal size: their numbers, and the ranks as (cells, size)
    replicas: list[Indices]  # replicas with equally many cells: numbers of cells, as (replicas, cells)


def _cells(table: StepTable) -> _Cells:
    """The ranks on one node are a cell where the replica has several nodes, because a slow node is no work. Else each
    rank is a cell.
    """
    nodes: dict[str, int] = {}
    count = len(table.replicas)
    node = np.fromiter((nodes.setdefault(name, len(nodes)) if name else -1 for name in table.nodes), np.int64, count)
    order = np.lexsort((node, table.replicas))
    order = order[table.replicas[order] >= 0]
    new_replica = _begins(table.replicas[order])
    new_node = new_replica | _begins(node[order]) | (node[order] < 0)
    replica = np.cumsum(new_replica) - 1
    one_node = (np.bincount(replica, weights=new_node) == 1)[replica]
    new_cell = new_node | one_node
    cell = np.cumsum(new_cell) - 1
    of_rank = np.full(count, -1, np.intp)
    of_rank[order] = cell
    ranks = [(numbers, order[places]) for numbers, places in _by_size(np.bincount(cell))]
    return _Cells(of_rank, ranks, [places for _, places in _by_size(np.bincount(replica[new_cell]))])


def _begins(codes: Codes) -> npt.NDArray[np.bool_]:
    return np.concatenate([np.ones(min(1, len(codes)), np.bool_), codes[1:] != codes[:-1]])


def _by_size(sizes: Indices) -> list[tuple[Indices, Indices]]:
    """Consecutive runs of these sizes: for each size the numbers of the runs, and their places as (runs, size)."""
    starts = np.cumsum(sizes) - sizes
    found = []
    for size in np.unique(sizes).tolist():
        numbers = np.flatnonzero(sizes == size)
        found.append((numbers, starts[numbers][:, None] + np.arange(size)))
    return found


def _others(values: Floats, cells: _Cells) -> Floats:
    """Median of the other cells of each rank's replica; NaN if there are none."""
    count = sum(len(numbers) for numbers, _ in cells.ranks)
    of_cell = np.empty((count + 1, values.shape[1]), np.float32)
    for numbers, ranks in cells.ranks:
        one = ranks.shape[1] == 1
        several = values[ranks]
        of_cell[numbers] = several[:, 0] if one else medians(np.ascontiguousarray(several.swapaxes(1, 2)), least=1)
    rest = np.full_like(of_cell, np.nan)
    for numbers in cells.replicas:
        if numbers.shape[1] == 2:
            rest[numbers] = of_cell[numbers[:, ::-1]]
        elif numbers.shape[1] > 2:
            at_once = max(1, CELLS_AT_ONCE // numbers.shape[1])
            for begin in range(0, len(numbers), at_once):
                some = numbers[begin : begin + at_once]
                rest[some] = _medians_of_the_others(of_cell[some])
    return rest[cells.of_rank]  # the last one, at -1, is of no cell


def _medians_of_the_others(values: Floats) -> Floats:
    """Along the second axis, for each value the median of all others that are there."""
    several = np.ascontiguousarray(values.swapaxes(1, 2))
    ordered = np.sort(several, axis=-1)
    others = np.count_nonzero(~np.isnan(ordered), axis=-1, keepdims=True) - 1
    found = (_without(several, ordered, (others - 1) // 2) + _without(several, ordered, others // 2)) / 2
    return np.asarray(np.where(others > 0, found, np.nan), np.float32).swapaxes(1, 2)


def _without(values: Floats, ordered: Floats, place: Indices) -> Floats:
    """Value at this place of the ordered ones, for each value, when the value is taken out."""
    place = np.clip(place, 0, ordered.shape[-1] - 2)
    if (place == place.flat[0]).all():  # as where nothing is missing
        first = int(place.flat[0])
        here, after = ordered[..., first : first + 1], ordered[..., first + 1 : first + 2]
    else:
        here = np.take_along_axis(ordered, place, axis=-1)
        after = np.take_along_axis(ordered, place + 1, axis=-1)
    return np.where(values <= here, after, here)


def _noise(times: Floats, group: Indices) -> Floats:
    """How much steps of a rank vary beside those of its role, as a share; one value a role."""
    few = group[:, :: max(1, group.shape[1] // NOISE_SAMPLE)]
    some = np.ascontiguousarray(times[few, ::THINNED])
    relative = some / _usual(some)
    away = np.abs(relative - medians(relative, least=STEPS_MIN // THINNED)[..., None])
    return MAD_TO_SIGMA * medians(away.reshape(len(away), -1), least=STEPS_MIN)
