"""Numbers with their nouns, as people read them. Pure."""

from __future__ import annotations


def counted(count: int, one: str, many: str = "") -> str:
    """1 node, 2 nodes. `many`: where it is not `one` with an s, such as ("node is", "nodes are")."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
