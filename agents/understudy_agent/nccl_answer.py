"""What NCCL's RAS service prints: which ranks of a job's communicators do not answer, and which have begun fewer
operations than others.

JSON has every rank (2.28.7 and newer), the text only groups of ranks that are few. Both were read in NCCL's source
(src/ras/client_support.cc of 2.24, 2.25, 2.26, 2.28, 2.29 and 2.30). The service counts collectives when they are
launched, by their kind, and no transfers.

Its ranks are those of a communicator. Ranks of one of the whole gang are the gang's as PyTorch numbers them; by their
host, process and GPU they are found in the others. JSON shows whether that is right for the ranks of this node.

A user's process may print anything. While a decoder or an expression works, no other thread of the agent does, so what
they are given is bounded first, and no expression can match a text in two ways.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from understudy_wire.ranks import (
    NCCL_COMMUNICATORS_MAX,
    NCCL_RANKS_MAX,
    RECORDED_WHAT_CHARACTERS_MAX,
    NcclCommunicator,
    NcclSeen,
)
from understudy_wire.values import LABEL_CHARACTERS_MAX, NOT_UNDERSTOOD, Count, Size, printable

Pids = Mapping[int, Collection[int]]
"""Rank of this node → pids of its process, in the namespace of the agent and in its own."""


COMMUNICATORS_MAX = 4096
RANKS_MAX = 32_768
"""Ranks of all communicators together."""
VALUES_MAX = 2**18
"""Commas of JSON: there are about 16 for each rank."""
LINES_MAX = 65_536
LINE_CHARACTERS_MAX = 4096
"""NCCL puts what is longest in a line together in 1,024 characters."""
COUNT_MAX = 2**31 - 1
HASH_CHARACTERS_MAX = 18


class NotUnderstoodError(Exception):
    """It is no answer of RAS, or one of another release."""


def parsed(answer: bytes, world_size: int, pids: Pids) -> NcclSeen:
    """Raises NotUnderstoodError."""
    return _from_json(answer, world_size, pids) if answer.lstrip()[:1] == b"{" else _from_text(answer, world_size)


class _RankStatus(msgspec.Struct, frozen=True, gc=False):
    finalize_called: bool = False
    destroy_flag: bool = False
    abort_flag: bool = False
    unresponsive: bool = False  # this and the next: of missing ranks
    considered_dead: bool = False

    @property
    def ends(self) -> bool:
        return self.finalize_called or self.destroy_flag or self.abort_flag


class _Rank(msgspec.Struct, frozen=True, gc=False):
    rank: Count
    host: str = ""
    pid: int = -1
    nvml_dev: int = -1
    status: _RankStatus = _RankStatus()
    collective_counts: dict[str, Size] = {}

    @property
    def place(self) -> tuple[str, int, int]:
        return (self.host, self.pid, self.nvml_dev)


class _Communicator(msgspec.Struct, frozen=True, gc=False):
    hash: str
    size: Count
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Answer(msgspec.Struct, frozen=True):
    nccl_version: str
    communicators: list[_Communicator]


_answer_decoder = msgspec.json.Decoder(_Answer)


def _from_json(answer: bytes, world_size: int, pids: Pids) -> NcclSeen:
    _bounded("values", answer.count(b","), VALUES_MAX)
    try:
        content = _answer_decoder.decode(answer)
    except NOT_UNDERSTOOD as error:
        raise NotUnderstoodError(str(error)) from error
    _bounded("communicators", len(content.communicators), COMMUNICATORS_MAX)
    _bounded("ranks", sum(len(one.ranks) + len(one.missing_ranks) for one in content.communicators), RANKS_MAX)
    numbers = _numbers(content.communicators, world_size, pids)
    found = [_of_communicator(one, numbers) for one in content.communicators]
    return _seen(content.nccl_version, len(found), found, checked=bool(numbers))


def _bounded(what: str, number: int, most: int) -> None:
    if number > most:
        raise NotUnderstoodError(f"it has more than {most} {what}")


def _numbers(communicators: Iterable[_Communicator], world_size: int, pids: Pids) -> Mapping[tuple[str, int, int], int]:
    """Host, pid and GPU → rank of the gang. Empty: not known."""
    for one in communicators:
        ranks = {rank.rank: rank for rank in (*one.ranks, *one.missing_ranks)}
        if one.size == len(ranks) == world_size and pids:
            known = all(rank in ranks and ranks[rank].pid in own for rank, own in pids.items())
            numbers = {rank.place: number for number, rank in ranks.items()}
            if known and len(numbers) == world_size:
                return numbers
    return {}


def _of_communicator(one: _Communicator, numbers: Mapping[tuple[str, int, int], int]) -> NcclCommunicator:
    missing = [rank for rank in one.missing_ranks if rank.status.unresponsive or rank.status.considered_dead]
    begun = {rank.rank: sum(rank.collective_counts.values()) for rank in one.ranks}
    furthest = max(begun.values(), default=0)
    behind = [rank for rank in one.ranks if begun[rank.rank] < furthest]
    if any(rank.status.ends for rank in one.ranks):  # ranks leave it one after the other
        behind = []
    return NcclCommunicator(
        _name(one.hash),
        one.size,
        _listed([numbers.get(rank.place) for rank in missing]),
        len(missing),
        _listed([numbers.get(rank.place) for rank in behind]),
        len(behind),
        _what(_kinds(one.ranks)) if behind else "",
    )


def _kinds(ranks: Iterable[_Rank]) -> Iterator[tuple[str, int, int]]:
    by_kind: dict[str, list[int]] = {}
    for rank in ranks:
        for kind, count in rank.collective_counts.items():
            by_kind.setdefault(kind, []).append(count)
    yield from ((kind, min(counts), max(counts)) for kind, counts in by_kind.items() if min(counts) < max(counts))


@dataclass(slots=True)
class _Printed:
    """What the text has of one communicator."""

    name: str
    size: int
    missing: list[int] = field(default_factory=list)
    missing_count: int = 0
    kinds: list[tuple[str, list[_Group]]] = field(default_factory=list)
    ends: bool = False
    block: str = ""  # which of its blocks is read


@dataclass(slots=True)
class _Group:
    """Ranks that have begun as many operations."""

    begun: int
    count: int
    ranks: list[int] = field(default_factory=list)


_VERSION = re.compile(r"NCCL version (\S+)")
_ROW = re.compile(r" *(\d{1,9}) +(\d{1,9}) +\d+ +[-\d]+ +(\d{1,9}) +\d+ +[A-Z]+ +[A-Z,]+")
_HEAD = re.compile(r"#(\d{1,9})-(\d{1,9}) \(([0-9a-f]{1,16})\) ([A-Z]+)")
_MISSING = re.compile(r"  Missing communicator data from (\d{1,9}) rank")
_MISSING_RANKS = re.compile(r"  The missing ranks?: ((?:\d{1,9},)*\d{1,9},?)$")
_KIND = re.compile(r"  Communicator ranks have different (\w+) operation counts")
_BEGUN = re.compile(r"  (\d{1,9}) ranks have (?:launched up to operation (\d{1,15})|not launched any operations)")
_ONE_BEGUN = re.compile(r"  Rank (\d{1,9}) has (?:launched up to operation (\d{1,15})|not launched any operations)")
_RANK = re.compile(r"  Rank (\d{1,9}) -- ")
_ENDS = re.compile(r"  .* status (?:FINALIZE|ABORT|NOCOMM|UNKNOWN)")


def _from_text(answer: bytes, world_size: int) -> NcclSeen:
    _bounded("lines", answer.count(b"\n"), LINES_MAX)
    lines = answer.decode("ascii", "replace").split("\n")
    _bounded("characters in a line", max(map(len, lines)), LINE_CHARACTERS_MAX)
    version = next((found.group(1) for line in lines if (found := _VERSION.match(line))), "")
    if not version or not any(line.startswith(("Group ", "No communicator data")) for line in lines):
        raise NotUnderstoodError("no version of NCCL, or no communicators")
    rows = [found for line in lines if (found := _ROW.fullmatch(line))]
    sizes = {int(row.group(1)): int(row.group(3)) for row in rows}
    printed: dict[tuple[str, str], _Printed] = {}
    now: _Printed | None = None
    for line in lines:
        if head := _HEAD.match(line):
            group, number, name, block = head.groups()
            now = printed.setdefault((group, number), _Printed(_name(name), sizes.get(int(group), 0)))
            now.block = block
            _bounded("communicators", len(printed), COMMUNICATORS_MAX)
        elif not line:
            now = None
        elif now is not None:
            _note(now, line)
    reported = [_of_printed(one, whole=one.size == world_size) for one in printed.values()]
    return _seen(version, sum(int(row.group(2)) for row in rows), reported, checked=False)


def _note(now: _Printed, line: str) -> None:
    if now.block == "INCOMPLETE":
        if found := _MISSING.match(line):
            now.missing_count = int(found.group(1))
        elif found := _MISSING_RANKS.match(line):  # to 2.25; it may be cut at 1,024 characters
            now.missing += [int(one) for one in found.group(1).split(",") if one]
        elif found := _RANK.match(line):
            now.missing.append(int(found.group(1)))
    elif now.block == "MISMATCH":
        groups = now.kinds[-1][1] if now.kinds else []
        if found := _KIND.match(line):
            now.kinds.append((found.group(1), []))
        elif found := _BEGUN.match(line):
            groups.append(_Group(int(found.group(2) or 0), int(found.group(1))))
        elif found := _ONE_BEGUN.match(line):
            groups.append(_Group(int(found.group(2) or 0), 1, [int(found.group(1))]))
        elif (found := _RANK.match(line)) and groups:
            groups[-1].ranks.append(int(found.group(1)))
        elif _ENDS.match(line):
            now.ends = True


def _of_printed(one: _Printed, *, whole: bool) -> NcclCommunicator:
    """`whole`: it has all ranks of the gang."""
    behind: list[list[_Group]] = []
    spread: list[tuple[str, int, int]] = []
    for kind, groups in one.kinds if not one.ends else []:
        begun = [group.begun for group in groups]
        if groups and min(begun) < max(begun):
            behind.append([group for group in groups if group.begun < max(begun)])
            spread.append(("" if kind == "collective" else kind, min(begun), max(begun)))
    counts = [sum(group.count for group in groups) for groups in behind]
    ranks = [sorted(rank for group in groups for rank in group.ranks) for groups in behind]
    # The text of several kinds does not show which of two ranks has begun more.
    alike = whole and bool(ranks) and all(one == ranks[0] for one in ranks) and len(ranks[0]) == counts[0]
    missing = one.missing if whole and len(one.missing) == one.missing_count else []
    return NcclCommunicator(
        one.name,
        one.size,
        _listed(missing),
        one.missing_count,
        _listed(ranks[0] if alike else []),
        min(max(counts, default=0), COUNT_MAX),
        _what(spread) if behind else "",
    )


def _seen(version: str, count: int, found: Iterable[NcclCommunicator], *, checked: bool) -> NcclSeen:
    reported = sorted(
        (one for one in found if one.missing_count or one.behind_count), key=lambda one: (-one.size, one.name)
    )
    version, count = printable(version, LABEL_CHARACTERS_MAX), min(count, COUNT_MAX)
    return NcclSeen(version, count, reported[:NCCL_COMMUNICATORS_MAX], checked)


def _listed(ranks: Collection[int | None]) -> list[int]:
    known = sorted(rank for rank in ranks if rank is not None)
    return known if len(known) == len(ranks) <= NCCL_RANKS_MAX else []


def _name(text: str) -> str:
    """The hash, which the formats print differently."""
    _bounded("characters in a hash", len(text), HASH_CHARACTERS_MAX)
    try:
        return f"{int(text, 16) & (2**64 - 1):x}"
    except ValueError as error:
        raise NotUnderstoodError(f"hash of a communicator: {text[:32]!r}") from error


def _what(kinds: Iterable[tuple[str, int, int]]) -> str:
    most_characters = RECORDED_WHAT_CHARACTERS_MAX
    shown = "; ".join(f"{kind[:most_characters]} {least} of {most}".strip() for kind, least, most in islice(kinds, 2))
    return re.sub(r'[^ -~]|["\\]', "?", shown[:most_characters])
