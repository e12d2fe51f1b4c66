"""The audit. An entry is written in the transaction of the change that it describes, and never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, insert, select

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import StoreError, reading

log = structlog.get_logger()

PAGE = 1000
OVERLAP = 100
"""Entries that are looked for again: on PostgreSQL one with a lower id may be committed later."""


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
    """Writes entries that belong to no change in the database."""

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


def followed(engine: Engine, since: float, goes_on: Callable[[], bool]) -> Iterator[dict[str, Any]]:
    """Each entry once, while `goes_on()`, which waits for further ones. Raises StoreError only before the first entry:
    later the database may be away.
    """
    found: set[int] = set()
    while True:
        last = max(found, default=0)
        found = {number for number in found if number > last - OVERLAP}
        try:
            for entry in entries(engine, since, last - OVERLAP):
                if entry["id"] not in found:
                    found.add(entry["id"])
                    yield entry
        except StoreError as error:
            if not last:
                raise
            log.warning("audit_not_read", error=type(error).__name__)
        if not goes_on():
            return
