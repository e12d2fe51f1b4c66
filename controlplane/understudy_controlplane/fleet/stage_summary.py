"""How many nodes have a result of a stage of their validation, and how long it took them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from understudy_wire.stages import StageName, StageResult, StageStatus


@dataclass(frozen=True, slots=True)
class StageSummary:
    nodes: int
    seconds: float  # of all of them together


def summary(results: Iterable[StageResult]) -> dict[tuple[StageName, StageStatus], StageSummary]:
    """`results`: the last ones of each node."""
    found: dict[tuple[StageName, StageStatus], StageSummary] = {}
    for one in results:
        so_far = found.get((one.stage, one.status), StageSummary(0, 0.0))
        found[one.stage, one.status] = StageSummary(so_far.nodes + 1, so_far.seconds + one.seconds)
    return found
