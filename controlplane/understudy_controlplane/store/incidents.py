"""Incidents and their findings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, bindparam, insert, select, update

from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.finding import ACCUSING, Detail, Finding, HardwareDetail
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.subject import Subject, SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import insert_new, reading
from understudy_controlplane.xid_policy import Repair


class IncidentStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_incidents(self) -> dict[Subject, OpenIncident]:
        """The oldest of each subject."""
        table, later = tables.incident, tables.incident_finding
        query = select(table).where(table.c.closed_at.is_(None)).order_by(table.c.id.desc())
        more = select(later.c.incident, later.c.detail).join(table, later.c.incident == table.c.id)
        more = more.where(table.c.closed_at.is_(None), later.c.signal.in_([signal.value for signal in ACCUSING]))
        asked: dict[int, tuple[Repair, ...]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(more.order_by(later.c.id)):
                detail = _detail(row.detail)
                if isinstance(detail, HardwareDetail) and detail.repair is not None:
                    asked[row.incident] = (*asked.get(row.incident, ()), detail.repair)
            found = [_incident(row, asked.get(row.id, ())) for row in connection.execute(query)]
        return {one.subject: one for one in found}

    def close(self, over: Iterable[tuple[int, str]], now: float) -> None:
        """`over`: ids of incidents, and what became of each."""
        table = tables.incident
        rows = [{"this": incident, "outcome": outcome, "closed_at": now} for incident, outcome in over]
        if rows:
            query = update(table).where(table.c.id == bindparam("this"), table.c.closed_at.is_(None))
            with self._engine.begin() as connection:
                connection.execute(query.values(closed_at=bindparam("closed_at"), outcome=bindparam("outcome")), rows)

    def add_evidence(self, found: Iterable[tuple[int, Finding]]) -> None:
        """More findings on subjects with an open incident, each rule once."""
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


def _detail(stored: Any) -> Detail | None:
    detail: Detail | None = msgspec.convert(stored, Detail | None)
    return detail


def _incident(row: Row[Any], asked: tuple[Repair, ...]) -> OpenIncident:
    return OpenIncident(
        id=row.id,
        subject=Subject(SubjectKind(row.subject_kind), row.subject),
        rule=row.rule,
        signal=row.signal,
        summary=row.summary,
        opened_at=row.opened_at,
        detail=_detail(row.detail),
        asked=asked,
        nodes=tuple(row.nodes),
    )


def open_by_subject(connection: Connection) -> dict[Subject, int]:
    """All of them: a round may be about more subjects than a query takes parameters. The oldest of several."""
    table = tables.incident
    query = select(table.c.subject_kind, table.c.subject, table.c.id).where(table.c.closed_at.is_(None))
    rows = connection.execute(query.order_by(table.c.id.desc()))
    return {Subject(SubjectKind(kind), name): number for kind, name, number in rows}


def open_incident(
    connection: Connection, decision: Decision, now: float, open_incidents: dict[Subject, int]
) -> int | None:
    """The incident that the decision belongs to; one that is opened here is added to `open_incidents`."""
    finding = decision.finding
    subject = finding.subject if finding is not None else Subject.of_node(decision.subject)
    known = open_incidents.get(subject)
    if known is not None or not decision.opens_incident or finding is None:
        return known
    table = tables.incident
    values = {
        "subject_kind": subject.kind.value,
        "subject": subject.name,
        "nodes": list(finding.concerned),
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
    open_incidents[subject] = new
    _count_fault(connection, finding)
    return new


def _count_fault(connection: Connection, finding: Finding) -> None:
    """Of the GPU that the finding names."""
    gpu = tables.gpu_seen
    part = finding.detail if isinstance(finding.detail, HardwareDetail) else HardwareDetail()
    this = gpu.c.uuid == part.uuid if part.uuid else gpu.c.bus_id == part.part
    if part.uuid or part.part:
        connection.execute(update(gpu).where(gpu.c.node == finding.node, this).values(faults=gpu.c.faults + 1))


def end_incident(
    connection: Connection, subject: Subject, outcome: str, now: float, open_incidents: dict[Subject, int]
) -> None:
    """Removes it from `open_incidents`, for the decisions that come after."""
    table = tables.incident
    open_incidents.pop(subject, None)
    this = (table.c.subject_kind == subject.kind.value, table.c.subject == subject.name, table.c.closed_at.is_(None))
    connection.execute(update(table).where(*this).values(closed_at=now, outcome=outcome))
