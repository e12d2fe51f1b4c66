"""Slurm's host lists: `gpu-a[01-03,7]-ib[0-1],login` to names and back. Pure.

The grammar is that of hostlist(3) in Slurm: names separated by commas, each with any number of bracketed sets of
numbers and ranges; a range keeps the width of its lower bound.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

HOSTS_MAX = 65_536  # Slurm's own limit for one range (MAX_RANGE)
NAME_CHARACTERS_MAX = 255

NO_HOSTS = ("", "(null)", "None")
"""What Slurm prints where there is no host: the whole text, never a part of it."""

_PIECE = re.compile(r"[^\[\],]+|\[[^\[\]]*\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


class HostListError(ValueError):
    """Not a host list."""


def expand(text: str, characters_max: int = HOSTS_MAX * NAME_CHARACTERS_MAX) -> tuple[str, ...]:
    """The names in the order written; none for "" and Slurm's "(null)". `characters_max`: of all names together."""
    if text in NO_HOSTS:
        return ()
    names: list[str] = []
    left = characters_max
    for part in _parts(text):
        pieces: list[list[str]] = []
        number, characters = 1, 0
        for piece in _PIECE.finditer(part):  # a short text can name more than any memory holds: each piece is counted
            pieces.append(_alternatives(piece[0], text))
            number *= len(pieces[-1])
            characters += max(map(len, pieces[-1]))
            if len(names) + number > HOSTS_MAX:
                raise HostListError(f"host list names more than {HOSTS_MAX} hosts: {text[:80]!r}")
            if characters > NAME_CHARACTERS_MAX:
                raise HostListError(f"a name has more than {NAME_CHARACTERS_MAX} characters in host list {text[:80]!r}")
        left -= number * characters
        if left < 0:
            raise HostListError(f"the names have more than {characters_max} characters in host list {text[:80]!r}")
        names.extend("".join(choice) for choice in itertools.product(*pieces))
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """A host list of exactly these names, each once, sorted; ranges over their last number."""
    numbered: dict[tuple[str, int], set[int]] = {}
    plain: set[str] = set()
    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None or len(match[2]) > 9:  # a serial number: nothing that comes in ranges
            plain.add(name)
        else:
            numbered.setdefault((match[1], len(match[2])), set()).add(int(match[2]))
    parts = [_ranges(prefix, width, sorted(numbers)) for (prefix, width), numbers in sorted(numbered.items())]
    return ",".join([*sorted(plain), *parts])


def _parts(text: str) -> Iterator[str]:
    """Split at the commas outside brackets."""
    depth = start = 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            yield _checked(text[start:position], text)
            start = position + 1
        if depth not in (0, 1):
            break
    if depth != 0:
        raise HostListError(f"brackets do not match in host list {text[:80]!r}")
    yield _checked(text[start:], text)


def _checked(part: str, text: str) -> str:
    if part.split() != [part]:
        raise HostListError(f"empty name or blank in host list {text[:80]!r}")
    if part in NO_HOSTS:
        raise HostListError(f"{part!r}, which names no host, beside others in host list {text[:80]!r}")
    return part


def _alternatives(piece: str, text: str) -> list[str]:
    if not piece.startswith("["):
        return [piece]
    found: list[str] = []
    for item in piece[1:-1].split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise HostListError(f"{item!r} is no range in host list {text[:80]!r}")
        low, high = int(match[1]), int(match[2] or match[1])
        if not low <= high < low + HOSTS_MAX - len(found):
            raise HostListError(f"range {item!r} runs backwards or is too long in host list {text[:80]!r}")
        found.extend(str(number).zfill(len(match[1])) for number in range(low, high + 1))
    return found


def _ranges(prefix: str, width: int, numbers: list[int]) -> str:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    spelled = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in runs]
    if len(numbers) == 1:
        return prefix + spelled[0]
    return f"{prefix}[{','.join(spelled)}]"
