"""Results of the stages of validations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from sqlalchemy import Engine, bindparam, func, select

from understudy_agent.stages import StageName, StageResult, StageStatus
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import insert_new, reading

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


class StageStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

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
        """Of the last results of nodes that passed; None: too few to compare with."""
        values = [
            one.result.value
            for one in self.newest(*nodes)
            if one.result.stage is stage and one.result.status is StageStatus.PASSED and one.result.value is not None
        ]
        return median(values) if len(values) >= NODES_MIN else None

    def newest(self, *nodes: str) -> list[KeptResult]:
        """The last result of each stage of these nodes."""
        query = select(_STAGE).where(_STAGE.c.id.in_(_NEWEST)).order_by(_STAGE.c.node, _STAGE.c.id)
        with reading(self._engine) as connection:
            return [
                KeptResult(
                    row.node,
                    row.recovery,
                    row.at,
                    StageResult(
                        StageName(row.stage), StageStatus(row.status), row.value, row.pass_mark, row.seconds, row.why
                    ),
                )
                for row in connection.execute(query, {"nodes": nodes})
            ]
