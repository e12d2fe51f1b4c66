"""Nodes, jobs and attempts."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    Table,
    and_,
    bindparam,
    case,
    func,
    or_,
    select,
    true,
    update,
)

from understudy_controlplane.fleet.job import (
    NO_RUN,
    Attempt,
    Job,
    JobKey,
    KnownJob,
    LastAttempt,
    Reached,
    RestoreAnswer,
    RestoreDecision,
    RunJob,
    TrainingRun,
    checkpoint_folders,
)
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeRecord, NodeState
from understudy_controlplane.fleet.run_attempts import INPUTS, RunAttempt
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Columns, insert_new, insert_or_update, reading
from understudy_controlplane.store.node_records import read_records
from understudy_wire.places import Place

IDS_AT_ONCE = 10_000
"""Ids in one query: SQLite takes 32,766 parameters."""

NO_JOBS: Mapping[int, int] = {}

_OUT_OF_SERVICE = [state.value for state in OUT_OF_SERVICE]
_NODES = select(tables.node)
_NODES_IN = _NODES.where(tables.node.c.state.in_(bindparam("states", expanding=True)))
_NODES_NAMED = _NODES.where(tables.node.c.name.in_(bindparam("names", expanding=True)))
_SLURMDS_SEEN = select(tables.node.c.name).where(tables.node.c.slurmd_seen_at.is_not(None))
_IS_ONE_OF = tables.node.c.name.in_(bindparam("of_names", expanding=True))
_WRITE = update(tables.node).where(tables.node.c.name == bindparam("of_node"))
_SEEN = update(tables.node).where(_IS_ONE_OF)
_AGENT_SEEN = _SEEN.values(agent_seen_at=bindparam("seen_at"))
_AGENT_FIRST_SEEN = (
    update(tables.node)
    .where(tables.node.c.name == bindparam("of_node"), tables.node.c.agent_seen_at.is_(None))
    .values(agent_since=bindparam("first_started_at"))
)
_SLURMD_SEEN = _SEEN.values(slurmd_seen_at=bindparam("seen_at"))
_OPEN_ATTEMPTS = select(
    tables.attempt.c.id, tables.attempt.c.job, tables.attempt.c.restart_count, tables.attempt.c.launch
).where(tables.attempt.c.running_at.is_not(None), tables.attempt.c.ended_at.is_(None))
_KNOWN = ("id", "job_id", "submit_at", "restart_count", "user_id", "managed", "seen_at", "state")
_JOBS_OF_IDS = (
    select(*(tables.job.c[name] for name in _KNOWN))
    .where(tables.job.c.cluster == bindparam("of_cluster"), tables.job.c.job_id.in_(bindparam("ids", expanding=True)))
    .order_by(tables.job.c.id)
)
_ROWS_OF_IDS = select(*(tables.job.c[name] for name in (*JobKey._fields, "id"))).where(
    tables.job.c.cluster == bindparam("of_cluster"), tables.job.c.job_id.in_(bindparam("ids", expanding=True))
)
_OF_SLURM = ("user", "user_id", "name", "account", "partition", "state", "restart_count")
"""Columns that have the names of a `SlurmJob`'s fields."""
_IS_ATTEMPT = (
    (tables.attempt.c.job == bindparam("of_job"))
    & (tables.attempt.c.restart_count == bindparam("of_count"))
    & (tables.attempt.c.launch == bindparam("of_launch"))
)
_NOTE_PROGRESS = update(tables.attempt).where(_IS_ATTEMPT)
_PROGRESSED = (
    select(tables.attempt.c.job)
    .where(tables.attempt.c.job.in_(bindparam("jobs", expanding=True)), tables.attempt.c.last_step.is_not(None))
    .distinct()
)
_PLACES = (
    select(
        tables.attempt.c.job,
        tables.attempt.c.restart_count,
        tables.attempt.c.launch,
        tables.attempt.c.last_step,
        tables.attempt.c.count_from,
    )
    .where(tables.attempt.c.job.in_(bindparam("jobs", expanding=True)), tables.attempt.c.last_step.is_not(None))
    .order_by(tables.attempt.c.restart_count, tables.attempt.c.launch)
)
_LAST_ATTEMPTS = (
    select(
        tables.attempt.c.job,
        tables.attempt.c.restart_count,
        tables.attempt.c.nodes,
        tables.attempt.c.last_step,
        tables.attempt.c.count_from,
        tables.attempt.c.ended_at,
    )
    .where(tables.attempt.c.job.in_(bindparam("jobs", expanding=True)), tables.attempt.c.running_at.is_not(None))
    .order_by(tables.attempt.c.restart_count.desc(), tables.attempt.c.launch)
)
_NOTE_RUNNING = update(tables.attempt).where(_IS_ATTEMPT, tables.attempt.c.running_at.is_(None))
_RESTORE_POINT = select(tables.attempt).where(_IS_ATTEMPT)
_FIX_RESTORE_POINT = update(tables.attempt).where(_IS_ATTEMPT, tables.attempt.c.restore_answer.is_(None))


OF_ATTEMPT = ("job", *Attempt._fields)

STILL_RUNS = 1e18
"""Instead of the end of an attempt that has none."""


def _decision(decision: RestoreDecision, now: float) -> dict[str, Any]:
    return {
        "restore_answer": decision.answer.value,
        "restore_step": None if decision.answer is RestoreAnswer.UNKNOWN else decision.step,
        "restore_path": decision.path,
        "restore_at": now,
        "restore_why": decision.why,
    }


def _restore_point(row: Row[Any]) -> RestoreDecision:
    answer = RestoreAnswer(row.restore_answer)
    return RestoreDecision(answer, row.restore_step or 0, row.restore_path, row.restore_why)


def _run_jobs() -> Select[Any]:
    job, own, attempt = tables.job, tables.job.alias(), tables.attempt
    same = and_(*(job.c[name] == own.c[name] for name in ("run_name", "user_id", "cluster", "run_folder")))
    return (
        select(
            job.c.id,
            job.c.cluster,
            job.c.job_id,
            job.c.submit_at,
            job.c.run_name,
            job.c.run_folder,
            job.c.state,
            job.c.run_arguments,
            func.min(attempt.c.running_at),
            func.max(func.coalesce(attempt.c.ended_at, case((attempt.c.running_at.is_(None), 0.0), else_=STILL_RUNS))),
        )
        .join(own, same)
        .join(attempt, attempt.c.job == job.c.id)
        .where(own.c.id == bindparam("of_row"), own.c.run_name != "")
        .group_by(job.c.id)
    )


_RUN_JOBS = _run_jobs()


class FleetStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def nodes(self) -> dict[str, NodeRecord]:
        """All records, read now. The loop has them in memory (`KeptNodes`)."""
        with reading(self._engine) as connection:
            return {one.name: one for one in read_records(connection, _NODES)}

    def nodes_named(self, names: Iterable[str]) -> dict[str, NodeRecord]:
        """Those of them that are written down."""
        with reading(self._engine) as connection:
            return {one.name: one for one in read_records(connection, _NODES_NAMED, {"names": [*names]})}

    def slurmds_seen(self) -> frozenset[str]:
        """Nodes whose slurmd has answered once."""
        with reading(self._engine) as connection:
            return frozenset(connection.execute(_SLURMDS_SEEN).scalars())

    def nodes_in(self, states: Iterable[NodeState]) -> list[NodeRecord]:
        values = {"states": [state.value for state in states]}
        with reading(self._engine) as connection:
            return read_records(connection, _NODES_IN, values)

    def add_nodes(self, names: Iterable[str], now: float) -> None:
        """New nodes are in service until something is known against them."""
        rows = [
            {
                "name": name,
                "state": NodeState.IN_SERVICE.value,
                "since": now,
                "table_row": 0,
                "cleared_at": 0.0,
                "drain_reason": "",
            }
            for name in names
        ]
        with self._engine.begin() as connection:
            insert_new(connection, tables.node, rows)

    def note_seen(
        self, agents: Iterable[str], slurmds: Iterable[str], now: float, first: Mapping[str, float | None]
    ) -> None:
        """These nodes' agents were heard just now, and these nodes' slurmds answered. `first`: when the agents started
        that were never heard before.
        """
        with self._engine.begin() as connection:
            if first:
                rows = [{"of_node": name, "first_started_at": since} for name, since in first.items()]
                connection.execute(_AGENT_FIRST_SEEN, rows)
            for seen, names in ((_AGENT_SEEN, [*agents]), (_SLURMD_SEEN, [*slurmds])):
                if names:
                    connection.execute(seen, {"of_names": names, "seen_at": now})

    def drained(self, node: SlurmNode, at: float) -> None:
        """The node was read back from Slurm, out of service. What was read first stands, but see `owned`."""
        self._write_drain(node, at, tables.node.c.drained_at.is_(None))

    def owned(self, node: SlurmNode, at: float) -> None:
        """A reason that the control plane has just set was read back from Slurm, which renews its time each time."""
        self._write_drain(node, at, true())

    def settled(self, node: str) -> None:
        """The drain is old enough that no crash of slurmctld loses it."""
        with self._engine.begin() as connection:
            connection.execute(_WRITE.values(drain_settled=True), {"of_node": node})

    def shown_by(self, node: str, slurmctld_started_at: float) -> None:
        """The slurmctld that was started then has shown the drain."""
        with self._engine.begin() as connection:
            connection.execute(_WRITE.values(drained_under=slurmctld_started_at), {"of_node": node})

    def _write_drain(self, node: SlurmNode, at: float, condition: ColumnElement[bool]) -> None:
        with self._engine.begin() as connection:
            connection.execute(
                _WRITE.where(tables.node.c.state.in_(_OUT_OF_SERVICE), condition).values(
                    drained_at=at,
                    drain_reason=node.reason,
                    drain_user=node.reason_user,
                    drain_reason_at=node.reason_at,
                    drain_settled=False,
                ),
                {"of_node": node.name},
            )

    def known_jobs(self, cluster: str, job_ids: Collection[int]) -> dict[int, KnownJob]:
        """The latest job of each of these Slurm ids, where there is one."""
        found: dict[int, KnownJob] = {}
        ids = list(job_ids)
        with reading(self._engine) as connection:
            for first in range(0, len(ids), IDS_AT_ONCE):
                some = {"of_cluster": cluster, "ids": ids[first : first + IDS_AT_ONCE]}
                for row, job_id, submit_at, *more in connection.execute(_JOBS_OF_IDS, some):
                    found[job_id] = KnownJob(row, JobKey(cluster, job_id, submit_at), *more)
        return found

    def see_jobs(self, jobs: Iterable[Job], now: float) -> list[KnownJob]:
        """Write down jobs as Slurm shows them now, and the attempts of those that run, in one transaction."""
        seen = list(jobs)
        if not seen:
            return []
        with self._engine.begin() as connection:
            insert_or_update(connection, tables.job, JobKey._fields, [_shown(job, now) for job in seen], _as_shown)
            rows = _rows_of(connection, seen)
            attempts = [_attempt(rows[job.key], job, now) for job in seen if job.running]
            if attempts:
                insert_or_update(connection, tables.attempt, OF_ATTEMPT, attempts, _as_running)
        return [
            KnownJob(
                rows[job.key],
                job.key,
                job.slurm.restart_count,
                job.slurm.user_id,
                job.managed,
                now,
                job.slurm.state,
                checkpoint_folders(job.slurm.comment),
            )
            for job in seen
        ]

    def end_attempts(self, running: Mapping[int, Attempt], now: float, unheard: Mapping[int, int] = NO_JOBS) -> None:
        """Close open attempts that run no more. `running` maps job rows to their latest one; `unheard` those of which
        no rank has reported yet to their restart count: which of its launches runs is not known.
        """
        table = tables.attempt
        with reading(self._engine) as connection:
            over = [
                row.id
                for row in connection.execute(_OPEN_ATTEMPTS)
                if running.get(row.job) != Attempt(row.restart_count, row.launch)
                and unheard.get(row.job) != row.restart_count
            ]
        if over:
            with self._engine.begin() as connection:
                connection.execute(update(table).where(table.c.id.in_(over)).values(ended_at=now))

    def see_launches(self, launches: Mapping[int, Attempt], now: float) -> None:
        """Job row → a launch within its allocation that was heard of for the first time."""
        rows = [
            {"job": job, **attempt._asdict(), "nodes": [], "running_at": now, "restore_path": ""}
            for job, attempt in launches.items()
        ]
        table = tables.attempt
        with self._engine.begin() as connection:
            insert_new(connection, table, rows)
            # Those that asked for their restore point before.
            asked = [{**_this(job, attempt), "running_at": now} for job, attempt in launches.items()]
            connection.execute(_NOTE_RUNNING, asked)

    def have_progressed(self, job_rows: Collection[int]) -> set[int]:
        """Those of these jobs (rows) that have finished a step in any attempt."""
        found: set[int] = set()
        ids = list(job_rows)
        with reading(self._engine) as connection:
            for first in range(0, len(ids), IDS_AT_ONCE):
                found.update(connection.execute(_PROGRESSED, {"jobs": ids[first : first + IDS_AT_ONCE]}).scalars())
        return found

    def last_attempts(self, newest: Mapping[int, int]) -> dict[int, LastAttempt]:
        """Last attempt of each of these jobs that was seen to run, if not after the newest one: job row → its restart
        count. A launcher's launches belong to their allocation.
        """
        found: dict[int, LastAttempt] = {}
        ids = list(newest)
        with reading(self._engine) as connection:
            for first in range(0, len(ids), IDS_AT_ONCE):
                for row in connection.execute(_LAST_ATTEMPTS, {"jobs": ids[first : first + IDS_AT_ONCE]}):
                    if row.restart_count > newest[row.job]:
                        continue
                    last = found.setdefault(row.job, LastAttempt(row.restart_count, tuple(row.nodes)))
                    if row.restart_count != last.restart_count:
                        continue
                    last = found[row.job] = replace(last, ended_at=row.ended_at)  # of its last launch
                    if row.last_step is not None:
                        step, count_from = max(row.last_step, last.last_step or 0), max(row.count_from, last.count_from)
                        found[row.job] = replace(last, last_step=step, count_from=count_from)
        return found

    def places(self, job_rows: Iterable[int]) -> dict[int, tuple[Attempt, Place]]:
        """Newest attempt of each job (row) that has finished a step, and the place that it reached."""
        found: dict[int, tuple[Attempt, Place]] = {}
        ids = list(job_rows)
        with reading(self._engine) as connection:
            for first in range(0, len(ids), IDS_AT_ONCE):
                for job, restart_count, launch, *place in connection.execute(
                    _PLACES, {"jobs": ids[first : first + IDS_AT_ONCE]}
                ):
                    found[job] = Attempt(restart_count, launch), Place(*place)
        return found

    def note_progress(self, attempts: Mapping[tuple[int, Attempt], Reached]) -> None:
        """Writes progress by job row and attempt, all in one transaction."""
        rows = [
            {**_this(job, attempt), "last_step": one.step, "last_step_at": one.at, "count_from": one.count_from}
            for (job, attempt), one in attempts.items()
        ]
        if not rows:
            return
        with self._engine.begin() as connection:
            connection.execute(_NOTE_PROGRESS, rows)

    def note_run(self, job_row: int, run: TrainingRun) -> None:
        """The job belongs to this run, unless that was known before."""
        with self._engine.begin() as connection:
            note_run(connection, job_row, run)

    def knows_arguments(self, job_row: int) -> bool:
        """True if the arguments of the job's program are known."""
        table = tables.job
        with reading(self._engine) as connection:
            return bool(connection.execute(select(table.c.run_arguments).where(table.c.id == job_row)).scalar())

    def run_jobs(self, job_row: int) -> tuple[TrainingRun, list[RunJob]]:
        """The job's run, and all of its jobs that have started; NO_RUN and none: it is not known."""
        run, jobs = NO_RUN, []
        with reading(self._engine) as connection:
            for (
                row,
                cluster,
                job_id,
                submit_at,
                name,
                folder,
                state,
                arguments,
                began_at,
                ended_at,
            ) in connection.execute(_RUN_JOBS, {"of_row": job_row}):
                run = TrainingRun(name, folder)
                began = inf if began_at is None else began_at
                ended = inf if ended_at == STILL_RUNS else ended_at
                jobs.append(RunJob(row, JobKey(cluster, job_id, submit_at), began, ended, state, arguments))
        return run, jobs

    def run_attempts(self, job_rows: Collection[int], at_most: int) -> list[RunAttempt]:
        """Newest attempts of these jobs whose arguments are known, newest first."""
        job, table = tables.job, tables.attempt
        columns = (job.c.cluster, job.c.job_id, job.c.submit_at, table.c.restart_count, table.c.launch)
        inputs = [table.c[name] for name in INPUTS]
        query = (
            select(*columns, *inputs)
            .join(job, job.c.id == table.c.job)
            .where(table.c.job.in_(list(job_rows)), or_(*(one != "" for one in inputs)))
            .order_by(table.c.id.desc())
            .limit(at_most)
        )
        with reading(self._engine) as connection:
            return [
                RunAttempt(JobKey(cluster, job_id, submit_at), Attempt(restarts, launch), *named)
                for cluster, job_id, submit_at, restarts, launch, *named in connection.execute(query)
            ]

    def restore_point(self, job_row: int, attempt: Attempt) -> RestoreDecision | None:
        """The restore point of this attempt; None: not decided yet."""
        with reading(self._engine) as connection:
            row = connection.execute(_RESTORE_POINT, _this(job_row, attempt)).first()
        if row is None or row.restore_answer is None:
            return None
        return _restore_point(row)

    def last_restore_point(self, job_row: int) -> RestoreDecision | None:
        """Restore point of the job's newest attempt that has a decision."""
        table = tables.attempt
        newest = select(table).where(table.c.job == job_row, table.c.restore_answer.is_not(None))
        with reading(self._engine) as connection:
            newest_first = newest.order_by(table.c.restart_count.desc(), table.c.launch.desc())
            row = connection.execute(newest_first.limit(1)).first()
        return None if row is None else _restore_point(row)

    def record_restore_point(self, job_row: int, attempt: Attempt, decision: RestoreDecision, now: float) -> None:
        """Fix the attempt's restore point. The first one stays: all ranks must get the same."""
        row = {"job": job_row, **attempt._asdict(), "nodes": [], "restore_path": ""}
        fixed = _decision(decision, now)
        with self._engine.begin() as connection:
            insert_new(connection, tables.attempt, [row])
            connection.execute(_FIX_RESTORE_POINT, {**_this(job_row, attempt), **fixed})

    def replace_restore_point(
        self, job_row: int, attempt: Attempt, path: str, decision: RestoreDecision, now: float
    ) -> None:
        """The attempt was to restore the checkpoint at this path, which is not there: another decision."""
        table = tables.attempt
        replaced = update(table).where(_IS_ATTEMPT, table.c.restore_path == bindparam("of_path"))
        with self._engine.begin() as connection:
            connection.execute(replaced, {**_this(job_row, attempt), "of_path": path, **_decision(decision, now)})


def _shown(job: Job, now: float) -> dict[str, Any]:
    of_slurm = {name: getattr(job.slurm, name) for name in _OF_SLURM}
    return job.key._asdict() | of_slurm | {"managed": job.managed, "seen_at": now}


def _as_shown(_stored: Columns, new: Columns) -> dict[str, Any]:
    return {name: new[name] for name in (*_OF_SLURM, "managed", "seen_at")}


def _rows_of(connection: Connection, jobs: Sequence[Job]) -> dict[JobKey, int]:
    """All jobs are of one cluster."""
    cluster, ids = jobs[0].key.cluster, [job.key.job_id for job in jobs]
    return {
        JobKey(*key): row
        for first in range(0, len(ids), IDS_AT_ONCE)
        for *key, row in connection.execute(
            _ROWS_OF_IDS, {"of_cluster": cluster, "ids": ids[first : first + IDS_AT_ONCE]}
        )
    }


def _attempt(job_row: int, job: Job, now: float) -> dict[str, Any]:
    return {
        "job": job_row,
        "restart_count": job.slurm.restart_count,
        "launch": 0,
        "nodes": list(job.slurm.nodes),
        "running_at": now,
        "restore_path": "",
    }


def _as_running(stored: Columns, new: Columns) -> dict[str, Any]:
    """Its nodes and its begin stay as they were first seen."""
    seen = stored.running_at.is_not(None)
    return {name: case((seen, stored[name]), else_=new[name]) for name in ("nodes", "running_at")}


def _this(job_row: int, attempt: Attempt) -> dict[str, Any]:
    """Parameters of _IS_ATTEMPT."""
    return {"of_job": job_row, "of_count": attempt.restart_count, "of_launch": attempt.launch}


def note_run(connection: Connection, job_row: int, run: TrainingRun) -> None:
    """A name that a user gave goes before the job's own."""
    table = tables.job
    unknown = table.c.run_name == "" if run.folder else or_(table.c.run_name == "", table.c.run_folder != "")
    if run.name:
        values = {"run_name": run.name, "run_folder": run.folder}
        connection.execute(update(table).where(table.c.id == job_row, unknown).values(values))
    if run.arguments:
        unknown = table.c.run_arguments == ""
        connection.execute(update(table).where(table.c.id == job_row, unknown).values(run_arguments=run.arguments))


IS_JOB = and_(*(tables.job.c[name] == bindparam(f"of_{name}") for name in JobKey._fields))
"""Selects the row of the table `job` that `of_job` names."""


def of_job(key: JobKey) -> dict[str, Any]:
    """Values for IS_JOB."""
    return {f"of_{name}": value for name, value in key._asdict().items()}


@functools.cache
def rows_of_job(table: Table) -> Select[Any]:
    """Statement for the rows of a table about IS_JOB. Building it takes several times as long as executing it."""
    return select(table).join(tables.job, tables.job.c.id == table.c.job).where(IS_JOB)
