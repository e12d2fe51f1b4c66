"""Maintenance of nodes, and the requests by which it is carried out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Engine, Row, bindparam, insert, select, update

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.maintenance import Maintenance, Next, Stage, maintenance_subject
from understudy_controlplane.fleet.operator import Verb, job_subject
from understudy_controlplane.store import tables
from understudy_controlplane.store.audit import append
from understudy_controlplane.store.database import reading
from understudy_controlplane.store.requests import answer, ask, waits_of_others

_TABLE = tables.maintenance
_OPEN = select(_TABLE).where(_TABLE.c.closed_at.is_(None))
_THIS = update(_TABLE).where(_TABLE.c.id == bindparam("this"))


class MaintenanceStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_ones(self) -> tuple[Maintenance, ...]:
        with reading(self._engine) as connection:
            found = [_maintenance(row) for row in connection.execute(_OPEN)]
        return tuple(sorted(found, key=lambda one: one.id))

    def begin(self, planned: Maintenance, entry: AuditEntry) -> int:
        """Its number."""
        values = {
            "targets": [*planned.targets],
            "nodes": [*planned.nodes],
            "reason": planned.reason,
            "by": planned.by,
            "at": planned.at,
            "until": planned.until,
            "at_once": planned.at_once,
            "paused": False,
            "stages": {},
        }
        with self._engine.begin() as connection:
            number: int = connection.execute(insert(_TABLE).values(values).returning(_TABLE.c.id)).scalar_one()
            subject = maintenance_subject(number)
            ask(connection, Verb.START_MAINTENANCE, subject, entry.reason, entry.who, entry.at)
            append(connection, replace(entry, subject=subject))
        return number

    def proceed(self, maintenance: Maintenance, due: Next, now: float) -> None:
        """Stages and requests in one transaction. What a person has asked of a node since counts, not its release."""
        of_this = (maintenance.words, maintenance.by, now)
        with self._engine.begin() as connection:
            if due.releases or due.is_over:
                _withdraw_moves(connection, maintenance, now)
            for name in due.holds:
                ask(connection, Verb.HOLD, name, *of_this)
            wanted_otherwise = waits_of_others(connection, due.releases, maintenance.words)
            for name in (one for one in due.releases if one not in wanted_otherwise):
                ask(connection, Verb.RELEASE, name, *of_this)
            if due.move is not None:
                key, off = due.move
                detail = {"off": [*off], "at_checkpoint": True, "submit_at": key.submit_at}
                ask(connection, Verb.MOVE_JOB, job_subject(key.job_id), *of_this, detail=detail)
            values = {"stages": {name: stage.value for name, stage in due.stages.items()}}
            closed_at = now if due.is_over else None
            connection.execute(_THIS.values(closed_at=closed_at, **values), {"this": maintenance.id})


def set_paused(maintenance: Maintenance, paused: bool, connection: Connection, entry: AuditEntry) -> bool:
    connection.execute(_THIS.values(paused=paused), {"this": maintenance.id})
    _withdraw_moves(connection, maintenance, entry.at)
    return True


def end(maintenance: Maintenance, connection: Connection, entry: AuditEntry) -> bool:
    """Its nodes return."""
    connection.execute(_THIS.values(ended_at=entry.at), {"this": maintenance.id})
    _withdraw_moves(connection, maintenance, entry.at)
    return True


def _withdraw_moves(connection: Connection, maintenance: Maintenance, now: float) -> None:
    """Those that wait for a checkpoint are not wanted any more; after a pause they are asked for again."""
    answer(connection, now, verb=Verb.MOVE_JOB.value, reason=maintenance.words)


def _maintenance(row: Row[Any]) -> Maintenance:
    return Maintenance(
        id=row.id,
        targets=tuple(row.targets),
        nodes=tuple(row.nodes),
        reason=row.reason,
        by=row.by,
        at=row.at,
        until=row.until,
        at_once=row.at_once,
        paused=row.paused,
        ended_at=row.ended_at,
        stages={name: Stage(stage) for name, stage in row.stages.items()},
    )
