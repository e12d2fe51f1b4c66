"""How the database answers each statement, and which of them read a whole table that grows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Connection, Engine, event

from understudy_controlplane.store import tables

BOUNDED = {"alembic_version", "barred_node", "holder", "node", "suspicion", "token", "waiting_fact"}
"""Tables as large as the fleet, or held by a limit of their own."""

GROWING = {table.name for table in tables.metadata.sorted_tables} - BOUNDED

Statements = dict[str, list[Any]]
"""Each text, and some of the values that it was executed with."""

VALUES_MAX = 12


@contextmanager
def captured(*engines: Engine) -> Iterator[Statements]:
    """What is asked of these databases meanwhile."""
    made: Statements = {}

    def note(_connection: object, _cursor: object, text: str, values: object, _context: object, many: bool) -> None:
        known, new = made.setdefault(text, []), values[0] if many and isinstance(values, list) else values
        if new not in known and len(known) < VALUES_MAX:
            known.append(new)

    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        yield made
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)


def read_all(app: FastAPI, client: TestClient, values: Mapping[str, Sequence[str]]) -> int:
    """Reads each route without parameters, and with each of its parameters. `values` are those of parameters by name;
    others take those of their type. Returns how many routes there are.
    """
    routes = 0
    whole = app.openapi()
    named = whole["components"]["schemas"]
    for path, operations in whole["paths"].items():
        if "get" not in operations or path.endswith("/events"):
            continue
        routes += 1
        parameters = operations["get"].get("parameters", [])
        inside = {one["name"]: _values(one, values, named)[0] for one in parameters if one["in"] == "path"}
        client.get(path.format(**inside))
        for one in parameters:
            for value in _values(one, values, named) if one["in"] == "query" else ():
                client.get(path.format(**inside), params={one["name"]: value})
    return routes


def request_all(
    app: FastAPI,
    client: TestClient,
    values: Mapping[str, Sequence[str]],
    body: Mapping[str, Any],
    more: Mapping[str, Any],
) -> int:
    """Sends `body` to each route that takes an operator's request, with `more` of a path. Returns how many were
    understood.
    """
    understood = 0
    for path, operations in app.openapi()["paths"].items():
        parameters = operations.get("post", {}).get("parameters", [])
        inside = {one["name"]: values.get(one["name"], ("1",))[0] for one in parameters if one["in"] == "path"}
        if "post" in operations:
            answer = client.post(path.format(**inside), json={**body, **more.get(path, {})})
            understood += answer.status_code in {202, 404, 409}
    return understood


def _values(
    parameter: Mapping[str, Any], values: Mapping[str, Sequence[str]], named: Mapping[str, Any]
) -> Sequence[str]:
    if parameter["name"] in values:
        return values[parameter["name"]]
    kinds = [parameter["schema"], *parameter["schema"].get("anyOf", ())]
    kinds += [named[kind["$ref"].rpartition("/")[2]] for kind in kinds if "$ref" in kind]
    listed = [str(value) for kind in kinds for value in kind.get("enum", ())]
    if listed:
        return listed
    types = {kind.get("type") for kind in kinds}
    return ("true", "false") if "boolean" in types else ("1",) if types & {"integer", "number"} else ("n3",)


def plan_of(connection: Connection, query: str, values: Any) -> list[str]:
    """SQLite's steps, the outermost first."""
    return [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {query}", values)]


def whole_tables_read(engine: Engine, statements: Statements) -> dict[str, str]:
    """Statement → the tables that grow and that SQLite reads from end to end for it."""
    found = {}
    with engine.connect() as connection:
        for text, values in statements.items():
            if re.match(r"\s*(SELECT|UPDATE|DELETE|INSERT|WITH)", text, re.IGNORECASE):
                plan = plan_of(connection, text, values[0])
                scanned = {name for step in plan if (name := _scanned(step, text)) in GROWING}
                if scanned:
                    found[text] = ", ".join(sorted(name for name in scanned if name))
    return found


def whole_tables_read_by_postgresql(engine: Engine, statements: Statements) -> dict[str, str]:
    """The same by PostgreSQL's plans, where it may read a whole table only if no index helps."""
    found = {}
    with engine.connect() as connection:
        connection.exec_driver_sql("SET enable_seqscan = off")
        for text, values in statements.items():
            if re.match(r"\s*(SELECT|UPDATE|DELETE)", text):
                query = f"EXPLAIN (FORMAT JSON) {text}"
                (plan,) = connection.exec_driver_sql(query, values[0]).scalar_one()
                scanned = {table for table in _read_whole(plan["Plan"]) if table in GROWING}
                if scanned:
                    found[text] = ", ".join(sorted(scanned))
    return found


def _read_whole(step: Mapping[str, Any]) -> Iterator[str]:
    is_scan = step["Node Type"] in ("Seq Scan", "Index Scan", "Index Only Scan")
    if is_scan and "Index Cond" not in step:
        yield step["Relation Name"]
    for below in step.get("Plans", ()):
        yield from _read_whole(below)


def _scanned(step: str, text: str) -> str | None:
    """The table of a step such as "SCAN d USING INDEX x"; an alias is resolved."""
    match = re.match(r"SCAN (\S+)", step)
    if match is None:
        return None
    name = match[1]
    alias = re.search(rf"\b(\w+) AS {re.escape(name)}\b", text)
    return alias[1] if alias else name
