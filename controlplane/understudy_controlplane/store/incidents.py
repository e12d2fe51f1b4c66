"""Incidents and their findings."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, bindparam, insert, select, update

from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.finding import ACCUSING, Detail, Finding, HardwareDetail
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Store, insert_new, reading
from understudy_controlplane.xid_policy import Repair

_INCIDENT, _FINDING = tables.incident, tables.incident_finding
_IS_OPEN = _INCIDENT.c.closed_at.is_(None)
_OPEN = select(_INCIDENT).where(_IS_OPEN).order_by(_INCIDENT.c.id.desc())
_ACCUSATIONS = (
    select(_FINDING.c.incident, _FINDING.c.rule, _FINDING.c.detail)
    .join(_INCIDENT, _FINDING.c.incident == _INCIDENT.c.id)
    .where(_IS_OPEN, _FINDING.c.signal.in_([signal.value for signal in ACCUSING]))
    .order_by(_FINDING.c.id)
)


class IncidentStore(Store):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._written: Collection[tuple[int, str, str]] = ()

    def open_incidents(self) -> dict[Subject, OpenIncident]:
        """The oldest of each subject."""
        asked: dict[int, tuple[Repair, ...]] = {}
        accused_by: dict[int, tuple[str, ...]] = {}
        with reading(self._engine) as connection:
            rows = connection.execute(_OPEN).all()
            for row in connection.execute(_ACCUSATIONS) if rows else ():
                accused_by[row.incident] = (*accused_by.get(row.incident, ()), row.rule)
                detail = _detail(row.detail)
                if isinstance(detail, HardwareDetail) and detail.repair is not None:
                    asked[row.incident] = (*asked.get(row.incident, ()), detail.repair)
        found = [_incident(row, asked.get(row.id, ()), accused_by.get(row.id, ())) for row in rows]
        return {one.subject: one for one in found}

    def close(self, over: Iterable[tuple[int, str]], now: float) -> None:
        """`over`: ids of incidents, and what became of each."""
        table = tables.incident
        rows = [{"this": incident, "outcome": outcome, "closed_at": now} for incident, outcome in over]
        if rows:
            query = update(table).where(table.c.id == bindparam("this"), table.c.closed_at.is_(None))
            self._write(query.values(closed_at=bindparam("closed_at"), outcome=bindparam("outcome")), rows)

    def add_evidence(self, found: Sequence[tuple[int, Finding]]) -> None:
        """More findings on subjects with an open incident. A rule has a row for each repair that it has asked for."""
        rows = [
            {
                "incident": incident,
                "rule": finding.rule,
                "repair": _repair(finding),
                "summary": finding.summary,
                "signal": finding.signal.value,
                "evidence": finding.evidence.shown(),
                "detail": msgspec.to_builtins(finding.detail),
                "at": finding.at,
            }
            for incident, finding in found
            if (incident, finding.rule, _repair(finding)) not in self._written
        ]
        if rows:
            with self._engine.begin() as connection:
                insert_new(connection, tables.incident_finding, rows)
        self._written = {(incident, finding.rule, _repair(finding)) for incident, finding in found}


def _repair(finding: Finding) -> str:
    detail = finding.detail
    return detail.repair.value if isinstance(detail, HardwareDetail) and detail.repair is not None else ""


def _detail(stored: Any) -> Detail | None:
    detail: Detail | None = msgspec.convert(stored, Detail | None)
    return detail


def _incident(row: Row[Any], asked: tuple[Repair, ...], accused_by: tuple[str, ...]) -> OpenIncident:
    return OpenIncident(
        id=row.id,
        subject=Subject.stored(row.subject_kind, row.subject, row.rule),
        rule=row.rule,
        signal=row.signal,
        summary=row.summary,
        opened_at=row.opened_at,
        fault_at=row.fault_at,
        detail=_detail(row.detail),
        asked=asked,
        accused_by=(row.rule, *accused_by),
        nodes=tuple(row.nodes),
    )


_OPEN_SUBJECTS = (
    select(tables.incident.c.subject_kind, tables.incident.c.subject, tables.incident.c.rule, tables.incident.c.id)
    .where(tables.incident.c.closed_at.is_(None))
    .order_by(tables.incident.c.id.desc())
)


def open_by_subject(connection: Connection) -> dict[Subject, int]:
    """All of them: a round may be about more subjects than a query takes parameters. The oldest of several."""
    rows = connection.execute(_OPEN_SUBJECTS)
    return {Subject.stored(kind, name, rule): number for kind, name, rule, number in rows}


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
