"""What users, nodes and strangers wrote, made harmless for a terminal. Pure."""

from __future__ import annotations


def without_controls(text: str) -> str:
    """Each character that is not printed, but for the end of a line, becomes a space: none moves a cursor, rings, or
    changes the direction of text.
    """
    return text if text.isprintable() else "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def whole_words(text: str, most: int) -> str:
    """Text of at most `most` characters; a longer one ends with an ellipsis, after a whole word where that leaves half
    of it.
    """
    if len(text) <= most:
        return text
    kept = text[: most - 1]
    end = most - 1 if text[most - 1] == " " else kept.rfind(" ")
    return f"{kept[:end] if 2 * end >= most else kept}…"


def one_line(text: str) -> str:
    """Text without controls (`without_controls`) on one line."""
    return without_controls(text).replace("\n", " ")
