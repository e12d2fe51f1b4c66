"""Numbers with their nouns, as people read them. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, one: str, many: str = "") -> str:
    """1 node, 2 nodes. `many`: where it is not `one` with an s, such as ("node is", "nodes are")."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def listed(names: Sequence[str], most: int = 3) -> str:
    """ "n1, n2, n3 and 4 more"."""
    return f"{', '.join(names[:most])}{f' and {len(names) - most} more' if len(names) > most else ''}"
