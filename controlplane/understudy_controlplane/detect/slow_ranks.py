"""Finds slow ranks from step times alone: the statistics of stragglers. Arrays in, verdicts out.

Belongs here: self time against peers of one role, over windows of steps. Must not: nodes, GPUs, what follows. The
service and `understudy analyze steps` both use it, so both give the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import cast

import numpy as np
import numpy.typing as npt

from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.medians import MAD_TO_SIGMA, Floats, Indices, means, medians
from understudy_controlplane.detect.work import without_work
from understudy_controlplane.fleet.steps import StepTable

_PeerGroups = list[tuple[bool, Indices]]
GroupsOf = Callable[[tuple[str, ...]], _PeerGroups]

MEDIAN_ERROR = 1.2533
"""Standard error of a median, in those of the mean (normal distribution)."""

MAD_FLOOR_SHARE = 0.01
"""Peers that agree better than this share of their median are not made suspicious by their agreement."""

SELF_SECONDS_MIN = 1e-3
"""Steps shorter than this are noise: no rank is slow in them."""

PEERS_MIN = 3
"""Fewest peers: of two it is not known which one is wrong."""

SAMPLE = 256
"""This many peers, evenly chosen, show well enough how much steps vary."""

RANKS_AT_ONCE = 8192
"""Small gangs of this many ranks are judged together: numpy is called seldom, and their step times stay in the
processor's cache.
"""

ALIKE_SHARE = 0.05
"""Ranks that differ from the median of their role by less than this do the same work."""

APART_SHARE = {True: 4, False: 32}
"""Shares of ranks that may stand apart, and always one: a quarter of a named role, a thirty-second of ranks without
one. More of them are taken for a role that was not set.
"""


WAITING_SHARE_MIN = 0.5
"""Least share of a rank's extra time that has to be waiting for data."""

NONE = np.empty(0, np.int64)

QUICKER_MIN = 0.97
"""A rank that was quicker than this before did other work then."""

RATIOS = ("ratio", "ratio_overall", "ratio_few_peers", "ratio_gross")

PAIR = 2
"""A median does not show what is slow in every second step only; the mean of each step and the one before it does."""

PAIR_EXCESS = 1.5
"""This second look at a gang asks for so many times the excess: it is there for what the first one cannot see."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that takes longer than its peers. `ratio` and `z` are of the windows that convict it."""

    rank: int
    ratio: float
    z: float  # distance from the peers, in their robust deviations
    noise_z: float  # the excess, in standard errors of what steps vary by themselves
    slow_windows: int
    first_step: int  # of the earliest slow window
    last_step: int  # of the latest one
    peers: int  # ranks of the same role, itself among them
    doubt: str = ""  # why it is not named all the same; empty: it is
    steps_averaged: int = 1  # PAIR: it is slow in some steps only, which the mean of two shows


@dataclass(frozen=True, slots=True)
class _Span:
    """The steps that are judged: `count` windows that end with column `end` of the table (exclusive)."""

    start: int
    end: int
    count: int


def slow_ranks(table: StepTable, policy: Straggler) -> list[SlowRank]:
    """Those that are named."""
    return [slow for slow in judge(table, policy) if not slow.doubt]


def judge(table: StepTable, policy: Straggler) -> list[SlowRank]:
    """All that take longer than their peers, those that are not named among them.

    Windows end at multiples of half a window, counted in steps of the job: whenever they are asked about, the same
    steps are the same windows. Fewer windows than the policy names are judged as they come.
    """
    return judge_all([table], policy)[0]


def judge_all(tables: Sequence[StepTable], policy: Straggler) -> list[list[SlowRank]]:
    """Judges one list of slow ranks a table. Gangs are compared beside each other, never with each other: so thousands
    of small ones cost what a few large ones do.
    """
    groups_of = cache(_peer_groups)  # in most gangs no rank has set a role
    judged = _judged(tables, policy, groups_of)
    uneven = [(table, one) for table, one in zip(tables, judged, strict=True) if one.uneven]
    pairs = _judged([in_pairs(table) for table, _ in uneven], _for_pairs(policy), groups_of)
    for (_, one), in_pair in zip(uneven, pairs, strict=True):
        known = {slow.rank for slow in one.slow}
        one.slow += [replace(slow, steps_averaged=PAIR) for slow in in_pair.slow if slow.rank not in known]
    return [sorted(one.slow, key=lambda slow: slow.rank) for one in judged]


Judge = Callable[[Sequence[StepTable], Straggler], list[list[SlowRank]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Verdict:
    """What was found in the steps of a table, and all that this depends on."""

    slow: list[SlowRank]
    steps: tuple[object, ...]  # arrays, which do not change
    by: tuple[object, ...]

    def holds_for(self, table: StepTable, by: tuple[object, ...]) -> bool:
        seconds, data, work, last_step = self.steps
        same = seconds is table.self_seconds and data is table.data_seconds and work is table.work
        return same and last_step is table.last_step and by == self.by


def judged_once(judge: Judge, tables: Sequence[StepTable], policy: Straggler) -> list[list[SlowRank]]:
    """The same as `judge`, which looks only at tables with steps that it has not seen: of a fleet's gangs most finish
    no step between two ticks.
    """
    basis = [(policy, table.first_step, table.roles, table.nodes, table.replicas.tobytes()) for table in tables]
    known = [table.kept.get(judge.__name__) for table in tables]
    found = [
        one.slow if isinstance(one, _Verdict) and one.holds_for(table, by) else None
        for table, by, one in zip(tables, basis, known, strict=True)
    ]
    new = [place for place, one in enumerate(found) if one is None]
    for place, slow in zip(new, judge([tables[place] for place in new], policy), strict=True):
        tables[place].kept[judge.__name__] = _Verdict(slow, _steps(tables[place]), basis[place])
        found[place] = slow
    return [slow or [] for slow in found]


def _steps(table: StepTable) -> tuple[object, ...]:
    return table.self_seconds, table.data_seconds, table.work, table.last_step


def in_pairs(table: StepTable) -> StepTable:
    """Table with the mean of each step and the one before it."""
    return replace(
        table,
        self_seconds=_with_the_one_before(table.self_seconds),
        data_seconds=None if table.data_seconds is None else _with_the_one_before(table.data_seconds),
        work=None if table.work is None else _with_the_one_before(table.work),
    )


def _with_the_one_before(values: Floats) -> Floats:
    found = values.copy()
    found[:, 1:] += values[:, :-1]
    found[:, 1:] /= PAIR
    return found


def _for_pairs(policy: Straggler) -> Straggler:
    """Means vary less than steps, but two that follow each other have a step in common: their median errs as before."""
    limits = (*RATIOS, *(f"pace_{name}" for name in RATIOS))
    ratios = {name: 1 + PAIR_EXCESS * (getattr(policy, name) - 1) for name in limits}
    return policy.model_copy(update={"noise_z": policy.noise_z * PAIR**0.5, **ratios})


@dataclass(slots=True)
class _Judged:
    """What is found in one table."""

    slow: list[SlowRank] = field(default_factory=list)
    uneven: bool = False  # the mean of a rank's last windows stands out, as their medians may not


def _judged(tables: Sequence[StepTable], policy: Straggler, groups_of: GroupsOf) -> list[_Judged]:
    found = _slow_in(tables, policy, groups_of)
    paces = {}
    for place, table in enumerate(tables):
        left = without_work(table, [group for _, group in groups_of(table.roles)])
        if left is not None:
            paces[place] = _as_begun(left, policy, groups_of)
    by_pace = _slow_in(list(paces.values()), _for_pace(policy), groups_of)
    for (place, pace), one in zip(paces.items(), by_pace, strict=True):
        slow = _joined(found[place].slow, one.slow, pace, groups_of)
        found[place] = _Judged(slow, found[place].uneven or one.uneven)
    return found


def _slow_in(tables: Sequence[StepTable], policy: Straggler, groups_of: GroupsOf) -> list[_Judged]:
    found = [_Judged() for _ in tables]
    alike: dict[int, list[_Case]] = {}
    for table, one in zip(tables, found, strict=True):
        span = _span(table, policy)
        if span is not None:
            alike.setdefault(span.count, []).append(_Case(table, policy, span, one))
    for cases in alike.values():
        for batch in _batches(cases):
            _judge_batch(batch, groups_of)
    return found


def _for_pace(policy: Straggler) -> Straggler:
    """Limits for times without work, which vary less."""
    return policy.model_copy(update={name: getattr(policy, f"pace_{name}") for name in RATIOS})


def _as_begun(left: StepTable, policy: Straggler, groups_of: GroupsOf) -> StepTable:
    """Times without work. Those of a rank that was quicker than its peers are higher by that: what it lost counts."""
    span = _span(left, policy)
    if span is None or span.start < 2 * policy.window_steps:
        return left
    times = left.self_seconds.copy()
    for _, groups in groups_of(left.roles):
        early = times[groups, : span.start]
        before = medians(early / _usual(early), least=policy.window_steps)
        times[groups] /= np.nan_to_num(np.clip(before, QUICKER_MIN, 1), nan=1)[..., None]
    return replace(left, self_seconds=times)


def _joined(by_times: list[SlowRank], by_pace: list[SlowRank], pace: StepTable, groups_of: GroupsOf) -> list[SlowRank]:
    """A rank is slow by its times or without its work. The first does not count where the second shows no slowness."""
    found = {slow.rank: slow for slow in by_times}
    usual = {
        rank: times
        for _, groups in (groups_of(pace.roles) if found else [])
        for group, times in zip(groups, _usual(pace.self_seconds[groups])[:, 0], strict=True)
        for rank in found.keys() & set(group.tolist())
    }
    for rank, times in usual.items():
        window = slice(max(0, found[rank].first_step - pace.first_step), None)
        ratio = float(medians(pace.self_seconds[rank, window] / times[window], least=1))
        if ratio - 1 < (found[rank].ratio - 1) / 3 and _work_is_no_fault(pace, rank):
            found[rank] = replace(found[rank], doubt="its steps have more work, as those of its replica show")
    for slow in by_pace:
        if slow.rank not in found or found[slow.rank].doubt:
            found[slow.rank] = slow
    return list(found.values())


def _work_is_no_fault(pace: StepTable, rank: int) -> bool:
    """Unless all that shows the work is on the rank's own node, which may be slow."""
    if pace.work is not None:
        return True
    nodes = {pace.nodes[mate] for mate in np.flatnonzero(pace.replicas == pace.replicas[rank]).tolist()}
    return len(nodes) > 1 or "" in nodes


def _usual(values: Floats) -> Floats:
    """What each step usually takes. Shapes (roles, ranks, steps) and (roles, 1, steps)."""
    some = values[:, :: max(1, values.shape[1] // SAMPLE)]
    return medians(np.ascontiguousarray(some.swapaxes(1, 2)), least=PEERS_MIN)[:, None, :]


def judge_waiting(tables: Sequence[StepTable], policy: Straggler) -> list[list[SlowRank]]:
    """Finds ranks that wait for data longer than their peers: their own time and this waiting are judged together. The
    waiting has to explain it, because a program that waits for its GPU between two steps seems to wait for data.
    """
    own = [table for table in tables if table.data_seconds is not None]
    totals = [
        replace(table, self_seconds=table.self_seconds + cast("Floats", table.data_seconds), work=None, replicas=NONE)
        for table in own
    ]
    found = dict(zip(map(id, own), judge_all(totals, policy), strict=True))
    return [[slow for slow in found.get(id(table), []) if _waits(table, slow)] for table in tables]


def _waits(table: StepTable, slow: SlowRank) -> bool:
    if slow.steps_averaged == PAIR:
        table = in_pairs(table)
    data = cast("Floats", table.data_seconds)[:, slow.first_step - table.first_step :]
    own = table.self_seconds[:, slow.first_step - table.first_step :]
    peers = np.flatnonzero(np.array(table.roles) == table.roles[slow.rank])[:: max(1, slow.peers // SAMPLE)]
    usual = float(np.nanmedian(own[peers] + data[peers]))
    longer = float(np.nanmedian(data[slow.rank]) - np.nanmedian(data[peers]))
    return longer >= WAITING_SHARE_MIN * (slow.ratio - 1) * usual


def judged_ranks(table: StepTable, policy: Straggler) -> list[int]:
    """Ranks that have finished a whole window beside enough peers of their role: only these can keep up."""
    span = _span(table, policy)
    if span is None:
        return []
    window = table.self_seconds[:, span.end - policy.window_steps : span.end]
    enough = np.count_nonzero(~np.isnan(window), axis=1) >= policy.window_steps // 2
    return [
        rank
        for _, groups in _peer_groups(table.roles)
        for group in groups
        if np.count_nonzero(enough[group]) >= PEERS_MIN
        for rank in group[enough[group]].tolist()
    ]


def keeps_up(table: StepTable, node: str, policy: Straggler) -> bool:
    """True if the newest window shows every rank of the node that has peers at their pace. What is not known does not:
    it may still be too early to find a rank slow, which takes several windows.
    """
    span = _span(table, policy)
    if span is None:
        return False
    window = medians(table.self_seconds[:, span.end - policy.window_steps : span.end], policy.window_steps // 2)
    there = np.array(table.nodes) == node
    kept: list[bool] = []
    for _, groups in _peer_groups(table.roles):
        asked = policy.ratio_few_peers if groups.shape[1] < policy.peers_few else policy.ratio_overall
        paces = _ratios(window[groups][..., None])[..., 0] <= _keeping_up_below(asked)
        kept += paces[there[groups]].tolist()
    return bool(kept) and all(kept)


def _keeping_up_below(asked: float) -> float:
    """Ratio of the latest window, below which a rank keeps up, where a slow one has to exceed `asked`."""
    return (1 + asked) / 2


@dataclass(frozen=True, slots=True)
class _Case:
    table: StepTable
    policy: Straggler
    span: _Span
    found: _Judged


def _batches(cases: Sequence[_Case]) -> Iterator[list[_Case]]:
    batch: list[_Case] = []
    ranks = 0
    for case in cases:
        batch.append(case)
        ranks += len(case.table.self_seconds)
        if ranks >= RANKS_AT_ONCE:
            yield batch
            batch, ranks = [], 0
    if batch:
        yield batch


def _judge_batch(batch: Sequence[_Case], groups_of: GroupsOf) -> None:
    """Judges cases with equally many windows: their ranks are the rows of one array, gang after gang."""
    policy, count = batch[0].policy, batch[0].span.count
    width = policy.window_steps
    blocks = [case.table.self_seconds[:, case.span.start : case.span.end] for case in batch]
    block = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
    windows = medians(block.reshape(len(block), count, width), least=width // 2)
    halves = medians(block[:, -(width // 2) * 2 :].reshape(len(block), 2, width // 2), least=width // 4)
    mean = means(block[:, -width * policy.windows_slow_min :])
    rows: dict[tuple[bool, int], list[Indices]] = {}
    owners: dict[tuple[bool, int], list[_Owner]] = {}
    first_row = 0
    for case in batch:
        for named, groups in groups_of(case.table.roles):
            key = (named, groups.shape[1])
            rows.setdefault(key, []).append(groups + first_row)
            owners.setdefault(key, []).extend([_Owner(case, first_row)] * len(groups))
        first_row += len(case.table.self_seconds)
    for (named, size), members in rows.items():
        groups = np.concatenate(members)
        _note_uneven(mean[groups], owners[named, size])
        _judge_groups(groups, named, windows, halves, owners[named, size])


def _span(table: StepTable, policy: Straggler) -> _Span | None:
    """None while there is less than one window. A rank that is far behind is not waited for: its steps are missing."""
    width = policy.window_steps
    heard = table.last_step[table.last_step >= 0]
    if heard.size < PEERS_MIN:
        return None
    behind_max = policy.windows * width // 2
    end = int(heard[heard >= heard.max() - behind_max].min()) + 1
    half = width // 2
    end -= end % half
    count = min(policy.windows, (end - table.first_step) // width)
    if count < 1:
        return None
    end -= table.first_step
    return _Span(end - count * width, end, count)


def _peer_groups(roles: tuple[str, ...]) -> _PeerGroups:
    """Ranks of one role together. Roles with equally many ranks come as one array of shape (roles, ranks), so that many
    small ones cost no more than a large one. The first value says whether the role has a name.
    """
    numbers: dict[str, int] = {}
    codes = np.fromiter((numbers.setdefault(role, len(numbers)) for role in roles), np.intp, len(roles))
    ordered = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes)
    members = np.split(ordered, np.cumsum(sizes)[:-1])
    nameless = numbers.get("")
    found: list[tuple[bool, Indices]] = []
    if nameless is not None and sizes[nameless] >= PEERS_MIN:
        found.append((False, members[nameless][None, :]))
    for size in sorted(set(sizes.tolist())):
        alike = [members[code] for code in np.flatnonzero(sizes == size) if code != nameless]
        if size >= PEERS_MIN and alike:
            found.append((True, np.stack(alike)))
    return found


@dataclass(frozen=True, slots=True)
class _Owner:
    """Case that a group belongs to, and the row of the batch that is its rank 0."""

    case: _Case
    first_row: int


def _note_uneven(mean: Floats, owners: Sequence[_Owner]) -> None:
    """`mean` has shape (groups, ranks)."""
    policy = owners[0].case.policy
    usual = medians(mean, PEERS_MIN)[:, None]
    for group in np.flatnonzero((mean > policy.ratio * usual).any(axis=1)).tolist():
        owners[group].case.found.uneven = True


def _judge_groups(groups: Indices, named: bool, windows: Floats, halves: Floats, owners: Sequence[_Owner]) -> None:
    """`groups` are rows of `windows` and `halves`, one group a row; `owners` get the slow ones."""
    policy = owners[0].case.policy
    ratio, ratio_half = _ratios(windows[groups]), _ratios(halves[groups])
    if not ((ratio > policy.ratio).any() or (ratio_half > policy.ratio_gross).any()):
        return  # as in most gangs at most times
    z, z_half = _distances(ratio), _distances(ratio_half)
    few = groups.shape[1] < policy.peers_few
    # The deviation of few peers is a matter of luck: instead a larger excess is required, and that no other rank is
    # slow (_doubt).
    slow = (ratio > policy.ratio) & (few | (z > policy.robust_z))
    asked = policy.ratio_few_peers if few else policy.ratio_overall
    recent = means(ratio[..., -policy.windows_slow_min :])
    # The latest window may be one of those that fall short, but not of one who keeps up again.
    steady = (
        (slow.sum(axis=-1) >= policy.windows_slow_min) & (ratio[..., -1] > _keeping_up_below(asked)) & (recent > asked)
    )
    gross = ((ratio_half > policy.ratio_gross) & (few | (z_half > policy.robust_z))).all(axis=-1)
    for group in np.flatnonzero((steady | gross).any(axis=1)).tolist():
        owner = owners[group]
        peers = _Peers(groups[group] - owner.first_row, named, ratio[group], owner.case)
        for place in np.flatnonzero(steady[group] | gross[group]).tolist():
            convicted = peers.convict(
                place,
                steps=policy.window_steps * (policy.windows_slow_min if steady[group, place] else 1),
                ratio=float(recent[group, place] if steady[group, place] else ratio_half[group, place].mean()),
                z=float(z[group, place, -1]),
                slow=slow[group, place],
            )
            if convicted is not None:
                owner.case.found.slow.append(convicted)


def _ratios(values: Floats) -> Floats:
    """Ratios to the median of the peers; NaN if too few are there. `values` and the result have shape (roles, ranks,
    windows).
    """
    by_window = np.ascontiguousarray(np.swapaxes(values, 1, 2))
    middle = medians(by_window, _peers_least(values))[..., None]
    middle[~(middle > SELF_SECONDS_MIN)] = np.nan
    return np.swapaxes(by_window / middle, 1, 2)


def _distances(ratios: Floats) -> Floats:
    """Distances from the median of the peers, in robust deviations. Shapes as in `_ratios`."""
    away = np.ascontiguousarray(np.swapaxes(ratios, 1, 2)) - 1
    spread = means(MAD_TO_SIGMA * medians(np.abs(away), _peers_least(ratios)))  # of the role, not of a window
    return np.swapaxes(away / np.maximum(spread, MAD_FLOOR_SHARE)[:, None, None], 1, 2)


def _peers_least(values: Floats) -> int:
    ranks: int = values.shape[1]
    return max(PEERS_MIN, ranks // 2)


class _Peers:
    """One role in which a rank looks slow: what speaks against that. Few ranks get here, so it may take longer."""

    def __init__(self, ranks: Indices, named: bool, ratio: Floats, case: _Case) -> None:
        self._ranks = ranks
        self._named = named
        self._ratio = ratio  # (ranks, windows)
        self._case = case
        sample = ranks[:: max(1, len(ranks) // SAMPLE)]
        steps = case.table.self_seconds[:, : case.span.end]
        self._middle = medians(np.ascontiguousarray(steps[sample].T), least=max(1, len(sample) // 2))
        self._sample = sample

    def convict(self, place: int, steps: int, ratio: float, z: float, slow: npt.NDArray[np.bool_]) -> SlowRank | None:
        """None: what its steps vary by explains the excess."""
        excess = ratio - 1
        error = MEDIAN_ERROR * self._noise(place, steps) / steps**0.5
        if not excess > self._case.policy.noise_z * error:
            return None
        width, first = self._case.policy.window_steps, self._case.table.first_step + self._case.span.start
        windows = len(slow)
        earliest = int(np.argmax(slow)) if slow.any() else windows - 1
        return SlowRank(
            rank=int(self._ranks[place]),
            ratio=ratio,
            z=z,
            noise_z=excess / error if error > 0 else float("inf"),
            slow_windows=int(slow.sum()),
            first_step=first + earliest * width,
            last_step=first + windows * width - 1,
            peers=len(self._ranks),
            doubt=self._doubt(place, excess),
        )

    def _noise(self, place: int, steps: int) -> float:
        """How much single steps vary beside the peers' median: of this rank or of its role, whichever is more."""
        own = _noise(self._relative(self._ranks[place : place + 1])[:, -steps:])
        role = _noise(self._relative(self._sample)[:, -steps:])
        return max(float(own[0]), float(np.nanmedian(role)))

    def _relative(self, ranks: Indices) -> Floats:
        """Step times over those of the peers; shape (ranks, steps of the table up to the end of the span)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self._case.table.self_seconds[ranks, : self._case.span.end] / self._middle)

    def _doubt(self, place: int, excess: float) -> str:
        """Several ranks that are slow alike are taken for a role that was not set, unless this one kept up before."""
        alike = min(max(excess / 4, ALIKE_SHARE), excess / 2)
        apart = int((np.abs(means(self._ratio) - 1) > alike).sum())
        allowed = max(1, len(self._ranks) // APART_SHARE[self._named])
        if apart <= allowed or self._fell_back(place, excess):
            return ""
        where = "of its role" if self._named else "without a role"
        return (
            f"{apart} of {len(self._ranks)} ranks {where} are as slow, and this one since the first step known: "
            "they may have more work"
        )

    def _fell_back(self, place: int, excess: float) -> bool:
        """True if it once kept up: work does not change, a fault comes."""
        width, end = self._case.policy.window_steps, self._case.span.end
        own = self._relative(self._ranks[place : place + 1])[0, end % width :]
        before = medians(own.reshape(-1, width), least=width // 2)
        return bool((before[:-1] - 1 < excess / 3).any())


def _noise(relative: Floats) -> Floats:
    """Robust deviation of single steps, each row for itself."""
    least = relative.shape[1] // 4
    middle = medians(relative, least)
    return MAD_TO_SIGMA * medians(np.abs(relative - middle[:, None]), least)
