"""Nodes that gangs waited for when they hung."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_controlplane.fleet.recovery import HungNode


@dataclass(frozen=True, slots=True)
class Hung:
    at: float
    job: JobKey
    attempt: Attempt
    there: HungNode
