"""What the ranks of a gang showed before they were ended: who is missing in which collective, why one failed, and a
text. Pure.

A node is never blamed: a rank that did not come may wait for another. The last line that a rank wrote is often not its
cause: torchrun ends with a frame around its own error, and a failed `torch.save` with an error about positions in a
file, because the disk was full.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EVIDENCE_BYTES_MAX = 32_768
"""Most bytes of the text, as JSON writes it. A line to the agent has 64 KiB at most."""
FIRST_NUMBERS = 8
"""Up to this collective, a member of the group of which none is recorded has entered none."""
FINDINGS_MAX = 16
RANKS_NAMED_MAX = 8
DEFAULT_GROUP = "default_pg"
_NOT_SHOWN = re.compile(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\s*\[\d+\]:\s*^\s*time\s*: (?P<time>\S+).*?"
    r"^\s*rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s*^\s*exitcode\s*: (?P<status>-?\d+)",
    re.DOTALL | re.MULTILINE,
)
"""`_FAILURE_FORMAT_TEMPLATE` in torch/distributed/elastic/multiprocessing/errors/__init__.py, read and recorded with
PyTorch 2.13; logs of others since 2.0 read the same.
"""
_ERROR = re.compile(r"(?:\[rank(?P<rank>\d+)\]:\s*)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*")
"""The last line of a traceback. PyTorch puts the rank before it, once its process group is there."""
_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError: Command ")
"""What torchrun and `accelerate launch` raise because the training has failed."""

_OF_CPP = re.compile(r"what\(\):\s+(?P<words>.+)")
"""The words of a C++ exception that ended the program; its stack follows."""
_DISK_FULL = "No space left on device"
_CUT_FILE = ("unexpected pos", "PytorchStreamWriter failed writing")


@dataclass(frozen=True, slots=True)
class Shown:
    """What one rank showed."""

    rank: int
    node: str
    waits: str = ""
    """What its threads wait for in the kernel."""
    stacks: str = ""
    wrote: str = ""
    """The last lines of its standard error."""
    last: tuple[str, int, bool] | None = None
    """The last collective that the training hook saw it enter: name, number in this process, whether it is inside; the
    number is 0 where it has entered none. None: not known.
    """
    entered: Mapping[str, Mapping[int, str]] | None = None
    """Process group → the numbers and names of the last collectives in PyTorch's flight recorder; None: it has none."""
    groups: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """Process group → its ranks, as the recorder names them."""


def read_shown(node: str, message: Mapping[str, Any]) -> list[Shown]:
    """What a seat sends. Whatever it is of another release is left out."""
    ranks = message.get("ranks")
    found = []
    for one in ranks if isinstance(ranks, list) else ():
        try:
            found.append(_shown(node, one))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
            continue
    return found


def _shown(node: str, one: Mapping[str, Any]) -> Shown:
    last, entered, groups = one.get("last"), one.get("entered"), one.get("groups") or {}
    return Shown(
        int(one["rank"]),
        node,
        str(one.get("waits", "")),
        str(one.get("stacks", "")),
        str(one.get("wrote", "")),
        _last_of(last) if "last" in one else None,
        None
        if entered is None
        else {str(group): {int(number): str(name) for number, name in rows} for group, rows in entered.items() if rows},
        {str(group): frozenset(map(int, re.findall(r"\d+", str(ranks)))) for group, ranks in groups.items()},
    )


def _last_of(last: Sequence[Any] | None) -> tuple[str, int, bool]:
    return ("", 0, False) if last is None else (str(last[0]), int(last[1]), bool(last[2]))


# -- who is missing --------------------------------------------------------------------------------------------------


def findings(shown: Sequence[Shown]) -> list[str]:
    """Ranks that did not enter a collective, as the flight recorder shows it, else the training hook."""
    nodes = {one.rank: one.node for one in shown}
    members, entered, recorders = _by_group(shown)
    found = [
        text
        for group, numbers in entered.items()
        for text in _of_group(group, numbers, members.get(group, frozenset()) & recorders, nodes)
    ]
    return (found or list(_by_hook(shown, nodes)))[:FINDINGS_MAX]


def _by_group(
    shown: Sequence[Shown],
) -> tuple[Mapping[str, frozenset[int]], Mapping[str, Mapping[int, Mapping[int, str]]], frozenset[int]]:
    """Members of each process group, what each of them entered, and the ranks that have a recorder. A large gang has
    thousands of groups.
    """
    named: dict[str, set[int]] = defaultdict(set)
    entered: dict[str, dict[int, Mapping[int, str]]] = defaultdict(dict)
    for one in shown:
        for group, ranks in one.groups.items():
            named[group] |= ranks
        for group, numbers in (one.entered or {}).items():
            entered[group][one.rank] = numbers
    everyone = frozenset(one.rank for one in shown)
    members = {group: frozenset(ranks) for group, ranks in named.items() if ranks}
    members |= {group: everyone for group in entered if group not in members and group.endswith(f":{DEFAULT_GROUP}")}
    return members, entered, frozenset(one.rank for one in shown if one.entered is not None)


def _of_group(
    group: str, entered: Mapping[int, Mapping[int, str]], members: frozenset[int], nodes: Mapping[int, str]
) -> Iterator[str]:
    """`members` are the ranks of which something would be recorded."""
    last = {rank: max(numbers) for rank, numbers in entered.items()}
    furthest = max(last.values())
    if furthest <= FIRST_NUMBERS:
        last |= {rank: 0 for rank in members if rank not in last}
    first = min(last.values()) + 1
    if first <= furthest:
        behind = [rank for rank in last if last[rank] < first]
        names = Counter(numbers[first] for numbers in entered.values() if first in numbers)
        yield (
            f"{_who(behind, nodes)} did not enter collective {first}{_named(names)} of process group {group}, which "
            f"{len(last) - len(behind)} others entered"
        )
    yield from _different(group, entered, nodes)


def _different(group: str, entered: Mapping[int, Mapping[int, str]], nodes: Mapping[int, str]) -> Iterator[str]:
    """The first collective that has different names on different ranks."""
    for number in sorted({number for numbers in entered.values() for number in numbers}):
        ranks = defaultdict(list)
        for rank, numbers in entered.items():
            if number in numbers:
                ranks[numbers[number]].append(rank)
        if len(ranks) > 1:
            fewest_first = sorted(ranks.items(), key=lambda one: len(one[1]))
            who = "; ".join(f"{name}: {_who(those, nodes)}" for name, those in fewest_first)
            yield f"ranks entered different collectives as number {number} of process group {group}: {who}"
            return


def _by_hook(shown: Sequence[Shown], nodes: Mapping[int, str]) -> Iterator[str]:
    """Ranks that run the same program count the same numbers, unless they have different roles."""
    last = {one.rank: one.last for one in shown if one.last is not None}
    waiting = Counter((number, name) for name, number, inside in last.values() if inside)
    for (number, name), most in waiting.most_common(1):
        behind = [rank for rank, (_, reached, _) in last.items() if reached < number]
        if behind and most > len(last) // 2:
            yield f"{_who(behind, nodes)} did not enter collective {number} ({name}), in which {most} others wait"


def _who(ranks: Iterable[int], nodes: Mapping[int, str]) -> str:
    found = sorted(ranks)
    if len(found) > RANKS_NAMED_MAX:
        return f"ranks {ranges(found)}"
    return ", ".join(f"rank {rank}" + (f" on {nodes[rank]}" if rank in nodes else "") for rank in found)


def _named(names: Counter[str]) -> str:
    return f" ({names.most_common(1)[0][0]})" if names else ""


# -- for people ------------------------------------------------------------------------------------------------------


def text_of(shown: Sequence[Shown], silent: Sequence[str], found: Sequence[str]) -> str:
    """`silent`: nodes whose seats have sent nothing. Ranks that stand alike are shown once; the fewest come first."""
    alike: dict[tuple[str, str], list[Shown]] = defaultdict(list)
    for one in shown:
        alike[one.stacks or one.waits, _last(one)].append(one)
    blocks = [*found]
    if silent:
        blocks.append(f"no answer within the time from {', '.join(silent[:64])}" + (", …" if silent[64:] else ""))
    for those in sorted(alike.values(), key=len):
        one = those[0]
        nodes = ", ".join(dict.fromkeys(each.node for each in those[:RANKS_NAMED_MAX]))
        head = f"=== ranks {ranges([each.rank for each in those])} ({nodes}{', …' if those[RANKS_NAMED_MAX:] else ''})"
        blocks.append("\n".join(filter(None, (head, _last(one), one.waits, one.stacks, _wrote(one)))))
    return fitted("\n\n".join(blocks))


def _last(one: Shown) -> str:
    if one.last is None:
        return ""
    name, number, inside = one.last
    if number == 0:
        return "no collective entered yet"
    return f"last collective: number {number} ({name}), {'which it has not left' if inside else 'which it has left'}"


def _wrote(one: Shown) -> str:
    return f"rank {one.rank} wrote last:\n{one.wrote}" if one.wrote else ""


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2, 5: `0-2,5`."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def printable(text: str) -> str:
    """The text without what a terminal would carry out."""
    return _NOT_SHOWN.sub("\N{REPLACEMENT CHARACTER}", _CSI.sub("", text.replace("\r\n", "\n")))


def fitted(text: str, bytes_max: int = EVIDENCE_BYTES_MAX) -> str:
    """Its beginning, where JSON would need more bytes for the whole."""
    text = printable(text)
    note = "\n(cut)"
    while len(json.dumps(text)) > bytes_max:
        text = text[: min(len(text) - 1, int(len(text) * bytes_max / len(json.dumps(text))) - len(note))]
        if len(json.dumps(text + note)) <= bytes_max:
            return text + note
    return text


# -- why a rank failed ------------------------------------------------------------------------------------------------


def first_failed(text: str) -> tuple[int, int] | None:
    """The rank that failed first, and its exit code or, below zero, its signal. Several torchruns may write there, each
    with the first of its node.
    """
    found = min(_ROOT_CAUSE.finditer(text), key=lambda one: one["time"], default=None)
    return None if found is None else (int(found["rank"]), int(found["status"]))


def _is_a_launchers(line: str) -> bool:
    return any(one in line for one in _OF_LAUNCHERS)


def cause_line(text: str, rank: int | None = None) -> str:
    """The error that ended the rank; where there is none, the last line. `rank`: of several that wrote there."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [found for line in lines if (found := _ERROR.fullmatch(line)) and not _is_a_launchers(line)]
    of_rank = [one for one in errors if rank is not None and one["rank"] == str(rank)]
    full = next((line for line in lines if _DISK_FULL in line), None)
    if full is not None:
        return full
    of_cpp = [found["words"] for line in lines if (found := _OF_CPP.fullmatch(line))]
    line = (of_rank or errors)[-1].group() if errors else (of_cpp or lines or [""])[-1]
    return f"{line} (perhaps its disk or quota is full)" if any(one in line for one in _CUT_FILE) else line
