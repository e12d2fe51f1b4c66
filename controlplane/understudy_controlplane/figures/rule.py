"""A rule about a setting of Slurm, and its verdict on the value found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from understudy_controlplane.figures.settings import Settings

Version = tuple[int, int]


class Severity(StrEnum):
    DANGER = "danger"  # can end jobs, or return a broken node to service, without anyone's decision
    COST = "cost"  # costs time at each fault
    UNKNOWN = "unknown"  # not printed by this version of Slurm, or unreadable
    GOOD = "good"


Verdict = tuple[Severity, str]
"""Severity and reason."""


@dataclass(frozen=True, slots=True)
class Rule:
    number: int
    setting: str
    wanted: str
    why: str  # in general; the verdict is about the setting found
    judge: Callable[[Settings, Version], Verdict]
    keys: tuple[str, ...]  # settings whose values are shown
