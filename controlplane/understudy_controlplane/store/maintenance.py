"""Checking and copying the database, also while a control plane works on it. Nothing in it is changed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import sqlalchemy
from sqlalchemy import Connection
from sqlalchemy.exc import DatabaseError, OperationalError

from understudy_controlplane.store import tables
from understudy_controlplane.store.database import is_up_to_date, newest_revision, read_url, revision_of

SHOWN_MAX = 20
"""Problems of one kind."""


class CannotCopy(Exception):
    """The message names cause and remedy."""


def problems(url: str) -> list[str]:
    """What is wrong with the database: its schema, its pages, its references. Raises StoreError or OSError."""
    parsed = read_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise FileNotFoundError(f"{parsed.database} does not exist")
    engine = sqlalchemy.create_engine(url)
    found: list[str] = []
    try:
        with engine.connect() as connection:
            found += _schema_problems(connection)
            if engine.dialect.name == "sqlite":  # PostgreSQL checks references itself, and amcheck its pages
                found += _damage(connection) or _references_to_nothing(connection)
    except OperationalError:
        raise
    except DatabaseError as error:
        found.append(f"integrity: {error.orig}; restore a backup")
    finally:
        engine.dispose()
    return found


def copy_sqlite(url: str, target: Path) -> int:
    """A consistent copy, of one moment, for its owner alone. Returns its bytes. Raises CannotCopy, StoreError, OSError.

    Writers do not wait for it. It has its name only when it is whole.
    """
    parsed = read_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise CannotCopy("the database is in PostgreSQL; copy it with pg_dump --format=custom")
    if not Path(parsed.database).is_file():
        raise CannotCopy(f"{parsed.database} does not exist; check server.database")
    if target.exists():
        raise CannotCopy(f"{target} exists; name a new file, or remove it first")
    partial = target.with_name(f"{target.name}.partial")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with closing(sqlite3.connect(parsed.database)) as source, closing(sqlite3.connect(partial)) as copy:
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file; serve sets it again
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.rename(target)
    except sqlite3.Error as error:
        raise CannotCopy(f"{parsed.database} cannot be copied: {error}; run `understudy db check`") from error
    finally:
        partial.unlink(missing_ok=True)
    return target.stat().st_size


def _schema_problems(connection: Connection) -> Iterator[str]:
    newest, version = newest_revision(), revision_of(connection)
    if version is None:
        yield "no schema: it is not a database of Understudy; name another one in server.database"
        return
    if not is_up_to_date(version):
        yield f"schema {version}, and this release has {newest}: start `understudy serve` of the release that is to run"
        return
    there = set(sqlalchemy.inspect(connection).get_table_names())
    for table in sorted(tables.metadata.tables.keys() - there):
        yield f"table {table} is missing: restore a backup"


def _damage(connection: Connection) -> list[str]:
    found = connection.exec_driver_sql(f"PRAGMA integrity_check({SHOWN_MAX})").scalars()
    return [f"integrity: {text}; restore a backup" for text in found if text != "ok"]


def _references_to_nothing(connection: Connection) -> list[str]:
    found = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(SHOWN_MAX)
    return [
        f"reference: row {row} of {table} names a row of {parent} that does not exist; restore a backup"
        for table, row, parent, _ in found
    ]
