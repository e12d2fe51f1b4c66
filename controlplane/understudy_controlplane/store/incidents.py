"""Incidents and their findings."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import Connection, Engine, insert, select, update

from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.finding import Finding, HardwareDetail
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import insert_new, reading


class IncidentStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_incidents(self) -> dict[str, int]:
        """Node → id of its open incident."""
        table = tables.incident
        query = select(table.c.node, table.c.id).where(table.c.closed_at.is_(None)).order_by(table.c.id)
        with reading(self._engine) as connection:
            return {row.node: row.id for row in connection.execute(query)}

    def close_incidents(self, incidents: Iterable[int], outcome: str, now: float) -> None:
        table = tables.incident
        ids = list(incidents)
        if ids:
            with self._engine.begin() as connection:
                connection.execute(
                    update(table)
                    .where(table.c.id.in_(ids), table.c.closed_at.is_(None))
                    .values(closed_at=now, outcome=outcome)
                )

    def add_evidence(self, found: Iterable[tuple[int, Finding]]) -> None:
        """More findings on nodes with an open incident; each rule counts once an incident."""
        rows = [
            {
                "incident": incident,
                "rule": finding.rule,
                "summary": finding.summary,
                "signal": finding.signal.value,
                "evidence": finding.evidence.shown(),
                "detail": msgspec.to_builtins(finding.detail),
                "at": finding.at,
            }
            for incident, finding in found
        ]
        if rows:
            with self._engine.begin() as connection:
                insert_new(connection, tables.incident_finding, rows)


def open_by_node(connection: Connection) -> dict[str, int]:
    """By node, whole: a round may be about more nodes than a query takes parameters. The oldest of several."""
    table = tables.incident
    query = select(table.c.node, table.c.id).where(table.c.closed_at.is_(None))
    return {row.node: row.id for row in connection.execute(query.order_by(table.c.id.desc()))}


def open_incident(connection: Connection, decision: Decision, now: float, open_incidents: dict[str, int]) -> int | None:
    """`open_incidents` gets the one that is opened here."""
    finding = decision.finding
    table = tables.incident
    known = open_incidents.get(decision.subject)
    if known is not None or not decision.opens_incident or finding is None:
        return known
    values = {
        "node": finding.node,
        "rule": finding.rule,
        "signal": finding.signal.value,
        "summary": finding.summary,
        "evidence": finding.evidence.shown(),
        "detail": msgspec.to_builtins(finding.detail),
        "fault_at": finding.at,
        "opened_at": now,
        "outcome": "",
    }
    new: int = connection.execute(insert(table).values(**values).returning(table.c.id)).scalar_one()
    open_incidents.setdefault(finding.node, new)
    gpu = tables.gpu_seen
    part = finding.detail if isinstance(finding.detail, HardwareDetail) else HardwareDetail()
    this = gpu.c.uuid == part.uuid if part.uuid else gpu.c.bus_id == part.part
    if part.uuid or part.part:
        connection.execute(update(gpu).where(gpu.c.node == finding.node, this).values(faults=gpu.c.faults + 1))
    return new


def end_incident(connection: Connection, decision: Decision, now: float, open_incidents: dict[str, int]) -> None:
    """Keeps `open_incidents` true for the decisions that come after."""
    table = tables.incident
    open_incidents.pop(decision.subject, None)
    connection.execute(
        update(table)
        .where(table.c.node == decision.subject, table.c.closed_at.is_(None))
        .values(closed_at=now, outcome=decision.reason)
    )
