"""What users, nodes and strangers wrote, made harmless for a terminal. Pure."""

from __future__ import annotations


def without_controls(text: str) -> str:
    """Each character that is not printed, but for the end of a line, becomes a space: none moves a cursor, rings, or
    changes the direction of text.
    """
    return text if text.isprintable() else "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def one_line(text: str) -> str:
    """Text without controls (`without_controls`) on one line."""
    return without_controls(text).replace("\n", " ")
