"""Copies a SQLite database into an empty one of PostgreSQL, in one transaction, and reads it back.

No control plane may lead on either meanwhile: both locks are held. JSON is copied as the text that it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import JSON, Column, Connection, Table, Text, bindparam, cast, func, insert, select

from understudy_controlplane.store import tables
from understudy_controlplane.store.database import (
    StoreError,
    is_shared,
    newest_revision,
    one_view,
    open_database,
    read_url,
    reading,
    revision_of,
)
from understudy_controlplane.store.database_lock import DatabaseTaken, take_file
from understudy_controlplane.store.holder import HolderSession
from understudy_controlplane.store.maintenance import CannotCopy

ROWS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class Copied:
    table: str
    rows: int
    checksum: str
    """Sum over all rows, in any order."""


def copy_to_postgresql(source: str, target: str) -> list[Copied]:
    """Raises CannotCopy, and then the target is as it was, but for an empty schema; StoreError, OSError."""
    path = Path(read_url(source).database or "")
    if is_shared(source) or not path.is_file():
        raise CannotCopy(f"{path or source} is no file of SQLite; check server.database")
    if not is_shared(target):
        raise CannotCopy("the target has to be PostgreSQL: postgresql+psycopg://USER@HOST/DATABASE")
    with closing(HolderSession(target, "", "understudy copy")) as session:
        try:
            lock = take_file(source)
        except DatabaseTaken as error:
            raise CannotCopy("a control plane works on the database; stop it first") from error
        try:
            if not session.take_lock():
                raise CannotCopy("a control plane leads on the target; stop it, or name another database")
            return _copy(source, target)
        finally:
            lock.release()


def _copy(source: str, target: str) -> list[Copied]:
    _refuse_unless_empty(target)
    there, here = open_database(target, upgrades=False), open_database(source, upgrades=False)
    try:
        with one_view(here), reading(here) as old, there.begin() as new:
            if revision_of(old) != newest_revision():
                raise CannotCopy("it has the schema of another release; start the control plane of this one once")
            return [_copy_table(table, old, new) for table in tables.metadata.sorted_tables]
    finally:
        there.dispose()
        here.dispose()


def _refuse_unless_empty(target: str) -> None:
    engine = sqlalchemy.create_engine(target)
    try:
        with engine.connect() as connection:
            names = set(sqlalchemy.inspect(connection).get_table_names())
            known = [table for table in tables.metadata.sorted_tables if table.name in names]
            full = sorted(one.name for one in known if connection.execute(select(one).limit(1)).first() is not None)
            others = sorted(names - tables.metadata.tables.keys() - {"alembic_version"})
    finally:
        engine.dispose()
    if full or others:
        raise CannotCopy(f"the target is not empty ({', '.join([*full, *others][:5])}); name an empty database")


def _copy_table(table: Table, old: Connection, new: Connection) -> Copied:
    into = insert(table).values({one.name: _parameter(one) for one in table.c})
    try:
        for rows in _read(table, old):
            new.execute(into, [dict(zip(table.c.keys(), row, strict=True)) for row in rows])
    except StoreError as error:
        raise CannotCopy(f"{table.name}: PostgreSQL does not take its rows: {error}") from error
    if "id" in table.c:
        sequence = func.pg_get_serial_sequence(table.name, "id")
        highest = select(func.max(table.c.id)).scalar_subquery()
        new.execute(select(func.setval(sequence, highest)).where(sequence.is_not(None), highest.is_not(None)))
    copied, original = (_summed(table, connection) for connection in (new, old))
    if copied != original:
        raise CannotCopy(f"{table.name}: the rows read back are not those that were written; nothing was copied")
    return copied


def _parameter(column: Column[Any]) -> Any:
    if isinstance(column.type, JSON):
        return cast(bindparam(column.name, type_=Text), JSON)
    return bindparam(column.name, type_=column.type)


def _read(table: Table, connection: Connection) -> Iterator[Sequence[Any]]:
    columns = [cast(one, Text).label(one.name) if isinstance(one.type, JSON) else one for one in table.c]
    query = select(*columns).order_by(*table.primary_key)
    with connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE}) as found:
        yield from found.partitions()


def _summed(table: Table, connection: Connection) -> Copied:
    count = total = 0
    for rows in _read(table, connection):
        count += len(rows)
        total += sum(int.from_bytes(hashlib.sha256(repr(tuple(row)).encode()).digest()[:8]) for row in rows)
    return Copied(table.name, count, f"{total % 2**64:016x}")
