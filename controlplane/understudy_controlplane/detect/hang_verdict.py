"""Why a gang stands still, and which ranks the others wait for: from what all of its ranks show at once.

Each rank that waits in a collective waits for the members that have not entered it, and in a transfer for its peer. The
ranks at the end of these chains that wait for none are the ones that hold up the gang. Chains that end in a collective
that all have entered leave the network; chains without an end are a program that orders its collectives differently on
different ranks.

A rank is named by what it or the kernel shows. Its node is a suspect only with a second, independent source: the
kernel shows that the process is gone, stopped, or has done nothing for `IDLE_SECONDS`. A rank that computes may
evaluate, compile or save: it is named, and no node is suspected. Nor is any for a program's own mistake.

NCCL's own service is the second choice: it counts what ranks have launched, not what they wait in, and no transfers.
A rank that it shows behind may itself wait for another. It makes a node a suspect only where NCCL does not reach a
rank's process and the kernel shows that it has ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from understudy_wire.ranks import GroupPlace, NcclCommunicator, NcclSeen, ProcessNow, ProcessState, Recorder

IDLE_SECONDS = 20.0
"""Two looks of the agent at a process, and the time between them."""

RANKS_SHOWN_MAX = 8
ROUNDS_MAX = 64
"""The search for a circle ends after these; each takes time for every rank."""
MIXED_GROUPS_MIN = 2

GONE_OR_STOPPED = {
    ProcessState.GONE: "its process is gone",
    ProcessState.STOPPED: "its process is stopped (SIGSTOP)",
}


class Cause(StrEnum):
    NOT_KNOWN = "not_known"
    NOT_REACHED = "not_reached"  # NCCL's own network does not reach the processes of ranks
    PROCESS = "process"  # gone, stopped, or it does nothing inside the kernel
    NOT_ENTERED = "not_entered"  # ranks never entered the collective in which the others wait
    OTHER_ARGUMENTS = "other_arguments"  # ranks entered it with another operation, size or type
    OTHER_ORDER = "other_order"  # ranks enter collectives of two groups in different orders
    GPU_BEHIND = "gpu_behind"  # all have entered it, and on some the GPU has not begun it
    ALL_WAIT = "all_wait"  # all have entered it


@dataclass(frozen=True, slots=True)
class RankShown:
    """What is known of one rank. `recorder` None: it has shown nothing."""

    rank: int
    recorder: Recorder | None = None
    process: ProcessNow | None = None
    gpu_works: bool = False
    idle_seconds_min: float = IDLE_SECONDS
    """It is longer where its recorder is not new: a rank that has entered since is idle because it waits."""

    @property
    def waits(self) -> bool:
        return self.recorder is not None and bool(self.recorder.peers or any(one.open for one in self.recorder.groups))

    @property
    def known(self) -> bool:
        """Its collectives are known, and do not move."""
        return self.recorder is not None and self.recorder.still and bool(self.recorder.groups)

    @property
    def end_seen(self) -> str:
        """Why it cannot go on by itself, as the kernel shows it; empty: it may."""
        if self.process is None:
            return ""
        if self.process.state is ProcessState.BLOCKED and self.idle and not self.waits:
            return "its process waits inside the kernel, as for a file system"
        return GONE_OR_STOPPED.get(self.process.state, "")

    @property
    def idle(self) -> bool:
        """What a debugger has stopped is not."""
        seen = self.process if not self.gpu_works else None
        return seen is not None and seen.idle_seconds >= self.idle_seconds_min and seen.state is not ProcessState.TRACED


@dataclass(frozen=True, slots=True)
class Verdict:
    cause: Cause = Cause.NOT_KNOWN
    ranks: tuple[int, ...] = ()  # that hold up the others, or differ from them
    suspects: tuple[int, ...] = ()  # those whose nodes are suspects
    group: str = ""  # in whose collective the others wait
    why: str = ""  # for people
    members: tuple[int, ...] = ()  # of groups that wait, where no more than these can be named


@dataclass(frozen=True, slots=True)
class _Waits:
    """Who waits for whom. Kept by group and not by pair: a gang has tens of thousands of ranks."""

    places: Mapping[str, Mapping[int, GroupPlace]]
    peers: Mapping[int, Sequence[int]]  # of transfers

    @property
    def groups(self) -> dict[str, int]:
        """Group → its ranks that wait for a late one there."""
        found = {}
        for group, places in self.places.items():
            first = min(place.last for place in places.values())
            found[group] = sum(place.open > first for place in places.values())
        return {group: count for group, count in found.items() if count}

    def late_for(self, ranks: Set[int]) -> set[int]:
        """Those for which any of these ranks waits."""
        found = {peer for rank in ranks for peer in self.peers.get(rank, ())}
        for places in self.places.values():
            furthest = max((places[rank].open for rank in ranks & places.keys()), default=0)
            found |= {rank for rank, place in places.items() if place.last < furthest}
        return found

    def waiting(self) -> set[int]:
        """Those that wait for a late one."""
        found = {rank for rank, peers in self.peers.items() if peers}
        for places in self.places.values():
            first = min(place.last for place in places.values())
            found |= {rank for rank, place in places.items() if place.open > first}
        return found


def verdict(shown: Sequence[RankShown], nccl: Sequence[NcclSeen] = ()) -> Verdict:
    found = _by_ranks(shown)
    still = [one for one in nccl if one.still]
    return _by_nccl(shown, still, found) if still and found.cause is Cause.NOT_KNOWN else found


def _by_nccl(shown: Sequence[RankShown], nccl: Sequence[NcclSeen], found: Verdict) -> Verdict:
    """Only what all answers show: a process that does not reach the others may itself be the one that is cut off."""
    missing = _in_all([{rank for one in seen.communicators for rank in one.missing} for seen in nccl])
    behind = _in_all([{rank for one in seen.communicators for rank in one.behind} for seen in nccl])
    if missing and 2 * len(missing) < len(shown):
        return _not_reached(shown, missing, checked=all(one.checked for one in nccl))
    if behind and 2 * len(behind) <= len(shown):
        of = next(one for one in nccl[0].communicators if behind & {*one.behind})
        why = f"NCCL: {ranks_shown(sorted(behind))} began fewer operations than the others of {_communicator(of)}"
        return Verdict(Cause.NOT_ENTERED, tuple(sorted(behind)), (), of.name, why)
    if all(one.count and not one.communicators for one in nccl):
        communicators = "all ranks of its communicator" if nccl[0].count == 1 else "the ranks of each communicator"
        why = f"NCCL: {communicators} have begun as many operations: the network, a GPU, or a transfer is the cause"
        return Verdict(Cause.ALL_WAIT, why=f"{found.why}; {why}" if found.why else why)
    return found


def _in_all(sets: Sequence[set[int]]) -> set[int]:
    return set.intersection(*sets)


def _not_reached(shown: Sequence[RankShown], missing: Set[int], *, checked: bool) -> Verdict:
    ended = {one.rank: one.end_seen for one in shown if one.rank in missing and one.end_seen}
    blocked = {one.rank for one in shown if one.rank in ended and _is_blocked(one)}
    suspects = (ended.keys() - (blocked if len(blocked) > 1 else set())) if checked else set()
    texts = [f"NCCL does not reach {ranks_shown(sorted(missing))}"]
    texts += [f"{ranks_shown(those)}: {why}" for why, those in _by_text(ended)]
    return Verdict(Cause.NOT_REACHED, tuple(sorted(missing)), tuple(sorted(suspects)), "", "; ".join(texts))


def _communicator(one: NcclCommunicator) -> str:
    return f"communicator {one.name} of {one.size} ranks" + (f" ({one.what})" if one.what else "")


def _by_ranks(shown: Sequence[RankShown]) -> Verdict:
    by_rank = {one.rank: one for one in shown}
    waiting = {one.rank for one in shown if one.waits and one.known}
    if not waiting:
        return _without_recorder(shown)
    members: dict[str, dict[int, GroupPlace]] = defaultdict(dict)
    for one in shown:
        for place in one.recorder.groups if one.recorder is not None and one.known else ():
            members[place.group][one.rank] = place
    different = _different(members)
    return different if different is not None else _by_waits(shown, by_rank, waiting, members)


def _by_waits(
    shown: Sequence[RankShown],
    by_rank: Mapping[int, RankShown],
    waiting: Set[int],
    members: Mapping[str, Mapping[int, GroupPlace]],
) -> Verdict:
    waits = _Waits(members, {one.rank: one.recorder.peers for one in shown if one.recorder is not None and one.known})
    late = waits.late_for(waiting)
    if not late <= by_rank.keys():  # the other side of a transfer is not known
        return _without_recorder(shown)
    ends = {rank: one.end_seen for rank, one in by_rank.items() if one.end_seen}
    ended = {rank: why for rank, why in ends.items() if rank in late or _is_stopped(by_rank[rank])}
    roots = late - waiting - ended.keys()
    if not roots and not ended:  # none is late as far as ranks show: one that has ended may have been
        ended = {rank: why for rank, why in ends.items() if not by_rank[rank].known}
        roots = {rank for rank, one in by_rank.items() if one.recorder is None and one.process and rank not in ends}
    named = roots | ended.keys()
    if named:
        return _named(by_rank, roots, ended, waits) if 2 * len(named) <= len(shown) else Verdict()
    if any(not one.known for one in shown):
        return Verdict(why="some of its ranks do not show their collectives")
    if late:
        return _without_root(waits, waiting)
    return _all_entered(members, waiting) if len(waiting) == len(shown) else Verdict()


def _without_recorder(shown: Sequence[RankShown]) -> Verdict:
    """Only the kernel shows something. A process that is gone may have finished."""
    gone = ProcessState.GONE
    ended = {one.rank: one.end_seen for one in shown if one.end_seen and one.process and one.process.state is not gone}
    if not ended or 2 * len(ended) > len(shown):
        return Verdict()
    return _named({one.rank: one for one in shown}, set(), ended, _Waits({}, {}))


def _different(members: Mapping[str, Mapping[int, GroupPlace]]) -> Verdict | None:
    """The first of their last collectives that is not the same on all ranks."""
    for group, places in members.items():
        by_number: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank, place in places.items():
            for entered in place.recent:
                by_number[entered.number][entered.what].append(rank)
        for number, whats in sorted(by_number.items()):
            if len(whats) > 1:
                few_first = sorted(whats.items(), key=lambda one: (len(one[1]), one[1]))
                text = "; ".join(f"{ranks_shown(ranks)}: {what}" for what, ranks in few_first)
                ranks = tuple(sorted(rank for _, those in few_first[:-1] for rank in those))
                why = f"ranks entered different collectives as number {number} of group {group} ({text})"
                return Verdict(Cause.OTHER_ARGUMENTS, ranks, (), group, f"{why}: a mistake of the program")
    return None


def _is_stopped(one: RankShown) -> bool:
    return one.process is not None and one.process.state is ProcessState.STOPPED


def _is_blocked(one: RankShown) -> bool:
    return one.process is not None and one.process.state is ProcessState.BLOCKED


def _named(by_rank: Mapping[int, RankShown], roots: Set[int], ended: Mapping[int, str], waits: _Waits) -> Verdict:
    groups = waits.groups
    group = max(groups, key=lambda one: groups[one], default="")
    others_known = all(one.known or rank in roots or rank in ended for rank, one in by_rank.items())
    suspects = {rank for rank in roots if others_known and by_rank[rank].idle} | ended.keys()
    blocked = {rank for rank in ended if _is_blocked(by_rank[rank])}
    if len(blocked) > 1:  # a file server, and none of their nodes
        suspects -= blocked
    where = f" the collective of group {group} in which the others wait" if group else " what the others wait in"
    texts = [f"{ranks_shown(those)}: {why}" for why, those in _by_text(ended)]
    if roots:
        reasons = {rank: _reason(by_rank[rank], others_known) for rank in roots}
        texts += [f"{ranks_shown(those)} did not enter{where}; {why}" for why, those in _by_text(reasons)]
    cause = Cause.PROCESS if ended else Cause.NOT_ENTERED
    named = tuple(sorted({*roots, *ended}))
    return Verdict(cause, named, tuple(sorted(suspects)), group, "; ".join(texts))


def _reason(one: RankShown, others_known: bool) -> str:
    if one.gpu_works:
        return "its GPU works: it may evaluate"
    if one.process is None:
        return "nothing else is known of it"
    if one.process.state is ProcessState.TRACED:
        return "a debugger has stopped its process"
    if not one.idle:
        return "its process works: it may evaluate, compile or save"
    does_nothing = f"its process has done nothing for {one.process.idle_seconds:.0f} s"
    return does_nothing if others_known else f"{does_nothing}, and other ranks do not show their collectives"


def _without_root(waits: _Waits, waiting: Set[int]) -> Verdict:
    """All that are late wait themselves: in a collective that all have entered, or in a circle."""
    sinks = waiting - waits.waiting()
    if sinks:
        return _all_entered(waits.places, sinks)
    circle = set(waiting)
    for _ in range(ROUNDS_MAX):
        inside = waits.late_for(circle) & circle
        if inside == circle:
            break
        circle = inside
    groups = sorted(waits.groups)
    if not circle or len(groups) < MIXED_GROUPS_MIN:  # transfers among them: who is first is not known
        return Verdict()
    why = f"ranks wait for each other in a circle: they enter collectives of groups {' and '.join(groups[:2])} in"
    return Verdict(
        Cause.OTHER_ORDER, tuple(sorted(circle)), (), "", f"{why} different orders: a mistake of the program"
    )


def _all_entered(members: Mapping[str, Mapping[int, GroupPlace]], waiting: Set[int]) -> Verdict:
    stuck = [
        (group, {rank: place for rank, place in places.items() if place.open})
        for group, places in members.items()
        if any(places[rank].open for rank in waiting & places.keys())
    ]
    for group, places in stuck:
        idle = sorted(rank for rank, place in places.items() if not place.begun)
        if idle and 2 * len(idle) <= len(places):
            why = f"all have entered the collective of group {group}; the GPU of {ranks_shown(idle)} has not begun it"
            return Verdict(Cause.GPU_BEHIND, tuple(idle), (), group, why)
    ranks = tuple(sorted({rank for _, places in stuck for rank in places}))
    groups = ", ".join(group for group, _ in stuck[:3])
    begun = any(place.begun for _, places in stuck for place in places.values())
    cause = "the network is the cause" if begun else "the network is the cause, or what a GPU has to do before"
    why = f"all ranks of group {groups} wait inside the same collective and none is late: {cause}"
    return Verdict(Cause.ALL_WAIT, (), (), groups, f"{why} ({ranks_shown(ranks)})", ranks)


def _by_text(texts: Mapping[int, str]) -> Iterator[tuple[str, list[int]]]:
    found: dict[str, list[int]] = defaultdict(list)
    for rank, text in sorted(texts.items()):
        found[text].append(rank)
    yield from found.items()


def ranks_shown(ranks: Sequence[int]) -> str:
    first = ", ".join(map(str, ranks[:RANKS_SHOWN_MAX]))
    return f"rank{'s' if len(ranks) > 1 else ''} {first}{' …' if len(ranks) > RANKS_SHOWN_MAX else ''}"
