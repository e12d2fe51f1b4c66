"""Queries of the routes to read: rows as plain dictionaries, ready to be shown."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, false, func, or_, select, tuple_

from understudy_controlplane.fleet.decision import HELD_FOR_PEOPLE, Action, HeldDecision
from understudy_controlplane.fleet.history import AttemptProgress
from understudy_controlplane.fleet.job import Attempt, Checkpoint, JobKey, StoredAnomaly, suspicion
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import CheckpointStore, is_complete
from understudy_controlplane.store.database import ID_MAX, begins, has, reading
from understudy_controlplane.store.launches import RESTORED_STEP

Record = dict[str, Any]

ANSWERED_AS = {
    RecoveryStatus.APPROVED.value: True,
    RecoveryStatus.SUPERSEDED.value: True,
    RecoveryStatus.OVERTAKEN.value: True,
    RecoveryStatus.CANCELLED.value: False,
}
"""True if a proposal with this status was approved. One that expired was not answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Filter of jobs. In this and the next classes, None admits all."""

    state: str | None = None
    managed: bool | None = None
    user: str | None = None
    job_id: int | None = None
    user_id: int | None = None
    text: str | None = None  # part of the job's name or user's name, or the beginning of its id


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentFilter:
    open: bool | None = None
    subject: str | None = None
    rule: str | None = None
    id: int | None = None
    text: str | None = None  # part of its subject, rule or summary


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFilter:
    since: float | None = None
    until: float | None = None
    subject: str | None = None
    action: str | None = None
    id: int | None = None
    recoveries: tuple[int, ...] | None = None  # that it began or belongs to
    incident: int | None = None


ALL_JOBS, ALL_INCIDENTS, ALL_DECISIONS = JobFilter(), IncidentFilter(), DecisionFilter()


_JOB_SUBJECT = re.compile(r"(.*)/(\d+)@(\d+)")
"""`JobKey` as the subject of a gang's incident names it."""
BEFORE_INCIDENT_SECONDS = 600.0
"""What ranks showed this long before an incident's fault was noticed may be about it."""


class Queries:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def alive(self) -> None:
        """Raises sqlalchemy.exc.SQLAlchemyError when the database does not answer."""
        with reading(self._engine) as connection:
            connection.execute(select(1))

    def jobs(self, limit: int, before: int = ID_MAX, only: JobFilter = ALL_JOBS) -> list[Record]:
        """Newest first, each with its attempts."""
        table = tables.job
        query = select(table)
        for column, value in (
            (table.c.job_id, only.job_id),
            (table.c.state, only.state),
            (table.c.managed, only.managed),
            (table.c.user, only.user),
            (table.c.user_id, only.user_id),
        ):
            query = query if value is None else query.where(column == value)
        if only.text is not None:
            query = query.where(or_(has(only.text, table.c.name, table.c.user), begins(only.text, table.c.job_id)))
        with reading(self._engine) as connection:
            jobs = [dict(row) for row in connection.execute(_page(query, table.c.id, limit, before)).mappings()]
            ids = [job["id"] for job in jobs]
            attempt = tables.attempt
            attempts: dict[int, list[Record]] = {}
            query = select(attempt).where(attempt.c.job.in_(ids)).order_by(attempt.c.restart_count, attempt.c.launch)
            for row in connection.execute(query).mappings():
                shown = {key: value for key, value in row.items() if key not in ("id", "job")}
                attempts.setdefault(row["job"], []).append(shown)
            launches = self._launches(connection, ids)
        for job in jobs:
            job["attempts"] = attempts.get(job["id"], [])
            job["launches"] = launches.get(job["id"], [])
        return jobs

    @staticmethod
    def _launches(connection: Connection, jobs: list[int]) -> dict[int, list[Record]]:
        """Job row → its launches as launchers reported them: each launch once, with its seats, and how it ended. A user
        can report many beginnings and ends of one launch: the first beginning and the last end count.
        """
        start, end = tables.launch_start, tables.launch_end
        key = ("job", "restart_count", "launch")
        columns = (*(start.c[name] for name in key), start.c.seats, start.c.spares, start.c.at)
        begun = (
            select(*columns).where(start.c.job.in_(jobs)).order_by(start.c.restart_count, start.c.launch, start.c.at)
        )
        ended = (end.c.table_row, end.c.cause, end.c.reason, end.c.progressed, end.c.at.label("ended_at"))
        over = select(*(end.c[name] for name in key), *ended).where(end.c.job.in_(jobs)).order_by(end.c.at)
        ends = {(row.job, row.restart_count, row.launch): row for row in connection.execute(over)}
        launches: dict[tuple[int, int, int], Record] = {}
        for row in connection.execute(begun):
            launch = (row.job, row.restart_count, row.launch)
            if launch not in launches:
                how = ends.get(launch)
                shown = {column.name: None if how is None else getattr(how, column.name) for column in ended}
                names = ("restart_count", "launch", "seats", "spares", "at")
                launches[launch] = {name: getattr(row, name) for name in names} | shown
        found: dict[int, list[Record]] = {}
        for (job, _, _), shown in launches.items():
            found.setdefault(job, []).append(shown)
        return found

    def incidents(self, limit: int, before: int = ID_MAX, only: IncidentFilter = ALL_INCIDENTS) -> list[Record]:
        """Newest first, each with what else was found while it was open."""
        incident, more = tables.incident, tables.incident_finding
        query = select(incident)
        if only.open is not None:
            closed = incident.c.closed_at
            query = query.where(closed.is_(None) if only.open else closed.is_not(None))
        if only.subject is not None:
            query = query.where(incident.c.subject == only.subject)
        if only.rule is not None:
            query = query.where(incident.c.rule == only.rule)
        if only.id is not None:
            query = query.where(incident.c.id == only.id)
        if only.text is not None:
            query = query.where(has(only.text, incident.c.subject, incident.c.rule, incident.c.summary))
        with reading(self._engine) as connection:
            rows = [dict(row) for row in connection.execute(_page(query, incident.c.id, limit, before)).mappings()]
            found = [
                dict(row)
                for row in connection.execute(
                    select(more).where(more.c.incident.in_([row["id"] for row in rows])).order_by(more.c.id)
                ).mappings()
            ]
        for row in rows:
            row["findings"] = [
                {key: one[key] for key in ("rule", "signal", "summary", "evidence", "at")}
                for one in found
                if one["incident"] == row["id"]
            ]
        return rows

    def newest_incidents(self, nodes: Collection[str]) -> dict[str, Record]:
        """The last incident of each of these nodes that ever had one."""
        incident = tables.incident
        of_nodes = (incident.c.subject_kind == SubjectKind.NODE.value) & incident.c.subject.in_(nodes)
        last = select(func.max(incident.c.id)).where(of_nodes).group_by(incident.c.subject)
        columns = (incident.c[name] for name in ("id", "subject", "rule", "summary", "opened_at", "closed_at"))
        with reading(self._engine) as connection:
            rows = connection.execute(select(*columns).where(incident.c.id.in_(last))).mappings()
            return {row["subject"]: dict(row) for row in rows}

    def evidence(self, limit: int, only: JobFilter, incident: int | None = None) -> list[Record]:
        """What the ranks of launches showed before they were ended, newest first. `only`: by job id and user id.
        `incident`: of the jobs that it concerned, while it was open and shortly before.
        """
        table, job = tables.launch_evidence, tables.job
        columns = (table.c[name] for name in ("restart_count", "launch", "kind", "at", "summary", "text"))
        query = (
            select(job.c.cluster, job.c.job_id, job.c.submit_at, job.c.user_id, *columns)
            .join(job, job.c.id == table.c.job)
            .order_by(table.c.id.desc())
            .limit(limit)
        )
        for column, value in ((job.c.job_id, only.job_id), (job.c.user_id, only.user_id)):
            query = query if value is None else query.where(column == value)
        with reading(self._engine) as connection:
            if incident is not None:
                query = query.where(_during_incident(connection, incident))
            return [dict(row) for row in connection.execute(query).mappings()]

    def decisions(self, limit: int, before: int = ID_MAX, only: DecisionFilter = ALL_DECISIONS) -> list[Record]:
        table = tables.decision
        query = select(table)
        if only.since is not None:
            query = query.where(table.c.at >= only.since)
        if only.until is not None:
            query = query.where(table.c.at < only.until)
        if only.recoveries is not None:
            query = query.where(table.c.recovery.in_(only.recoveries))
        for column, value in (
            (table.c.id, only.id),
            (table.c.subject, only.subject),
            (table.c.action, only.action),
            (table.c.incident, only.incident),
        ):
            query = query if value is None else query.where(column == value)
        with reading(self._engine) as connection:
            rows = connection.execute(_page(query, table.c.id, limit, before)).mappings()
            return [{key: value for key, value in row.items() if key != "key"} for row in rows]

    def held_decisions(self, since: float, until: float | None = None) -> list[HeldDecision]:
        """Those that would have acted: held back by the mode, by `observe_rules`, or until they are approved. Without
        `until` to the newest.
        """
        decision, recovery = tables.decision, tables.recovery
        query = (
            select(decision.c.id, decision.c.at, decision.c.subject, decision.c.rule, recovery.c.status)
            .select_from(decision.outerjoin(recovery, recovery.c.id == decision.c.recovery))
            .where(
                decision.c.action == Action.NOTHING.value,
                decision.c.at >= since,
                decision.c.because.in_([one.value for one in HELD_FOR_PEOPLE]),
                *([] if until is None else [decision.c.at < until]),
            )
            .order_by(decision.c.at, decision.c.id)
        )
        with reading(self._engine) as connection:
            return [
                HeldDecision(row.id, row.at, row.subject, row.rule, ANSWERED_AS.get(row.status))
                for row in connection.execute(query)
            ]

    def administrators_drains(self, since: float) -> dict[str, list[float]]:
        """Node → when an administrator took it out of service in Slurm."""
        decision, found = tables.decision, dict[str, list[float]]()
        query = select(decision.c.subject, decision.c.at).where(
            decision.c.to_state == NodeState.FOREIGN_DRAIN.value, decision.c.at >= since
        )
        with reading(self._engine) as connection:
            for row in connection.execute(query):
                found.setdefault(row.subject, []).append(row.at)
        return found

    def checkpoints(
        self, limit: int, before_at: float = inf, before_number: int = ID_MAX, only: JobFilter = ALL_JOBS
    ) -> list[Record]:
        """Newest first, complete or not, with the number of shards that are in, and what speaks against them.
        `only`: by job id and user id.

        `number` distinguishes those of the same time.
        """
        table, job = tables.checkpoint, tables.job
        at, number = table.c.at, table.c.id
        columns = (table.c[name] for name in ("restart_count", "launch", "step", "path", "world_size"))
        query = (
            select(
                job.c.cluster,
                job.c.job_id,
                job.c.submit_at,
                *columns,
                table.c.shards,
                table.c.size_bytes,
                at,
                number.label("number"),
                is_complete().label("complete"),
            )
            .join(job, job.c.id == table.c.job)
            .where(tuple_(at, number) < tuple_(before_at, before_number))
            .order_by(at.desc(), number.desc())
            .limit(limit)
        )
        for column, value in ((job.c.job_id, only.job_id), (job.c.user_id, only.user_id)):
            query = query if value is None else query.where(column == value)
        with reading(self._engine) as connection:
            rows: list[Record] = [dict(row) for row in connection.execute(query).mappings()]
        anomalies: dict[JobKey, list[StoredAnomaly]] = {}
        keys = {JobKey(row["cluster"], row["job_id"], row["submit_at"]) for row in rows}
        for one in CheckpointStore(self._engine).anomalies(keys):
            anomalies.setdefault(one.job, []).append(one)
        for row in rows:
            key = JobKey(row["cluster"], row["job_id"], row["submit_at"])
            attempt = Attempt(row["restart_count"], row["launch"])
            written = Checkpoint(key, row["step"], row["path"], row["world_size"], row["at"], attempt)
            row["suspect"] = suspicion(written, anomalies.get(key, ()))
        return rows

    def progress(self, job_rows: list[int]) -> dict[int, list[AttemptProgress]]:
        """Row of a job → its attempts that finished at least one step, in order."""
        attempt, first = tables.attempt, tables.first_step
        query = (
            select(
                attempt.c.job,
                attempt.c.running_at,
                func.min(first.c.step).label("first_step"),
                func.max(first.c.at).label("first_step_at"),
                attempt.c.last_step,
                attempt.c.last_step_at,
                attempt.c.count_from,
            )
            .join(
                first,
                and_(
                    first.c.job == attempt.c.job,
                    first.c.restart_count == attempt.c.restart_count,
                    first.c.launch == attempt.c.launch,
                ),
            )
            .where(attempt.c.job.in_(job_rows), attempt.c.last_step.is_not(None), attempt.c.running_at.is_not(None))
            .group_by(attempt.c.id)
            .order_by(attempt.c.restart_count, attempt.c.launch)
        )
        found: dict[int, list[AttemptProgress]] = {}
        with reading(self._engine) as connection:
            for job, *values in connection.execute(query):
                found.setdefault(job, []).append(AttemptProgress(*values))
        return found

    def last_step(self, job_row: int, restart_count: int, launch: int | None = None) -> tuple[int | None, int]:
        """The furthest of all launches, or of those up to `launch`, and what it is counted from."""
        table = tables.attempt
        of_attempt = (table.c.job == job_row) & (table.c.restart_count == restart_count)
        query = select(func.max(table.c.last_step), func.max(table.c.count_from)).where(of_attempt)
        query = query if launch is None else query.where(table.c.launch <= launch)
        with reading(self._engine) as connection:
            furthest, count_from = connection.execute(query).one()
            return furthest, count_from or 0

    def restored_step(self, job_row: int, attempt: Attempt) -> int | None:
        """Step with which the attempt's gang went on; None: not known yet."""
        values = {"of": job_row, "restarts": attempt.restart_count, "launch": attempt.launch}
        with reading(self._engine) as connection:
            return connection.execute(RESTORED_STEP, values).scalar()

    def job_row(self, job_id: int, submit_at: int) -> int | None:
        table = tables.job
        query = select(table.c.id).where(table.c.job_id == job_id, table.c.submit_at == submit_at)
        with reading(self._engine) as connection:
            return connection.execute(query).scalar()


def _during_incident(connection: Connection, number: int) -> ColumnElement[bool]:
    """Selects `launch_evidence` joined with `job` during an incident."""
    incident, decision, recovery, table = tables.incident, tables.decision, tables.recovery, tables.launch_evidence
    found = connection.execute(select(incident).where(incident.c.id == number)).first()
    if found is None:
        return false()
    recovered = (
        select(recovery.c.job)
        .join(decision, decision.c.recovery == recovery.c.id)
        .where(decision.c.incident == number, recovery.c.job.is_not(None))
    )
    jobs = set(connection.execute(recovered).scalars())
    named = _JOB_SUBJECT.fullmatch(found.subject) if found.subject_kind == SubjectKind.GANG.value else None
    if named is not None:
        key = {"cluster": named[1], "job_id": int(named[2]), "submit_at": int(named[3])}
        of_key = select(tables.job.c.id).where(*(tables.job.c[name] == value for name, value in key.items()))
        jobs |= set(connection.execute(of_key).scalars())
    until = inf if found.closed_at is None else found.closed_at
    during = table.c.received_at.between(found.fault_at - BEFORE_INCIDENT_SECONDS, until)
    return and_(table.c.job.in_(jobs), during)


def _page(query: Select[Any], number: ColumnElement[int], limit: int, before: int) -> Select[Any]:
    return query.where(number < before).order_by(number.desc()).limit(limit)
