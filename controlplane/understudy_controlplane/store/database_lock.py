"""One control plane at a time works on a database: two would act on the same recoveries."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO, Protocol
from uuid import uuid4

import sqlalchemy
from sqlalchemy import Connection, delete, func, insert, select
from sqlalchemy.pool import NullPool

from understudy_controlplane.store import tables
from understudy_controlplane.store.database import StoreError, make_file, postgresql_arguments, read_url

_KEY = 0x756E6465727374  # of the lock, among other programs' locks in the same PostgreSQL database


class DatabaseTaken(Exception):
    """Another control plane works on this database."""


class DatabaseLock(Protocol):
    def check(self) -> None:
        """Raises DatabaseTaken where another control plane has worked on the database since this one took the lock;
        StoreError while that cannot be known.
        """

    def release(self) -> None: ...


def take_database(url: str) -> DatabaseLock:
    """Raises DatabaseTaken, StoreError or OSError."""
    parsed = read_url(url)
    if parsed.get_backend_name() == "postgresql":
        return SessionLock(url)
    is_file = parsed.get_backend_name() == "sqlite" and parsed.database
    return FileLock(Path(f"{parsed.database}.lock") if is_file else None)


class FileLock:
    """Lock on a file beside SQLite's. The kernel releases it when its holder ends, however it ends."""

    def __init__(self, path: Path | None) -> None:
        """None: the database is in this process's memory."""
        self._file: IO[str] | None = None
        if path is None:
            return
        make_file(path)
        self._file = path.open("w")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise DatabaseTaken(f"{path} is locked") from error

    def check(self) -> None:
        """The kernel takes it from no process."""

    def release(self) -> None:
        if self._file is not None:
            self._file.close()


class SessionLock:
    """PostgreSQL releases it when its session ends, also where the server restarts or the network was away. It is taken
    again then, unless another control plane was faster: each writes its name into the table `holder`.
    """

    def __init__(self, url: str) -> None:
        self._engine = sqlalchemy.create_engine(
            url,
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args=postgresql_arguments(read_url(url)),
        )
        self._name = uuid4().hex
        self._is_named = False  # the table may not exist before the database is opened
        session = self._take()
        if session is None:
            raise DatabaseTaken("a session of PostgreSQL holds its lock")
        self._session: Connection | None = session

    def check(self) -> None:
        if self._session is not None:
            try:
                self._session.execute(select(1))
            except StoreError:
                self._session.invalidate()
                self._session.close()
                self._session = None
        if self._session is None:
            self._session = self._take_again()
        if not self._is_named:
            self._session.execute(delete(tables.holder))
            self._session.execute(insert(tables.holder).values(id=1, name=self._name))
            self._is_named = True

    def release(self) -> None:
        if self._session is not None:
            self._session.close()

    def _take(self) -> Connection | None:
        session = self._engine.connect()
        if session.execute(select(func.pg_try_advisory_lock(_KEY))).scalar():
            return session
        session.close()
        return None

    def _take_again(self) -> Connection:
        session = self._take()
        with self._engine.connect() as connection:
            holder = connection.execute(select(tables.holder.c.name)).scalar()
        if holder != self._name:
            if session is not None:
                session.close()
            raise DatabaseTaken("it took the lock while this one had lost its session")
        if session is None:
            raise StoreError("the database's lock is held by the session that was lost, or by another control plane")
        return session
