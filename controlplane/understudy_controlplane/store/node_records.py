"""A node's record and its suspicions, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, delete, insert, select, update

from understudy_controlplane.fleet.node import DrainKind, NodeRecord, NodeState, ValidationOrigin
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause
from understudy_controlplane.store import tables

COLUMNS = tuple(one.name for one in fields(NodeRecord) if one.name not in ("name", "suspicions"))
"""Columns of the table `node` have the names of the record's fields."""

_SUSPICIONS = select(tables.suspicion).order_by(tables.suspicion.c.since, tables.suspicion.c.cause)


def read_suspicions(connection: Connection) -> dict[str, tuple[Suspicion, ...]]:
    """Suspicions by node, oldest first. Few nodes have any."""
    found: dict[str, tuple[Suspicion, ...]] = {}
    for row in connection.execute(_SUSPICIONS):
        found[row.node] = (*found.get(row.node, ()), Suspicion(SuspicionCause(row.cause), row.since))
    return found


def read_records(
    connection: Connection, query: Select[Any], values: Mapping[str, Any] | None = None
) -> list[NodeRecord]:
    rows = connection.execute(query, values).all()
    suspicions = read_suspicions(connection) if rows else {}
    return [record_of(row, suspicions.get(row.name, ())) for row in rows]


def record_of(row: Row[Any], suspicions: tuple[Suspicion, ...]) -> NodeRecord:
    values: dict[str, Any] = {name: getattr(row, name) for name in COLUMNS}
    values["state"] = NodeState(row.state)
    values["validation_origin"] = ValidationOrigin(row.validation_origin) if row.validation_origin else None
    values["drain_kind"] = DrainKind(row.drain_kind) if row.drain_kind else None
    return NodeRecord(name=row.name, suspicions=suspicions, **values)


def write_records(connection: Connection, records: Iterable[tuple[NodeRecord, NodeRecord]]) -> None:
    """Pairs of before and after. Those that change the same columns go to the database together: two thousand nodes
    may fall silent at once.
    """
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    suspected: list[NodeRecord] = []
    for before, after in records:
        values = {name: _stored(new) for name in COLUMNS if (new := getattr(after, name)) != getattr(before, name)}
        if values:
            alike.setdefault(tuple(values), []).append({"of_node": after.name, **values})
        if after.suspicions != before.suspicions:
            suspected.append(after)
    table = tables.node
    for rows in alike.values():
        connection.execute(update(table).where(table.c.name == bindparam("of_node")), rows)
    _write_suspicions(connection, suspected)


def _stored(value: object) -> object:
    return value.value if isinstance(value, StrEnum) else value


def _write_suspicions(connection: Connection, records: Sequence[NodeRecord]) -> None:
    table = tables.suspicion
    if records:
        names = [{"of_node": record.name} for record in records]
        connection.execute(delete(table).where(table.c.node == bindparam("of_node")), names)
    rows = [
        {"node": record.name, "cause": one.cause.value, "since": one.since}
        for record in records
        for one in record.suspicions
    ]
    if rows:
        connection.execute(insert(table), rows)
