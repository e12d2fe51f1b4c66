"""How the database answers each statement, and which of them read a whole table that grows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event

from understudy_controlplane.store import tables

BOUNDED = {"alembic_version", "barred_node", "holder", "node", "suspicion", "token", "waiting_fact"}
"""As large as the fleet, or held by a limit of their own."""

GROWING = {table.name for table in tables.metadata.sorted_tables} - BOUNDED

Statements = dict[str, Any]
"""Each text, and values that it was executed with."""


@contextmanager
def captured(*engines: Engine) -> Iterator[Statements]:
    """What is asked of these databases meanwhile."""
    made: Statements = {}

    def note(_connection: object, _cursor: object, text: str, values: object, _context: object, many: bool) -> None:
        made.setdefault(text, values[0] if many and isinstance(values, list) else values)

    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)


def whole_tables_read(engine: Engine, statements: Statements) -> dict[str, str]:
    """Statement → the tables that grow and that SQLite reads from end to end for it."""
    found = {}
    with engine.connect() as connection:
        for text, values in statements.items():
            if re.match(r"\s*(SELECT|UPDATE|DELETE|INSERT|WITH)", text, re.IGNORECASE):
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values).all()
                scanned = {name for row in plan if (name := _scanned(row.detail, text)) in GROWING}
                if scanned:
                    found[text] = ", ".join(sorted(name for name in scanned if name))
    return found


def _scanned(step: str, text: str) -> str | None:
    """The table of a step such as "SCAN d USING INDEX x"; an alias is resolved."""
    match = re.match(r"SCAN (\S+)", step)
    if match is None:
        return None
    name = match[1]
    alias = re.search(rf"\b(\w+) AS {re.escape(name)}\b", text)
    return alias[1] if alias else name
