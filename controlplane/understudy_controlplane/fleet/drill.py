"""A drill: an Xid that an operator injects into what is known of a node's kernel log."""

from __future__ import annotations

import re
from dataclasses import dataclass

MARK = "understudy drill of"

WORDS = "DRILL: "
"""What is found because of a drill has it in its summary, and with it whatever follows."""

_LINE = re.compile(rf"NVRM: Xid \(PCI:[^)]*\): \d+, {MARK} ")
"""The driver writes names of processes into its lines, but never at this place."""


def is_drill(text: str) -> bool:
    return MARK in text and _LINE.match(text) is not None


@dataclass(frozen=True, slots=True)
class Drill:
    """One that has not ended: while it goes on, its line counts as one of the driver."""

    request: int
    node: str
    reason: str
    by: str
    at: float
    until: float
