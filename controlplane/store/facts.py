"""Facts from agents: stored once each, however often they arrive."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, Table, and_, delete, func, insert, select

from agents.wire import (
    Anomaly,
    AnomalyKind,
    CheckpointShard,
    Fact,
    FirstStep,
    HardwareEvent,
    HardwareKind,
    JobFact,
    JobRefused,
    KernelEvent,
    LaunchCause,
    LaunchEnded,
    LaunchStarted,
    RankStarted,
)
from controlplane.fleet.gang import BlackHole, Gang, Spent
from controlplane.fleet.job import (
    Attempt,
    Checkpoint,
    FirstNan,
    JobKey,
    JobThere,
    KnownJob,
    Refusal,
    StoredAnomaly,
)
from controlplane.fleet.lemon import LemonSignals
from controlplane.fleet.node import Generation, StoredHardwareEvent, StoredKernelEvent
from controlplane.store import tables
from controlplane.store.database import insert_new, reading
from controlplane.store.fleet import is_job
from controlplane.store.lemons import lemon_signals

JOB_FACT_TABLES: dict[type, Table] = {
    RankStarted: tables.rank_start,
    FirstStep: tables.first_step,
    CheckpointShard: tables.checkpoint_shard,
    Anomaly: tables.anomaly,
    LaunchStarted: tables.launch_start,
    LaunchEnded: tables.launch_end,
}

GOES_ON = -1
"""`anomaly.until` where it is not over."""

UNKNOWN = Generation()

NAN_KINDS = (AnomalyKind.LOSS_NAN, AnomalyKind.GRAD_NORM_NAN)


WAITING_SECONDS_MAX = 3600.0
"""A fact about a job that Slurm does not name within this is about no job."""

WAITING_AT_ONCE = 10_000

REFUSALS_AT_ONCE = 1000


class FactStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(
        self,
        node: str,
        facts: Iterable[Fact],
        now: float,
        known_job: Callable[[int], KnownJob | None],
        jobs_at: Callable[[float], Sequence[JobThere]] = lambda _: (),
        generation: Generation = UNKNOWN,
    ) -> list[str]:
        """One transaction: all of them or, with an exception, none. Returns what was not believed, in words.

        `jobs_at` tells which jobs were on the node at a time, `generation` which machine it is now.
        """
        dropped: list[str] = []
        seen = {"node": node, "received_at": now}
        machine = seen | {"driver_version": generation.driver_version, "gpu_set": generation.gpu_set}
        with self._engine.begin() as connection:
            for fact in facts:
                if isinstance(fact, KernelEvent):
                    jobs = [list(job) for job in jobs_at(fact.at)]
                    row = msgspec.structs.asdict(fact) | machine | {"jobs": jobs}
                    insert_new(connection, tables.kernel_event, [row])
                elif isinstance(fact, HardwareEvent):
                    row = msgspec.structs.asdict(fact) | machine | {"kind": fact.kind.value}
                    insert_new(connection, tables.hardware_event, [row])
                elif isinstance(fact, JobRefused):
                    row = msgspec.structs.asdict(fact) | seen
                    insert_new(connection, tables.job_refusal, [row])
                else:
                    job = known_job(fact.job_id)
                    if job is not None and not job.believes(fact.user_id):
                        dropped.append(f"user {fact.user_id} speaks for job {fact.job_id} of user {job.user_id}")
                    else:
                        self._record_job_fact(connection, node, fact, now, job.row if job else None)
        return dropped

    def attach_waiting(self, known_job: Callable[[int], KnownJob | None], now: float) -> int:
        """Give facts that waited for their job to it, and drop those that waited too long or are not to be believed.

        Returns how many found theirs.
        """
        table = tables.waiting_fact
        with reading(self._engine) as connection:
            waiting = connection.execute(select(table).order_by(table.c.id).limit(WAITING_AT_ONCE)).all()
        if not waiting:
            return 0
        found = 0
        over: list[int] = []
        with self._engine.begin() as connection:
            for row in waiting:
                job = known_job(row.job_id)
                fact = msgspec.json.decode(row.fact, type=JobFact)
                if job is not None and job.believes(fact.user_id):
                    self._record_job_fact(connection, row.node, fact, row.received_at, job.row)
                    found += 1
                if job is not None or now - row.received_at > WAITING_SECONDS_MAX:
                    over.append(row.id)
            if over:
                connection.execute(delete(table).where(table.c.id.in_(over)))
        return found

    @staticmethod
    def _record_job_fact(connection: Connection, node: str, fact: JobFact, now: float, job_row: int | None) -> None:
        if job_row is None:
            text = msgspec.json.encode(fact).decode()
            digest = hashlib.sha256(f"{node} {text}".encode()).hexdigest()
            row = {"job_id": fact.job_id, "node": node, "received_at": now, "fact": text, "digest": digest}
            insert_new(connection, tables.waiting_fact, [row])
            return
        values: dict[str, Any] = msgspec.structs.asdict(fact) | {"job": job_row, "received_at": now}
        del values["job_id"], values["user_id"]
        if isinstance(fact, Anomaly):
            values["until"] = GOES_ON if fact.until is None else fact.until
        table = JOB_FACT_TABLES[type(fact)]
        if "node" in table.c:
            values["node"] = node
        insert_new(connection, table, [values])

    def kernel_events(self, after_id: int, since: float) -> list[StoredKernelEvent]:
        """Events newer than the one with this id received at or after `since`, in the order of arrival."""
        table = tables.kernel_event
        query = select(table).where(table.c.id > after_id, table.c.received_at >= since).order_by(table.c.id)
        with reading(self._engine) as connection:
            return [_kernel_event(row) for row in connection.execute(query)]

    def hardware_events(self, after_id: int, since: float) -> list[StoredHardwareEvent]:
        """As kernel_events."""
        table = tables.hardware_event
        query = select(table).where(table.c.id > after_id, table.c.received_at >= since).order_by(table.c.id)
        with reading(self._engine) as connection:
            return [_hardware_event(row) for row in connection.execute(query)]

    def refusals_since(self, since: float) -> tuple[Refusal, ...]:
        """Newest first, at most REFUSALS_AT_ONCE of them."""
        table = tables.job_refusal
        query = select(table).where(table.c.received_at >= since).order_by(table.c.id.desc()).limit(REFUSALS_AT_ONCE)
        with reading(self._engine) as connection:
            return tuple(
                Refusal(row.node, row.job_id, row.restart_count, row.at, row.received_at, row.reason)
                for row in connection.execute(query)
            )

    def complete_checkpoints(self, job: JobKey) -> list[Checkpoint]:
        """Checkpoints of which every rank of one attempt's world announced its shard, all under one path."""
        shard = tables.checkpoint_shard
        query = (
            select(
                shard.c.restart_count,
                shard.c.launch,
                shard.c.step,
                shard.c.path,
                shard.c.world_size,
                func.max(shard.c.at).label("completed_at"),
            )
            .join(tables.job, tables.job.c.id == shard.c.job)
            .where(is_job(job), shard.c.rank < shard.c.world_size)
            .group_by(shard.c.restart_count, shard.c.launch, shard.c.step, shard.c.path, shard.c.world_size)
            .having(func.count(shard.c.rank.distinct()) == shard.c.world_size)
            .order_by(shard.c.step)
        )
        with reading(self._engine) as connection:
            return [
                Checkpoint(r.step, r.path, r.world_size, r.completed_at, Attempt(r.restart_count, r.launch))
                for r in connection.execute(query)
            ]

    def checkpoint_news(self, after: Sequence[int] = (0, 0, 0)) -> tuple[list[int], set[int]]:
        """How far shards, anomalies and people's words for them have got, and the jobs (rows) of those that came after
        the given ones.
        """
        jobs: set[int] = set()
        newest = []
        sources = (tables.checkpoint_shard, tables.anomaly, tables.anomaly_clearance)
        with reading(self._engine) as connection:
            for table, last in zip(sources, after, strict=True):
                query = select(table.c.job, func.max(table.c.id)).where(table.c.id > last).group_by(table.c.job)
                found = [(job, identifier) for job, identifier in connection.execute(query)]
                jobs |= {job for job, _ in found}
                newest.append(max((identifier for _, identifier in found), default=last))
        return newest, jobs

    def anomalies(self, jobs: Iterable[JobKey]) -> list[StoredAnomaly]:
        """Of these jobs, those that nobody has answered for since; what is over says so."""
        table, clearance = tables.anomaly, tables.anomaly_clearance
        cleared = select(func.max(clearance.c.at)).where(clearance.c.job == table.c.job).scalar_subquery()
        found: dict[tuple[Any, ...], StoredAnomaly] = {}
        with reading(self._engine) as connection:
            for key in dict.fromkeys(jobs):
                query = (
                    select(table)
                    .join(tables.job, tables.job.c.id == table.c.job)
                    .where(is_job(key), table.c.received_at > func.coalesce(cleared, 0.0))
                    .order_by(table.c.until)
                )
                for row in connection.execute(query):
                    one = _anomaly(row, key)
                    found[(key, one.attempt, one.rank, one.kind, one.step)] = one
        return list(found.values())

    def newest_anomaly(self) -> int:
        """Its id; 0: there is none."""
        with reading(self._engine) as connection:
            return connection.execute(select(func.max(tables.anomaly.c.id))).scalar() or 0

    def first_nans(self, since: float) -> tuple[FirstNan, ...]:
        """Of attempts on several nodes that showed NaN since then: where first. Those somebody answered for, too: that
        says something of the checkpoints, not of the node.
        """
        table, attempt = tables.anomaly, tables.attempt
        of_attempt = (table.c.job, table.c.restart_count, table.c.launch)
        shown = (table.c.kind.in_([kind.value for kind in NAN_KINDS]), table.c.received_at >= since)
        first = select(*of_attempt, func.min(table.c.step).label("step")).where(*shown).group_by(*of_attempt).subquery()
        query = (
            select(
                tables.job.c.cluster,
                tables.job.c.job_id,
                tables.job.c.submit_at,
                table.c.restart_count,
                table.c.launch,
                table.c.step,
                table.c.node,
                attempt.c.nodes,
                func.min(table.c.rank).label("rank"),
                func.min(table.c.received_at).label("received_at"),
            )
            .join(first, and_(*(column == first.c[column.name] for column in (*of_attempt, table.c.step))))
            .join(tables.job, tables.job.c.id == table.c.job)
            .join(
                attempt,
                and_(
                    attempt.c.job == table.c.job,
                    attempt.c.restart_count == table.c.restart_count,
                    attempt.c.launch == 0,
                ),
            )
            .where(*shown)
            .group_by(tables.job.c.id, *of_attempt, table.c.step, table.c.node, attempt.c.id)
        )
        found: dict[tuple[JobKey, Attempt], FirstNan] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(query):
                key = (JobKey(row.cluster, row.job_id, row.submit_at), Attempt(row.restart_count, row.launch))
                if len(set(row.nodes)) < 2:
                    continue
                before = found.get(key)
                found[key] = FirstNan(
                    *key,
                    row.step,
                    (*(before.nodes if before else ()), row.node),
                    min(row.rank, before.rank) if before else row.rank,
                    min(row.received_at, before.received_at) if before else row.received_at,
                )
        return tuple(found.values())

    def lemon_signals(self, since: float, excluded_by: Counter[str]) -> dict[str, LemonSignals]:
        """By node; `excluded_by` is counted elsewhere and taken over."""
        return lemon_signals(self._engine, since, excluded_by)

    def clear_anomalies(self, job_row: int, reason: str, by: str, now: float) -> None:
        """Somebody answers for the job's checkpoints: what is known up to now speaks against none of them."""
        with self._engine.begin() as connection:
            connection.execute(insert(tables.anomaly_clearance).values(job=job_row, at=now, reason=reason, by=by))

    def gangs(self, cluster: str) -> dict[int, Gang]:
        """By job id: the latest launch that a launcher has told of. Of jobs that are over as well."""
        start, job = tables.launch_start, tables.job
        query = (
            select(start, job.c.job_id)
            .join(job, job.c.id == start.c.job)
            .where(job.c.cluster == cluster, job.c.state == "RUNNING", job.c.restart_count == start.c.restart_count)
            .order_by(start.c.job, start.c.launch, start.c.at)
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
        return {
            row.job_id: Gang(
                Attempt(row.restart_count, row.launch), row.node, tuple(row.seats), tuple(row.spares), tuple(row.lost)
            )
            for row in rows
        }

    def spent(self, job_row: int, restart_count: int) -> Spent:
        """What the job's allocations before this one have used up."""
        end, attempt = tables.launch_end, tables.attempt
        ends = (
            select(end.c.progressed, end.c.counted)
            .where(end.c.job == job_row, end.c.restart_count < restart_count)
            .order_by(end.c.restart_count, end.c.launch, end.c.at)
        )
        best = select(func.max(attempt.c.last_step)).where(
            attempt.c.job == job_row, attempt.c.restart_count < restart_count
        )
        without = 0
        with reading(self._engine) as connection:
            for row in connection.execute(ends):
                without = 0 if row.progressed else without + row.counted
            return Spent(without, connection.execute(best).scalar())

    def black_holes_since(self, since: float) -> dict[str, list[BlackHole]]:
        """By node: by which jobs' launchers it was blamed for failing first again and again. Where the failure went
        with the rank to another node afterwards, the node had no part in it.
        """
        end, job = tables.launch_end, tables.job
        later = tables.launch_end.alias()
        followed = (
            select(later.c.id)
            .where(
                later.c.job == end.c.job,
                later.c.restart_count == end.c.restart_count,
                later.c.launch > end.c.launch,
                later.c.rank == end.c.rank,
                later.c.failed_node != end.c.failed_node,
            )
            .exists()
        )
        query = (
            select(
                end.c.failed_node,
                job.c.cluster,
                job.c.job_id,
                job.c.submit_at,
                job.c.user_id,
                func.max(end.c.received_at).label("at"),
            )
            .join(job, job.c.id == end.c.job)
            .where(end.c.received_at >= since, end.c.cause == LaunchCause.BLACK_HOLE.value, end.c.failed_node != "")
            .where(~followed)
            .group_by(end.c.failed_node, job.c.id)
            .order_by(end.c.failed_node, job.c.id)
        )
        found: dict[str, list[BlackHole]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(query):
                hole = BlackHole(JobKey(row.cluster, row.job_id, row.submit_at), row.user_id, row.at)
                found.setdefault(row.failed_node, []).append(hole)
        return found

    def replacements(self, cluster: str) -> dict[tuple[JobKey, int], dict[str, tuple[int, float]]]:
        """Of running jobs, by job and restart count: nodes that a launcher took for bad, of which launch last, and when
        that ended.
        """
        end, job = tables.launch_end, tables.job
        query = (
            select(end.c.restart_count, end.c.launch, end.c.at, end.c.blamed, job.c.job_id, job.c.submit_at)
            .join(job, job.c.id == end.c.job)
            .where(job.c.cluster == cluster, job.c.state == "RUNNING", job.c.restart_count == end.c.restart_count)
            .where(end.c.cause == LaunchCause.HARDWARE.value)
            .order_by(end.c.launch, end.c.at)
        )
        found: dict[tuple[JobKey, int], dict[str, tuple[int, float]]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(query):
                of_job = found.setdefault((JobKey(cluster, row.job_id, row.submit_at), row.restart_count), {})
                of_job |= dict.fromkeys(row.blamed, (row.launch, row.at))
        return found

    def processes(self, job: JobKey, restart_count: int, after_launch: int = -1) -> tuple[int, int, float | None]:
        """Of the latest launch after this one: how many ranks said hello, how many there are, when the last one's
        process started.
        """
        table = tables.rank_start
        query = (
            select(
                func.count(table.c.rank.distinct()),
                func.max(table.c.world_size),
                func.max(table.c.started_at),
            )
            .join(tables.job, tables.job.c.id == table.c.job)
            .where(is_job(job), table.c.restart_count == restart_count, table.c.launch > after_launch)
            .group_by(table.c.launch)
            .order_by(table.c.launch.desc())
        )
        with reading(self._engine) as connection:
            count, world, started = connection.execute(query).first() or (0, 0, None)
        return count, world or 0, started

    def hook_was_used(self, job: JobKey) -> bool:
        """Whether any rank of any attempt ever said hello."""
        table = tables.rank_start
        query = select(table.c.id).join(tables.job, tables.job.c.id == table.c.job).where(is_job(job)).limit(1)
        with reading(self._engine) as connection:
            return connection.execute(query).first() is not None

    def first_step_at(self, job: JobKey, restart_count: int, after_launch: int = -1) -> tuple[int, float] | None:
        """Of the latest launch after this one: number and time of the first step that every rank has finished; None:
        not yet.
        """
        table = tables.first_step
        query = (
            select(
                func.count(table.c.rank.distinct()),
                func.max(table.c.world_size),
                func.min(table.c.step),
                func.max(table.c.at),
            )
            .join(tables.job, tables.job.c.id == table.c.job)
            .where(is_job(job), table.c.restart_count == restart_count, table.c.launch > after_launch)
            .group_by(table.c.launch)
            .order_by(table.c.launch.desc())
        )
        with reading(self._engine) as connection:
            count, world, step, at = connection.execute(query).first() or (0, 0, 0, 0.0)
        return (step, at) if world and count >= world else None


def _anomaly(row: Row[Any], job: JobKey) -> StoredAnomaly:
    return StoredAnomaly(
        row.id,
        job,
        Attempt(row.restart_count, row.launch),
        row.node,
        row.rank,
        row.world_size,
        AnomalyKind(row.kind),
        row.step,
        None if row.until == GOES_ON else row.until,
        row.value,
        row.received_at,
    )


def _kernel_event(row: Row[Any]) -> StoredKernelEvent:
    event = KernelEvent(row.boot_id, row.sequence, row.at, row.text, row.xid, row.bus_id)
    jobs = tuple(JobThere(*job) for job in row.jobs)
    return StoredKernelEvent(row.id, row.node, row.received_at, event, jobs, generation=_generation(row))


def _hardware_event(row: Row[Any]) -> StoredHardwareEvent:
    kind = HardwareKind(row.kind)
    event = HardwareEvent(row.boot_id, row.at, kind, row.part, row.number, row.seconds, row.text)
    return StoredHardwareEvent(row.id, row.node, row.received_at, event, _generation(row))


def _generation(row: Row[Any]) -> Generation:
    return Generation(row.driver_version, row.gpu_set)
