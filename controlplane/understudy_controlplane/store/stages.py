"""Results of the stages of validations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from sqlalchemy import Row, bindparam, func, select

from understudy_controlplane.store import tables
from understudy_controlplane.store.database import ID_MAX, Store, insert_new
from understudy_wire.stages import StageName, StageResult, StageStatus

_STAGE = tables.stage_result
_NEWEST = (
    select(func.max(_STAGE.c.id))
    .where(_STAGE.c.node.in_(bindparam("nodes", expanding=True)))
    .group_by(_STAGE.c.node, _STAGE.c.stage)
)

NODES_MIN = 8
"""Fewer nodes have no distribution."""


@dataclass(frozen=True, slots=True)
class KeptResult:
    node: str
    recovery: int
    at: float
    result: StageResult
    id: int = 0


class StageStore(Store):
    def record(self, recovery: int, node: str, results: Sequence[StageResult], now: float) -> None:
        """Once, however often."""
        rows = [
            {
                "recovery": recovery,
                "node": node,
                "stage": one.stage.value,
                "status": one.status.value,
                "value": one.value,
                "pass_mark": one.pass_mark,
                "seconds": one.seconds,
                "why": one.why,
                "at": now,
            }
            for one in results
        ]
        with self._engine.begin() as connection:
            insert_new(connection, _STAGE, rows)

    def median(self, stage: StageName, nodes: Iterable[str]) -> float | None:
        """Median of the last results of nodes that passed; None: too few to compare with."""
        values = [
            one.result.value
            for one in self.newest(*nodes)
            if one.result.stage is stage and one.result.status is StageStatus.PASSED and one.result.value is not None
        ]
        return median(values) if len(values) >= NODES_MIN else None

    def newest(self, *nodes: str) -> list[KeptResult]:
        """The last result of each stage of these nodes."""
        query = select(_STAGE).where(_STAGE.c.id.in_(_NEWEST)).order_by(_STAGE.c.node, _STAGE.c.id)
        return [_kept(row) for row in self._rows(query, {"nodes": nodes})]

    def history(
        self, limit: int, before: int = ID_MAX, node: str | None = None, stage: StageName | None = None
    ) -> list[KeptResult]:
        """All that were ever measured, newest first, as long as their validations are kept."""
        query = select(_STAGE).where(_STAGE.c.id < before)
        if node is not None:
            query = query.where(_STAGE.c.node == node)
        if stage is not None:
            query = query.where(_STAGE.c.stage == stage.value)
        return [_kept(row) for row in self._rows(query.order_by(_STAGE.c.id.desc()).limit(limit))]


def _kept(row: Row[Any]) -> KeptResult:
    status = StageStatus(row.status)
    result = StageResult(StageName(row.stage), status, row.value, row.pass_mark, row.seconds, row.why)
    return KeptResult(row.node, row.recovery, row.at, result, row.id)
