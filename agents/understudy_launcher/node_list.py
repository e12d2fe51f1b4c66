"""Numbers, and lists of nodes, as people read them. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

REASONS_MAX = 8
_NUMBERED = re.compile(r"(.*?)([0-9]{1,9})", re.DOTALL)


def counted(count: int, one: str, many: str = "") -> str:
    """1 node, 2 nodes. `many`: where it is not `one` with an s, such as ("node is", "nodes are")."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def fold(names: Sequence[str]) -> str:
    """These names in this order: `n1,n2,n3,n7` is `n[1-3,7]`. For 12,500 nodes 10 characters instead of 75,000."""
    parts = []
    for (prefix, _zeros), group in itertools.groupby(map(_split, names), key=_kind):
        numbers = [number for _, number in group]
        if not numbers[0]:
            parts += [prefix] * len(numbers)
        elif len(numbers) == 1:
            parts.append(prefix + numbers[0])
        else:
            parts.append(f"{prefix}[{','.join(_ranges(numbers))}]")
    return ",".join(parts)


def by_reason(reasons: Mapping[str, str]) -> str:
    """Node → reason, for a message: `n[1-3]: its slurmd is dead; n7: a verdict`. Of more than eight reasons, which
    differ by a figure only, the first ones.
    """
    nodes: dict[str, list[str]] = {}
    for node, why in reasons.items():
        nodes.setdefault(why, []).append(node)
    parts = [f"{fold(having)}: {why}" for why, having in nodes.items()]
    more = sum(map(len, list(nodes.values())[REASONS_MAX:]))
    return "; ".join([*parts[:REASONS_MAX], *([f"and {counted(more, 'more node')}"] if more else [])])


def _split(name: str) -> tuple[str, str]:
    """Prefix and last number; no number where the name does not end with one."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def _kind(split: tuple[str, str]) -> tuple[str, int]:
    """Slurm gives each number of a range at least as many digits as its first one has."""
    prefix, number = split
    return prefix, len(number) if number[:1] in {"0", ""} else -1


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    first = last = numbers[0]
    for number in [*numbers[1:], ""]:
        if number and int(number) == int(last) + 1:
            last = number
            continue
        yield first if first == last else f"{first}-{last}"
        first = last = number
