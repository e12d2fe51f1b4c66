"""Text of users, operators and logs made harmless for chat, mail and pagers. Pure."""

from __future__ import annotations

import unicodedata

LINE_CHARACTERS_MAX = 300

LOOK_ALIKES = str.maketrans("<>[]*`@|~\\", "\u2039\u203a()\u00b7'\uff20\u00a6\u223c\u2216")
"""Characters that begin markup, links or mentions somewhere, and what is shown instead."""


def plain(text: str) -> str:
    """One line without markup: a job's name cannot begin a line, a link or a mention of its own."""
    line = " ".join("".join(one if _is_shown(one) else " " for one in text).split())
    harmless = line.translate(LOOK_ALIKES).replace("://", ":\u2215\u2215")
    if len(harmless) <= LINE_CHARACTERS_MAX:
        return harmless
    kept = harmless[: LINE_CHARACTERS_MAX - 1]
    return f"{kept.rpartition(' ')[0] or kept}…"


def _is_shown(character: str) -> bool:
    """Not: control characters, and those that change the direction of text or are not seen."""
    return unicodedata.category(character) not in ("Cc", "Cf", "Co", "Cs", "Zl", "Zp")


def plain_lines(text: str, at_most: int) -> list[str]:
    """`text` is the control plane's own; each of its lines may contain what others wrote."""
    return [line for one in text.split("\n")[:at_most] if (line := plain(one))]
