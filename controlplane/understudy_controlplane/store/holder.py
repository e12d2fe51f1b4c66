"""The row that says who leads, and on PostgreSQL the session with which a control plane leads or stands by.

The lock of the session is the fast way to notice that a leader was killed. The term is what protects: sessions in which
the leader of an older term could still write are ended before a new one reads anything.
"""

from __future__ import annotations

import secrets

import sqlalchemy
from sqlalchemy import Connection, Engine, bindparam, func, insert, select, text, update
from sqlalchemy.dialects import postgresql
from sqlalchemy.pool import NullPool

from understudy_controlplane.fleet.counted import listed
from understudy_controlplane.fleet.holder import STANDBY_SECONDS, Holder, Leader, Standby
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import WRITER, can_use, named, postgresql_arguments, read_url

_KEY = 0x756E6465727374  # of the lock, among other programs' locks in the same PostgreSQL database
_STANDBY = "understudy standby "
_ABLE = f"{_STANDBY}able "
"""A standby that could work. A leader of an older release sees it as one, too, by the same begin of its name."""

LEADER = "understudy leader"

_SHOWN_BYTES = 63
"""PostgreSQL shows no more of a session's name."""

_NUMBERS = 100
"""Answers of slurmctld are counted up to this number, and from 0 again: two digits in the name of a session."""

_HOLDER = tables.holder
_HAS_TABLE = select(func.to_regclass(_HOLDER.name))
_REVISION = text("SELECT version_num FROM alembic_version")  # it is there wherever `holder` is
_ROW = select(_HOLDER.c.term, _HOLDER.c.renewed_at, _HOLDER.c.url)
_NOW = func.date_part("epoch", func.clock_timestamp())
_NEW = postgresql.insert(_HOLDER).values(
    # A database that was restored from a copy gets a term above those that the copy does not know.
    id=1,
    term=sqlalchemy.cast(func.floor(_NOW), sqlalchemy.BigInteger),
    renewed_at=_NOW,
    url=bindparam("by"),
    installation=bindparam("new_installation"),
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

_RENEWED_BEFORE = select(_NOW - _HOLDER.c.renewed_at)
_STANDBYS = text(
    "SELECT application_name,"
    " CAST(extract(epoch FROM clock_timestamp() - max(coalesce(state_change, clock_timestamp()))) AS double precision)"
    " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    " AND starts_with(application_name, :standby) GROUP BY 1"
).bindparams(standby=_STANDBY)


def shown(by: str) -> str:
    """A control plane's address, as PostgreSQL shows it in the name of its session."""
    return by.encode()[: _SHOWN_BYTES - len(f"{_ABLE} {_NUMBERS - 1}")].decode(errors="ignore")


class HolderSession:
    """Each method raises StoreError where the database does not do it; then the session is of no more use."""

    def __init__(self, url: str, by: str, name: str = "") -> None:
        """The others are shown `by`, the address of this control plane. `name`: of a session that does not stand by."""
        self._by = by
        self._name = name or f"{_STANDBY}{shown(by)}"
        arguments = postgresql_arguments(read_url(url)) | named(self._name)
        engine = sqlalchemy.create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=arguments)
        self._session: Connection = engine.connect()

    def close(self) -> None:
        self._session.invalidate()  # the server may have ended it
        self._session.close()

    def take_lock(self) -> bool:
        """PostgreSQL releases it when the session ends, also where the server restarts or the network was away."""
        return bool(self._session.execute(select(func.pg_try_advisory_lock(_KEY))).scalar())

    def show_able(self, answers: int | None) -> None:
        """Shown in the name of this session, which ends with its control plane: a row would outlive it. `answers`: how
        many slurmctld has given this standby; None: it could not work.
        """
        by = shown(self._by)
        name = f"{_STANDBY}{by}" if answers is None else f"{_ABLE}{by} {answers % _NUMBERS}"
        if name != self._name:
            self._session.execute(select(func.set_config("application_name", name, sqlalchemy.false())))
            self._name = name

    def foreign_revision(self) -> str:
        """Revision of a schema on which this release cannot work; empty: it can use the database."""
        if self._session.execute(_HAS_TABLE).scalar() is None:
            return ""
        found = self._session.execute(_REVISION).scalar()
        return "" if found is None or can_use(found) else str(found)

    def holder(self) -> Holder | None:
        """None: no control plane has led yet."""
        if self._session.execute(_HAS_TABLE).scalar() is None:
            return None
        row = self._session.execute(_ROW).one_or_none()
        return Holder(*row) if row is not None else None

    def raise_term(self, seen: Holder | None) -> int | None:
        """The new term; None: the row is not as it was seen, another control plane leads."""
        values = {"seen_term": seen.term if seen else 0, "seen_renewed_at": seen.renewed_at if seen else None}
        new = {"by": self._by, "new_installation": new_installation()}
        term: int | None = self._session.execute(_RAISE, new | values).scalar()
        if term is not None:
            self._session.execute(select(func.set_config("application_name", LEADER, sqlalchemy.false())))
        return term

    def end_older(self, term: int) -> bool:
        """Ends the sessions of older terms that may write, and that which has the lock. True: none was left."""
        return not self._session.execute(_END_OLDER, {"term": term}).scalar()

    def renew(self, term: int) -> bool:
        """False: another control plane has taken the lead."""
        return bool(self._session.execute(_RENEW, {"mine": term}).rowcount)

    def seconds_since_renewal(self) -> float | None:
        """None: the lead was given up."""
        seconds: float | None = self._session.execute(_RENEWED_BEFORE).scalar()
        return seconds

    def standbys(self) -> dict[str, Standby]:
        """Address → standby. One that has just connected again has two sessions: the one that it used last counts."""
        rows = sorted(self._session.execute(_STANDBYS), key=lambda row: row[1], reverse=True)
        return dict(_standby(name, seconds) for name, seconds in rows)

    def give_up(self, term: int) -> None:
        """The next one need not wait: no call of this one is under way."""
        self._session.execute(_RELEASE, {"mine": term})
        self._session.execute(select(func.pg_advisory_unlock_all()))  # sooner than the server sees this session end


def _standby(name: str, seconds: float) -> tuple[str, Standby]:
    if not name.startswith(_ABLE):
        return name.removeprefix(_STANDBY), Standby(seconds, able=False)
    by, _, answers = name.removeprefix(_ABLE).partition(" ")
    return by, Standby(seconds, able=True, answers=int(answers) if answers.isdecimal() else 0)


def who_leads(url: str) -> tuple[str, str]:
    """Who leads and who stands by, and what is wrong with that, in words. Raises StoreError."""
    session = HolderSession(url, "", "understudy doctor")
    try:
        holder = session.holder()
        if holder is None:
            return "none has led yet", ""
        found = session.standbys().items()
        standbys = ", ".join(name if one.able else f"{name} (unable to lead)" for name, one in found) or "none"
        unable = [name for name, one in found if not one.able]
        seconds = session.seconds_since_renewal()
    finally:
        session.close()
    if seconds is None or seconds > STANDBY_SECONDS:
        when = "gave the lead up" if seconds is None else f"renewed its lead {seconds:.0f} s ago"
        return f"none leads; {holder.url} {when}", "start one: `systemctl start understudy-controlplane`"
    why = f"{listed(unable)} cannot read Slurm, or has an older release than the database, and is passed no lead: "
    why += "`systemctl status understudy-controlplane` there shows the cause"
    return f"{holder.url} leads in term {holder.term}; {standbys} stands by", why if unable else ""


def new_installation() -> str:
    return secrets.token_hex(8)


def leader(engine: Engine, term: int | None, now: float) -> Leader:
    """This control plane, as it names itself to agents. `term`: that in which it leads on PostgreSQL; None: it is alone
    on its database, and each start is a new term. Raises StoreError.
    """
    columns = _HOLDER.c
    with engine.begin() as connection:
        row = connection.execute(select(columns.term, columns.installation)).one_or_none()
        if row is None:
            own = Leader(new_installation(), int(now))
            values = {"term": own.term, "url": "", "installation": own.installation}
            connection.execute(insert(_HOLDER).values(id=1, **values))
            return own
        if term is None:
            term = max(row.term + 1, int(now))
            connection.execute(update(_HOLDER).values(term=term))
        return Leader(row.installation, term)
