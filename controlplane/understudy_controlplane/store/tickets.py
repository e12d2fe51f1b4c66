"""Tickets: nodes that need a person, with what the person needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, select, update

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.recovery import REPAIR_KINDS
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import ID_MAX, insert_new, reading

_OPEN = select(tables.ticket.c.opened_at).where(tables.ticket.c.closed_at.is_(None))


class TicketStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_ticket(self, label: str, node: str, body: Mapping[str, Json], now: float, *, closed: bool = False) -> None:
        """Once, however often. `closed`: nothing is waited for."""
        row = {"label": label, "node": node, "opened_at": now, "body": dict(body), "closed_at": now if closed else None}
        with self._engine.begin() as connection:
            insert_new(connection, tables.ticket, [row])

    def is_ticket(self, label: str) -> bool:
        table = tables.ticket
        with reading(self._engine) as connection:
            return connection.execute(select(table.c.id).where(table.c.label == label)).first() is not None

    def unanswered(self, after: int) -> dict[str, Any] | None:
        """The oldest with a number above `after` for which the provider is to be asked, and that has no answer."""
        table = tables.ticket
        of_provider = [table.c.body["provider", name].as_string() for name in ("asked", "ticket", "error")]
        waits = (table.c.id > after, of_provider[0].is_not(None), of_provider[1].is_(None), of_provider[2].is_(None))
        with reading(self._engine) as connection:
            row = connection.execute(select(table).where(*waits).order_by(table.c.id).limit(1)).mappings().first()
        return dict(row) if row is not None else None

    def answer(self, number: int, of_provider: Json) -> None:
        """What the provider has answered, or why it was not asked, becomes part of the ticket."""
        table = tables.ticket
        this = table.c.id == number
        with self._engine.begin() as connection:
            body = connection.execute(select(table.c.body).where(this)).scalar_one_or_none()
            if body is not None:
                connection.execute(update(table).where(this).values(body={**body, "provider": of_provider}))

    def open_tickets(self) -> tuple[float, ...]:
        """When each was opened."""
        with reading(self._engine) as connection:
            return tuple(row.opened_at for row in connection.execute(_OPEN))

    def tickets(
        self,
        limit: int,
        before: int = ID_MAX,
        *,
        is_open: bool | None = None,
        number: int | None = None,
        node: str | None = None,
    ) -> list[dict[str, Any]]:
        """Newest first."""
        table = tables.ticket
        query = select(table).where(table.c.id < before)
        if is_open is not None:
            query = query.where(table.c.closed_at.is_(None) if is_open else table.c.closed_at.is_not(None))
        if number is not None:
            query = query.where(table.c.id == number)
        if node is not None:
            query = query.where(table.c.node == node)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(table.c.id.desc()).limit(limit)).mappings()
            return [dict(row) for row in rows]

    def history(self, node: str) -> dict[str, Any]:
        """What a person needs who is to look after the node: its open incident, what was found, tried and seen."""
        incident, found, decision = tables.incident, tables.incident_finding, tables.decision
        is_open = (incident.c.closed_at.is_(None), incident.c.subject_kind == SubjectKind.NODE.value)
        with reading(self._engine) as connection:
            query = select(incident).where(*is_open, incident.c.subject == node)
            query = query.order_by(incident.c.id.desc()).limit(1)
            last = connection.execute(query).mappings().first()
            findings = (
                connection.execute(
                    select(found.c.rule, found.c.signal, found.c.summary, found.c.evidence, found.c.at)
                    .where(found.c.incident == last["id"])
                    .order_by(found.c.id)
                )
                .mappings()
                .all()
                if last
                else []
            )
            decided = (
                connection.execute(
                    select(
                        decision.c.at, decision.c.table_row, decision.c.action, decision.c.reason, decision.c.evidence
                    )
                    .where(decision.c.subject == node)
                    .order_by(decision.c.id.desc())
                    .limit(20)
                )
                .mappings()
                .all()
            )
            events = (
                connection.execute(
                    select(tables.kernel_event.c.at, tables.kernel_event.c.boot_id, tables.kernel_event.c.text)
                    .where(tables.kernel_event.c.node == node)
                    .order_by(tables.kernel_event.c.id.desc())
                    .limit(50)
                )
                .mappings()
                .all()
            )
            recovery, step = tables.recovery, tables.recovery_step
            steps = (
                connection.execute(
                    select(recovery.c.id, recovery.c.kind, step.c.name, step.c.status, step.c.detail, step.c.done_at)
                    .join(step, step.c.recovery == recovery.c.id)
                    .join(decision, decision.c.recovery == recovery.c.id)
                    .where(decision.c.subject == node, recovery.c.kind.in_([kind.value for kind in REPAIR_KINDS]))
                    .order_by(recovery.c.id.desc(), step.c.position)
                    .limit(40)
                )
                .mappings()
                .all()
            )
        return {
            "incident": {key: last[key] for key in ("rule", "summary", "evidence", "fault_at")} if last else None,
            "findings": [dict(row) for row in findings],
            "decisions": [dict(row) for row in reversed(decided)],
            "kernel_log": [dict(row) for row in reversed(events)],
            "steps": [dict(row) for row in steps],
        }


def acknowledge(number: int, connection: Connection, entry: AuditEntry) -> bool:
    """False: there is no such open ticket."""
    return _answer(number, connection, {"acknowledged_at": entry.at, "acknowledged_by": entry.who})


def close(number: int, connection: Connection, entry: AuditEntry) -> bool:
    """Its node stays what it is. See `acknowledge`."""
    return _answer(number, connection, {"closed_at": entry.at})


def close_of_node(connection: Connection, node: str, now: float) -> None:
    table = tables.ticket
    connection.execute(update(table).where(table.c.node == node, table.c.closed_at.is_(None)).values(closed_at=now))


def _answer(number: int, connection: Connection, values: Mapping[str, Any]) -> bool:
    table = tables.ticket
    is_open = (table.c.id == number, table.c.closed_at.is_(None))
    return bool(connection.execute(update(table).where(*is_open).values(**values)).rowcount)
