"""Opening the database: engine, pragmas, migrations."""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    RowMapping,
    String,
    Table,
    cast,
    event,
    func,
    or_,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.pool import StaticPool
from sqlalchemy.sql.base import ReadOnlyColumnCollection

StoreError = SQLAlchemyError
"""The database did not do what it was asked; nothing of that transaction is in it. For rooms without SQL."""

AddressError = ArgumentError
"""The address of the database is wrong: waiting does not help."""

__all__ = [
    "ID_MAX",
    "MAKE_ROOM",
    "WRITER",
    "AddressError",
    "DatabaseInMemory",
    "Engine",
    "StoreError",
    "cause_of",
    "caused_by_content",
    "check_term",
    "insert_if_new",
    "insert_new",
    "insert_or_update",
    "is_full",
    "is_shared",
    "look_at",
    "make_file",
    "migrate",
    "named",
    "number_in_order",
    "one_view",
    "open_database",
    "open_reader",
    "postgresql_arguments",
    "read_url",
    "reading",
    "without_secrets",
]

DISK_IS_FULL = ("disk is full", "disk full", "No space left")
"""SQLite's words, and those of the operating system that PostgreSQL passes on."""

MAKE_ROOM = "make room where `server.database` lies"


def cause_of(error: StoreError) -> str:
    """What the database reported, in one line, for people."""
    reported = " ".join(str(getattr(error, "orig", None) or error).split())
    return f"the database: {reported}{f'; {MAKE_ROOM}' if is_full(error) else ''}"


def is_full(error: StoreError) -> bool:
    return any(words in str(error) for words in DISK_IS_FULL)


def caused_by_content(error: Exception) -> bool:
    """True if what was to be stored is the cause, and not the database: then other rows can be stored."""
    by_content = isinstance(error, DataError | IntegrityError) or type(error) is StatementError
    return by_content or not isinstance(error, StoreError)


BUSY_TIMEOUT_MILLISECONDS = 10_000

_PROBE_SECONDS = 5
"""Seconds of silence before a connection is probed, and between two probes. The second unanswered one ends it."""

POSTGRESQL_BOUNDS = {
    "connect_timeout": BUSY_TIMEOUT_MILLISECONDS // 1000,
    "tcp_user_timeout": BUSY_TIMEOUT_MILLISECONDS,
    # A server that falls silent after a query leaves nothing but these probes unanswered.
    "keepalives_idle": _PROBE_SECONDS,
    "keepalives_interval": _PROBE_SECONDS,
}
"""Neither the loop nor a reader waits longer for a server that is silent."""

_SERVER_BOUNDS = (
    f"-c tcp_keepalives_idle={_PROBE_SECONDS} -c tcp_keepalives_interval={_PROBE_SECONDS} -c tcp_keepalives_count=2"
)
"""The server, too, ends the session of a client that is silent, and with it the session's locks. Its default is two
hours: for as long a control plane whose network was away could not take its lock again.
"""

LOCK_BOUND = f"-c lock_timeout={BUSY_TIMEOUT_MILLISECONDS}"
"""The loop waits no longer for another session's lock."""

ID_MAX = 2**63 - 1
"""Above every id: a list that begins before it begins with the newest record."""

_NUMBERING = 0x756E6465727375
"""Key of the lock that writers of numbered rows hold on PostgreSQL, among other programs' locks in the same database.
"""

WRITER = "understudy writer "
"""Name of a session in which a control plane that leads may write; its term follows."""

CONNECTIONS_MAX = 64
"""Connections of the loop and of the routes that store reports: more than threads that ask, so none waits."""

Columns = ReadOnlyColumnCollection[str, Any]
Values = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
News = Callable[[Columns, Columns], Mapping[str, Any]]
"""Computes the values to set in a stored row from its columns and those of a new row. One function for each use."""

STEPS_BETWEEN_LOOKS = 50_000
"""SQLite's instructions between two looks at the clock: a few milliseconds."""

MIGRATIONS = Path(__file__).resolve().parents[1] / "migrations"
"""Alembic's revisions. In a checkout a link to the folder `migrations` at the top."""


def open_database(url: str, term: int | None = None, *, upgrades: bool = True) -> Engine:
    """The engine for `url`, its schema brought up to date. Creates a SQLite file and its folder where missing.

    `term`: that in which this control plane leads on PostgreSQL; once there is a newer one, the engine writes no more.
    `upgrades`: if not, only an empty database gets the schema: a control plane may work on the other.
    Raises StoreError when the database cannot be used.
    """
    parsed = read_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        make_file(Path(parsed.database))
    arguments = postgresql_arguments(parsed) | (named(f"{WRITER}{term}") if term is not None else {})
    engine = sqlalchemy.create_engine(url, max_overflow=CONNECTIONS_MAX, connect_args=arguments)
    if engine.dialect.name == "sqlite":
        _prepare_sqlite(engine)
    fenced = engine if term is None else _fenced(engine, term)  # before the first connection
    migrate(engine, upgrades=upgrades)
    return fenced


def _fenced(engine: Engine, term: int) -> Engine:
    """Each new connection checks the term, and each transaction that calls `check_term`. One that was open before is
    ended by the control plane that takes the lead.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT term FROM holder")
                _refuse_unless(term, cursor.fetchone())
            connection.rollback()
        except Exception:
            connection.close()
            raise

    return engine.execution_options(term=term)


def check_term(connection: Connection) -> None:
    """Raises StoreError where another control plane has taken the lead. It reads nothing before this session has ended,
    so it knows what is committed here meanwhile. Without a term, as on SQLite, there is nothing to check.
    """
    term = connection.get_execution_options().get("term")
    if term is not None:
        _refuse_unless(term, connection.exec_driver_sql("SELECT term FROM holder").one_or_none())


def _refuse_unless(term: int, row: Sequence[Any] | None) -> None:
    if row is None or row[0] != term:
        raise StoreError("another control plane has taken the lead: this one writes no more")


def make_file(path: Path) -> None:
    """The file, with its folder, for its owner alone. SQLite gives the files beside it the same mode.

    Made by root, it belongs to the owner of its folder: the control plane may run as another user.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        found = os.fstat(descriptor)
        if found.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        folder = path.parent.stat()
        if os.geteuid() == 0 and found.st_size == 0 and found.st_uid != folder.st_uid:
            os.fchown(descriptor, folder.st_uid, folder.st_gid)
    finally:
        os.close(descriptor)


def postgresql_arguments(url: URL, options: str = LOCK_BOUND) -> dict[str, Any]:
    """Arguments of each connection, with the options of the site's URL; empty for another database."""
    if url.get_backend_name() != "postgresql":
        return {}
    given = url.normalized_query.get("options", ())
    return POSTGRESQL_BOUNDS | {"options": " ".join([*given, _SERVER_BOUNDS, options])}


def named(session: str) -> dict[str, str]:
    """The argument by which PostgreSQL shows a session's name."""
    return {"application_name": session}


def read_url(url: str) -> URL:
    """Raises StoreError, without the URL: it may hold a password."""
    try:
        return sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):
        raise ArgumentError("the URL cannot be read") from None


def is_shared(url: str) -> bool:
    """True if several control planes can use it: one leads, the others stand by. Raises StoreError."""
    return read_url(url).get_backend_name() == "postgresql"


def without_secrets(url: str) -> str:
    """The URL as messages and logs may show it."""
    try:
        parsed = read_url(url)
    except ArgumentError:
        return "(a URL that cannot be read)"
    hidden = {name: "***" for name in parsed.query if "pass" in name.lower()}
    return parsed.update_query_dict(hidden).render_as_string(hide_password=True)


def open_reader(url: str, connections: int, seconds_max: float) -> Engine:
    """An engine for reads of people and programs, on a database that open_database has prepared.

    It has connections of its own, so those who write do not wait for one. It cannot write. A query that takes longer
    than `seconds_max` (SQLite: a transaction) ends with a StoreError.
    """
    if read_url(url).get_backend_name() != "sqlite":
        arguments = postgresql_arguments(read_url(url), f"-c statement_timeout={round(seconds_max * 1000)}")
        # A session that is read-only from its start is refused where the URL has `target_session_attrs=read-write`.
        engine = sqlalchemy.create_engine(url, pool_size=connections, max_overflow=0, connect_args=arguments)
        return engine.execution_options(postgresql_readonly=True)
    engine = sqlalchemy.create_engine(url, pool_size=connections, max_overflow=0)
    event.listen(engine, "connect", lambda connection, _record: _make_reader(connection))
    event.listen(engine, "begin", lambda connection: _begin_read(connection, seconds_max))
    return engine


def _make_reader(connection: Any) -> None:
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MILLISECONDS}")
    connection.execute("PRAGMA query_only=ON")


def _begin_read(connection: Connection, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(lambda: time.monotonic() > deadline, STEPS_BETWEEN_LOOKS)
    connection.exec_driver_sql("BEGIN")


class DatabaseInMemory:
    """A SQLite database for one thread. `before_statement` and `before_commit` can be replaced."""

    _empty: ClassVar[bytes] = b""
    """One with the newest schema: the migrations run once for a process."""

    def __init__(self) -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        self.engine = sqlalchemy.create_engine("sqlite://", creator=lambda: connection, poolclass=StaticPool)
        self.before_statement: Callable[[str], None] = lambda _statement: None
        self.before_commit: Callable[[], None] = lambda: None
        """An exception from it rolls the transaction back."""
        _prepare_sqlite(self.engine)
        if not self._empty:
            migrate(self.engine)
            DatabaseInMemory._empty = connection.serialize()
        self._connection = connection
        self.clear()
        event.listen(self.engine, "commit", lambda _: self.before_commit())
        event.listen(self.engine, "begin", lambda _: self.before_statement("BEGIN"), insert=True)
        event.listen(
            self.engine, "before_cursor_execute", lambda _connection, _cursor, text, *_: self.before_statement(text)
        )

    def clear(self) -> None:
        """Empty, with the newest schema."""
        self._connection.rollback()
        self._connection.deserialize(self._empty)


@functools.cache
def revisions() -> frozenset[str]:
    """Those that this release knows. Their files begin with their numbers."""
    return frozenset(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py"))


def newest_revision() -> str:
    return max(revisions())


def can_use(revision: str) -> bool:
    """True if this release can work on a schema of this revision. A newer one that only adds to the schema names the
    oldest revision whose releases go on working on it: `0200from0100`. The release after it may take away.
    """
    oldest = revision.partition("from")[2]
    return revision in revisions() or "" != oldest <= newest_revision().partition("from")[0]


def is_up_to_date(revision: str | None) -> bool:
    """A newer one that this release can use is left as it is."""
    return revision is not None and (
        revision == newest_revision() or (revision not in revisions() and can_use(revision))
    )


def revision_of(connection: Connection) -> str | None:
    """Revision of the schema; None: it has none."""
    if not sqlalchemy.inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return found


def migrate(engine: Engine, *, upgrades: bool = True) -> None:
    """Bring the schema to the newest revision, or leave it at a newer one that this release can use."""
    with engine.begin() as connection:
        found = revision_of(connection)
        if is_up_to_date(found):
            return
        if found is not None and not upgrades:
            raise StoreError(
                "it has the schema of another release; the control plane of this one upgrades it, start it"
            )
        _upgrade(connection)


def _upgrade(connection: Connection) -> None:
    """Alembic takes longer to be imported, and to read all revisions, than most commands of `understudy` take."""
    from alembic import command
    from alembic.config import Config as AlembicConfig
    from alembic.util.exc import CommandError

    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        words = (
            f"it was made by another release, or by a build before 0.3.0 ({error}): install that release, restore a "
            "copy that this one made, or begin with a new database"
        )
        raise StoreError(words) from error


def look_at(url: str) -> str:
    """What there is, in words; nothing is made or changed. Raises sqlalchemy.exc.SQLAlchemyError where it cannot be
    used, or ModuleNotFoundError where its driver is not installed.
    """
    parsed = read_url(url)
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").exists():
        return "is not there yet: made at the first start"
    engine = sqlalchemy.create_engine(url, connect_args=postgresql_arguments(parsed))
    try:
        with engine.connect() as connection:
            if sqlalchemy.inspect(connection).has_table("alembic_version"):
                return "can be opened"
            return "can be opened; it is empty"
    finally:
        engine.dispose()


def insert_new(connection: Connection, table: Table, rows: list[dict[str, Any]]) -> None:
    """Insert the rows that no unique key knows yet; leave the others alone."""
    if rows:
        connection.execute(_inserts_new(table, connection.dialect.name), rows)


def insert_if_new(connection: Connection, table: Table, row: dict[str, Any]) -> bool:
    """Does as insert_new for a table with ids. Returns whether the row is new."""
    return connection.execute(_inserts_if_new(table, connection.dialect.name), row).first() is not None


def insert_or_update(connection: Connection, table: Table, key: tuple[str, ...], rows: Values, news: News) -> None:
    """Insert each row, or set `news` in the one that has these values of `key` already."""
    connection.execute(_inserts_or_updates(table, key, news, connection.dialect.name), rows)


# Building a statement takes several times as long as executing it.


def _insert(table: Table, dialect: str) -> postgresql.Insert | sqlite.Insert:
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


@functools.cache
def _inserts_new(table: Table, dialect: str) -> Executable:
    return _insert(table, dialect).on_conflict_do_nothing()


@functools.cache
def _inserts_if_new(table: Table, dialect: str) -> Executable:
    return _insert(table, dialect).on_conflict_do_nothing().returning(table.c.id)


@functools.cache
def _inserts_or_updates(table: Table, key: tuple[str, ...], news: News, dialect: str) -> Executable:
    query = _insert(table, dialect)
    return query.on_conflict_do_update(index_elements=key, set_=news(table.c, query.excluded))


def number_in_order(connection: Connection) -> None:
    """Until this transaction ends, no other one that has called this writes rows.

    Who reads the rows after the last id that it knows would miss a row that is committed after one with a higher id.
    PostgreSQL gives a row its id when it is written, and shows it when its transaction ends. SQLite has one writer.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(_NUMBERING)))


def _prepare_sqlite(engine: Engine) -> None:
    """WAL: readers do not wait for the writer. FULL: a commit is on disk when it returns.

    BEGIN IMMEDIATE: a transaction that writes has the lock from its start, so it waits instead of failing half-way.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
            f"busy_timeout={BUSY_TIMEOUT_MILLISECONDS}",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        text = "BEGIN" if connection.get_execution_options().get("read_only") else "BEGIN IMMEDIATE"
        driver: Any = connection.connection.driver_connection
        try:
            driver.execute(text)  # SQLAlchemy takes three times as long to do it
        except sqlite3.Error as error:
            raise DBAPIError.instance(text, None, error, sqlite3.Error, dialect=connection.dialect) from error


_shared_view: ContextVar[Connection | None] = ContextVar("_shared_view", default=None)


def reading(engine: Engine) -> AbstractContextManager[Connection]:
    """A connection for queries: one consistent view, no lock that a writer would wait for."""
    shared = _shared_view.get()
    if shared is not None and shared.engine is engine:
        return nullcontext(shared)
    return _connect_to_read(engine)


def _connect_to_read(engine: Engine) -> Connection:
    connection = engine.connect().execution_options(read_only=True)
    if engine.dialect.name == "postgresql":  # where each query would see what was committed before it
        connection = connection.execution_options(isolation_level="REPEATABLE READ")
    return connection


def has(text: str, *columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """True of rows that have the text in one of these columns, in capitals or not."""
    return or_(*(column.icontains(text, autoescape=True) for column in columns))


def begins(text: str, number: ColumnElement[int]) -> ColumnElement[bool]:
    return cast(number, String).startswith(text, autoescape=True)


@contextmanager
def one_view(engine: Engine) -> Iterator[None]:
    """All that this thread reads within it shows the database at the same moment, in one transaction. What it writes
    meanwhile is not in that view.
    """
    with _connect_to_read(engine) as connection:
        outer = _shared_view.set(connection)
        try:
            yield
        finally:
            _shared_view.reset(outer)


class Store:
    """Records of one kind in one database. Each of these methods is a transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _rows(self, query: Executable, values: Values = None) -> Sequence[Any]:
        with reading(self._engine) as connection:
            return connection.execute(query, values).all()

    def _mappings(self, query: Executable, values: Values = None) -> Sequence[RowMapping]:
        with reading(self._engine) as connection:
            return connection.execute(query, values).mappings().all()

    def _scalars(self, query: Executable, values: Values = None) -> Sequence[Any]:
        with reading(self._engine) as connection:
            return connection.execute(query, values).scalars().all()

    def _first(self, query: Executable, values: Values = None) -> Any:
        with reading(self._engine) as connection:
            return connection.execute(query, values).first()

    def _scalar(self, query: Executable, values: Values = None) -> Any:
        with reading(self._engine) as connection:
            return connection.execute(query, values).scalar()

    def _write(self, statement: Executable, values: Values = None) -> int:
        """Number of rows that it changed."""
        with self._engine.begin() as connection:
            return connection.execute(statement, values).rowcount
