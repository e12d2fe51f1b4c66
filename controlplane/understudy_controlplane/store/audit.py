"""The audit. An entry is written in the transaction of the change that it describes, and never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, Engine, insert, select

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import reading

PAGE = 1000


def append(connection: Connection, entry: AuditEntry) -> None:
    values = {
        "at": entry.at,
        "who": entry.who,
        "role": entry.role,
        "address": entry.address,
        "action": entry.action,
        "subject": entry.subject,
        "reason": entry.reason,
        "before": dict(entry.before),
        "after": dict(entry.after),
    }
    connection.execute(insert(tables.audit), [values])


class AuditStore:
    """For entries that belong to no change in the database."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def add(self, found: Iterable[AuditEntry]) -> None:
        with self._engine.begin() as connection:
            for entry in found:
                append(connection, entry)


def entries(engine: Engine, since: float, after: int = 0) -> Iterator[dict[str, Any]]:
    """Those whose id is above `after`, oldest first, a page in memory at a time."""
    table, last = tables.audit, after
    while True:
        query = select(table).where(table.c.id > last, table.c.at >= since).order_by(table.c.id).limit(PAGE)
        with reading(engine) as connection:
            rows = connection.execute(query).mappings().all()
        yield from (dict(row) for row in rows)
        if len(rows) < PAGE:
            return
        last = rows[-1]["id"]
