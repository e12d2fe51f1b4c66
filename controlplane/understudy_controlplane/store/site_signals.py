"""Signals of other systems of the site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, bindparam, func, insert, or_, select, update

from understudy_controlplane.config import SignalKind
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.site_signal import ReportedSignal, SiteSignal, signal_subject
from understudy_controlplane.store import tables
from understudy_controlplane.store.audit import append
from understudy_controlplane.store.database import reading

RECENT_SECONDS = 3600.0

_TABLE = tables.site_signal
_KNOWN = select(_TABLE).where(_TABLE.c.until > bindparam("now"))
_LIVE = _KNOWN.where(_TABLE.c.ended_at.is_(None))
_RECENT = select(func.count()).select_from(_TABLE).where(_TABLE.c.until > bindparam("since"))
_RESOLVE = update(_TABLE).where(_TABLE.c.id == bindparam("this")).values(until=bindparam("now"))
_END = update(_TABLE).where(_TABLE.c.id == bindparam("this")).values(ended_at=bindparam("now"))
_GOES_ON = (
    update(_TABLE)
    .where(_TABLE.c.id == bindparam("this"))
    .values(
        kind=bindparam("new_kind"),
        targets=bindparam("new_targets", type_=_TABLE.c.targets.type),
        summary=bindparam("new_summary"),
        until=bindparam("new_until"),
    )
)


class TooManySignals(Exception):
    """None of those that were to be stored is."""


class SiteSignalStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def live(self, now: float) -> tuple[SiteSignal, ...]:
        with reading(self._engine) as connection:
            found = [_signal(row) for row in connection.execute(_LIVE, {"now": now})]
        return tuple(sorted(found, key=lambda one: one.id))  # sorted by SQLite, it would read the whole table

    def take(
        self, reported: Sequence[ReportedSignal], until: float, at_most: int, entry: AuditEntry
    ) -> list[SiteSignal]:
        """Those with the source and key of a live one change it; those that an operator has ended are not taken. Of
        one sender at most `at_most` are live, or ended within the hour. The audit has each new one, and each that is
        about something else than before. Raises TooManySignals.
        """
        taken: list[SiteSignal] = []
        with self._engine.begin() as connection:
            known_by_key = _by_key(connection, entry.at)
            recent = _RECENT.where(_sent_by(entry.who))
            room = at_most - connection.execute(recent, {"since": entry.at - RECENT_SECONDS}).scalar_one()
            for one in reported:
                known = known_by_key.get((one.source, one.key))
                if known is not None and known.ended_at is not None:
                    continue
                if known is None:
                    room -= 1
                    if room < 0:
                        raise TooManySignals
                    found = _add(connection, one, entry.at, until)
                    append(connection, _about(entry, found))
                else:
                    found = _go_on(connection, known, one, until)
                    if (found.kind, found.targets) != (known.kind, known.targets):
                        append(connection, replace(_about(entry, found), before=_shown(known)))
                known_by_key[one.source, one.key] = found
                taken.append(found)
        return taken

    def resolve(self, keys: Sequence[tuple[str, str]], entry: AuditEntry) -> list[SiteSignal]:
        """Their sender ends those with these sources and keys."""
        with self._engine.begin() as connection:
            known = _by_key(connection, entry.at)
            ended = [replace(known[key], until=entry.at) for key in dict.fromkeys(keys) if key in known]
            for one in ended:
                connection.execute(_RESOLVE, {"this": one.id, "now": entry.at})
                append(connection, _about(entry, one))
        return ended


def end(number: int, connection: Connection, entry: AuditEntry) -> bool:
    """An operator ends it."""
    connection.execute(_END, {"this": number, "now": entry.at})
    return True


def _sent_by(label: str) -> ColumnElement[bool]:
    """Its sources are the label of its token, and what it adds to that."""
    source = _TABLE.c.source
    return or_(source == label, source.startswith(f"{label}/", autoescape=True))


def _about(entry: AuditEntry, signal: SiteSignal) -> AuditEntry:
    return replace(entry, subject=signal_subject(signal.id), reason=signal.words, after=_shown(signal))


def _shown(signal: SiteSignal) -> dict[str, Json]:
    return {"kind": signal.kind.value, "targets": [*signal.targets], "until": signal.until}


def _by_key(connection: Connection, now: float) -> dict[tuple[str, str], SiteSignal]:
    """Those that operators have ended included."""
    return {(row.source, row.key): _signal(row) for row in connection.execute(_KNOWN, {"now": now})}


def _add(connection: Connection, one: ReportedSignal, at: float, until: float) -> SiteSignal:
    values = {
        "source": one.source,
        "key": one.key,
        "kind": one.kind.value,
        "targets": [*one.targets],
        "summary": one.summary,
        "at": at,
        "until": until,
    }
    return _signal(connection.execute(insert(_TABLE).values(values).returning(_TABLE)).one())


def _go_on(connection: Connection, known: SiteSignal, one: ReportedSignal, until: float) -> SiteSignal:
    values = {"this": known.id, "new_kind": one.kind.value, "new_targets": [*one.targets]}
    connection.execute(_GOES_ON, values | {"new_summary": one.summary, "new_until": until})
    return SiteSignal(one.source, one.key, one.kind, one.targets, one.summary, known.id, known.at, until)


def _signal(row: Row[Any]) -> SiteSignal:
    return SiteSignal(
        source=row.source,
        key=row.key,
        kind=SignalKind(row.kind),
        targets=tuple(row.targets),
        summary=row.summary,
        id=row.id,
        at=row.at,
        until=row.until,
        ended_at=row.ended_at,
    )
