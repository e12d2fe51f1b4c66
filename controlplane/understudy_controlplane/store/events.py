"""The stream of events, read from the tables of what happened."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, FromClause, Row, Select, and_, func, or_, select

from understudy_controlplane.fleet.decision import Because
from understudy_controlplane.fleet.event import Cursor, Event, EventKind, Happened, Position
from understudy_controlplane.fleet.operator import NOTES
from understudy_controlplane.fleet.recovery import StepStatus
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import ID_MAX, reading
from understudy_controlplane.store.recoveries import plan_of

SETTLED_SECONDS = 1.0
"""Rows that several threads write, or that get their time later, are shown after this time. Before it another row with
an earlier time may come.
"""
UNSETTLED_MAX = 1000
"""So many requests at most come within that time."""

_STEPS_MAX = 1000
"""Step numbers that one recovery may use."""

_DECISION, _REQUEST, _INCIDENT = tables.decision, tables.request, tables.incident
_RECOVERY, _STEP, _JOB = tables.recovery, tables.recovery_step, tables.job
_OF_RECOVERY = (_RECOVERY.c.kind, _RECOVERY.c.plan, _JOB.c.job_id)
_STEP_NUMBER = _STEP.c.recovery * _STEPS_MAX + _STEP.c.position


class EventStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def newest(self, now: float) -> Cursor:
        """Behind all that has happened and is shown by now."""
        settled = Position(now - SETTLED_SECONDS, 0)
        found = dict.fromkeys((EventKind.INCIDENT_CLOSED, EventKind.RECOVERY_STEP, EventKind.RECOVERY_ENDED), settled)
        with reading(self._engine) as connection:
            for kind, table in _NUMBERED.items():
                found[kind] = Position(0.0, connection.execute(select(func.max(table.c.id))).scalar() or 0)
            first = max(0, (connection.execute(select(func.max(_REQUEST.c.id))).scalar() or 0) - UNSETTLED_MAX)
            shown = select(func.max(_REQUEST.c.id)).where(_REQUEST.c.id > first, _REQUEST.c.at <= settled.at)
            found[EventKind.REQUEST] = Position(0.0, connection.execute(shown).scalar() or first)
        return Cursor.of(found)

    def after(self, cursor: Cursor, limit: int, now: float) -> list[Happened]:
        """The next events behind this place, in the order of their times."""
        settled = now - SETTLED_SECONDS
        ordered: list[tuple[float, Happened]] = []
        with reading(self._engine) as connection:
            for kind, read in _READ.items():
                found = [_happened(kind, row) for row in _rows(connection, read(cursor.of_kind(kind), settled), limit)]
                # A clock that was set back must not change the order within a kind.
                ordered += zip(accumulate((one.event.at for one in found), max), found, strict=True)
        ordered.sort(key=lambda one: one[0])
        return [one for _, one in ordered[:limit]]


def _rows(connection: Connection, query: Select[Any], limit: int) -> Sequence[Row[Any]]:
    return connection.execute(query.limit(limit)).all()


def _decisions(after: Position, _settled: float) -> Select[Any]:
    query = select(_DECISION, *_OF_RECOVERY).select_from(_with_recovery(_DECISION, _DECISION.c.recovery))
    return query.where(_DECISION.c.id > after.number).order_by(_DECISION.c.id)


def _requests(after: Position, settled: float) -> Select[Any]:
    requested = _REQUEST.c.verb.not_in([verb.value for verb in NOTES])
    return (
        select(_REQUEST)
        .where(_REQUEST.c.id > after.number, _REQUEST.c.at <= settled, requested)
        .order_by(_REQUEST.c.id)
    )


def _opened(after: Position, _settled: float) -> Select[Any]:
    return select(_INCIDENT).where(_INCIDENT.c.id > after.number).order_by(_INCIDENT.c.id)


def _closed(after: Position, settled: float) -> Select[Any]:
    at, number = _INCIDENT.c.closed_at, _INCIDENT.c.id
    return select(_INCIDENT).where(*_between(at, number, after, settled)).order_by(at, number)


def _begun(after: Position, _settled: float) -> Select[Any]:
    query = select(_RECOVERY, _JOB.c.job_id).select_from(_with_job(_RECOVERY))
    return query.where(_RECOVERY.c.id > after.number).order_by(_RECOVERY.c.id)


def _ended(after: Position, settled: float) -> Select[Any]:
    at, number = _RECOVERY.c.ended_at, _RECOVERY.c.id
    query = select(_RECOVERY, _JOB.c.job_id).select_from(_with_job(_RECOVERY))
    return query.where(*_between(at, number, after, settled)).order_by(at, number)


def _steps(after: Position, settled: float) -> Select[Any]:
    at = _STEP.c.done_at
    query = select(_STEP, *_OF_RECOVERY, _STEP_NUMBER.label("step_number"))
    query = query.select_from(_with_recovery(_STEP, _STEP.c.recovery))
    ended = _STEP.c.status.in_([StepStatus.DONE.value, StepStatus.FAILED.value])
    return query.where(*_between(at, _STEP_NUMBER, after, settled), ended).order_by(at, _STEP_NUMBER)


def _between(
    at: ColumnElement[float | None], number: ColumnElement[int], after: Position, settled: float
) -> tuple[ColumnElement[bool], ...]:
    """A place that lies in the future, as after the clock was set back, is now."""
    begin = min(after, Position(settled, ID_MAX))
    return (at >= begin.at, at <= settled, or_(at > begin.at, and_(at == begin.at, number > begin.number)))


def _with_recovery(table: FromClause, recovery: ColumnElement[int]) -> FromClause:
    return table.outerjoin(_RECOVERY, _RECOVERY.c.id == recovery).outerjoin(_JOB, _JOB.c.id == _RECOVERY.c.job)


def _with_job(table: FromClause) -> FromClause:
    return table.outerjoin(_JOB, _JOB.c.id == table.c.job)


_NUMBERED: dict[EventKind, FromClause] = {
    EventKind.DECISION: _DECISION,
    EventKind.INCIDENT_OPENED: _INCIDENT,
    EventKind.RECOVERY_BEGUN: _RECOVERY,
}
_READ: dict[EventKind, Callable[[Position, float], Select[Any]]] = {
    EventKind.REQUEST: _requests,
    EventKind.INCIDENT_CLOSED: _closed,
    EventKind.INCIDENT_OPENED: _opened,
    EventKind.DECISION: _decisions,
    EventKind.RECOVERY_BEGUN: _begun,
    EventKind.RECOVERY_STEP: _steps,
    EventKind.RECOVERY_ENDED: _ended,
}
"""Order in which events of the same time are shown."""


def _happened(kind: EventKind, row: Row[Any]) -> Happened:
    match kind:
        case EventKind.DECISION:
            because = "" if row.because == Because.RULE.value else f" ({row.because})"
            return _numbered(
                Event(
                    kind,
                    row.at,
                    row.id,
                    row.subject,
                    _nodes(row, row.subject),
                    _job(row.subject, row.job_id),
                    f"{row.action}{because}: {row.reason}",
                )
            )
        case EventKind.REQUEST:
            subject = row.subject or "fleet"
            return _numbered(
                Event(kind, row.at, row.id, subject, (subject,), _job(subject), f"{row.verb} by {row.by}: {row.reason}")
            )
        case EventKind.INCIDENT_OPENED | EventKind.INCIDENT_CLOSED:
            return _incident(kind, row)
        case EventKind.RECOVERY_STEP:
            nodes, text = tuple(plan_of(row.kind, row.plan).nodes), f"{row.name} {row.status}"
            detail = f"{text}: {row.detail}" if row.detail else text
            subject = f"recovery {row.recovery}"
            event = Event(kind, row.done_at, row.recovery, subject, nodes, row.job_id, detail)
            return Happened(event, Position(row.done_at, row.step_number))
        case EventKind.RECOVERY_BEGUN | EventKind.RECOVERY_ENDED:
            return _recovery(kind, row)


def _numbered(event: Event) -> Happened:
    return Happened(event, Position(0.0, event.number))


def _incident(kind: EventKind, row: Row[Any]) -> Happened:
    opened = kind is EventKind.INCIDENT_OPENED
    at, text = (
        (row.opened_at, f"{row.rule}: {row.summary}") if opened else (row.closed_at, f"{row.rule}: {row.outcome}")
    )
    event = Event(kind, at, row.id, row.subject, tuple(row.nodes), _job(row.subject), text)
    return _numbered(event) if opened else Happened(event, Position(at, row.id))


def _recovery(kind: EventKind, row: Row[Any]) -> Happened:
    begun = kind is EventKind.RECOVERY_BEGUN
    nodes, subject = tuple(plan_of(row.kind, row.plan).nodes), f"recovery {row.id}"
    if begun:
        proposed = f", awaits approval until {row.approve_by:.0f}" if row.approve_by is not None else ""
        event = Event(kind, row.decided_at, row.id, subject, nodes, row.job_id, f"{row.kind}{proposed}")
        return _numbered(event)
    text = f"{row.kind} {row.status}: {row.outcome}" if row.outcome else f"{row.kind} {row.status}"
    return Happened(Event(kind, row.ended_at, row.id, subject, nodes, row.job_id, text), Position(row.ended_at, row.id))


def _nodes(row: Row[Any], subject: str) -> tuple[str, ...]:
    """Those of its recovery, where it has one."""
    return (subject,) if row.plan is None else tuple(dict.fromkeys((subject, *plan_of(row.kind, row.plan).nodes)))


def _job(subject: str, known: int | None = None) -> int | None:
    """Slurm's id, of a subject such as "job 7" or "cluster/7@1700000000"."""
    if known is not None:
        return known
    first, _, last = subject.partition(" ")
    if first == "job" and last.isdecimal():
        return int(last)
    of_gang = subject.rpartition("/")[2].partition("@")
    return int(of_gang[0]) if of_gang[1] and of_gang[0].isdecimal() else None
