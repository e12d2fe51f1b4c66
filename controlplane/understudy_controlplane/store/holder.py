"""PostgreSQL: the session with which a control plane leads or stands by, and the row that says who leads.

The lock of the session is the fast way to notice that a leader was killed. The term is what protects: sessions in which
the leader of an older term could still write are ended before a new one reads anything.
"""

from __future__ import annotations

import sqlalchemy
from sqlalchemy import Connection, bindparam, func, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import NullPool

from understudy_controlplane.fleet.holder import Holder
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import WRITER, named, postgresql_arguments, read_url

_KEY = 0x756E6465727374  # of the lock, among other programs' locks in the same PostgreSQL database
_STANDBY = "understudy standby "
_LEADER = "understudy leader"

_HOLDER = tables.holder
_HAS_TABLE = select(func.to_regclass(_HOLDER.name))
_ROW = select(_HOLDER.c.term, _HOLDER.c.renewed_at, _HOLDER.c.url)
_NOW = func.date_part("epoch", func.clock_timestamp())
_NEW = postgresql.insert(_HOLDER).values(
    # A database that was restored from a copy gets a term above those that the copy does not know.
    id=1,
    term=sqlalchemy.cast(func.floor(_NOW), sqlalchemy.BigInteger),
    renewed_at=_NOW,
    url=bindparam("by"),
)
_RAISE = _NEW.on_conflict_do_update(
    index_elements=("id",),
    set_={
        "term": func.greatest(_HOLDER.c.term + 1, _NEW.excluded.term),
        "renewed_at": _NEW.excluded.renewed_at,
        "url": _NEW.excluded.url,
    },
    where=sqlalchemy.and_(
        _HOLDER.c.term == bindparam("seen_term"),
        _HOLDER.c.renewed_at.is_not_distinct_from(bindparam("seen_renewed_at")),
    ),
).returning(_HOLDER.c.term)
_RENEW = update(_HOLDER).where(_HOLDER.c.term == bindparam("mine")).values(renewed_at=_NOW)
_RELEASE = update(_HOLDER).where(_HOLDER.c.term == bindparam("mine")).values(renewed_at=None)
_END_OLDER = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND ("
    " CASE WHEN application_name ~ ('^' || :writer || '[0-9]+$')"
    " THEN CAST(substr(application_name, length(:writer) + 1) AS bigint) < :term ELSE false END"
    " OR pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1"
    " AND classid = :high AND objid = :low"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())))"
).bindparams(writer=WRITER, high=_KEY >> 32, low=_KEY & 0xFFFFFFFF)


class HolderSession:
    """Each method raises StoreError where the database does not do it; then the session is of no more use."""

    def __init__(self, url: str, by: str) -> None:
        """The others are shown `by`, the address of this control plane."""
        self._by = by
        arguments = postgresql_arguments(read_url(url)) | named(f"{_STANDBY}{by}")
        engine = sqlalchemy.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=arguments)
        self._session: Connection = engine.connect()

    def close(self) -> None:
        self._session.invalidate()  # the server may have ended it
        self._session.close()

    def take_lock(self) -> bool:
        """PostgreSQL releases it when the session ends, also where the server restarts or the network was away."""
        return bool(self._session.execute(select(func.pg_try_advisory_lock(_KEY))).scalar())

    def holder(self) -> Holder | None:
        """None: no control plane has led yet."""
        if self._session.execute(_HAS_TABLE).scalar() is None:
            return None
        row = self._session.execute(_ROW).one_or_none()
        return Holder(*row) if row is not None else None

    def raise_term(self, seen: Holder | None) -> int | None:
        """The new term; None: the row is not as it was seen, another control plane leads."""
        values = {"seen_term": seen.term if seen else 0, "seen_renewed_at": seen.renewed_at if seen else None}
        term: int | None = self._session.execute(_RAISE, {"by": self._by, **values}).scalar()
        if term is not None:
            self._session.execute(select(func.set_config("application_name", _LEADER, sqlalchemy.false())))
        return term

    def end_older(self, term: int) -> bool:
        """Ends the sessions of older terms that may write, and that which has the lock. True: none was left."""
        return not self._session.execute(_END_OLDER, {"term": term}).scalar()

    def renew(self, term: int) -> bool:
        """False: another control plane has taken the lead."""
        return bool(self._session.execute(_RENEW, {"mine": term}).rowcount)

    def give_up(self, term: int) -> None:
        """The next one need not wait: no call of this one is under way."""
        self._session.execute(_RELEASE, {"mine": term})
