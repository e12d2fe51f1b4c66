"""Facts from agents: stored once each, however often they arrive."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, Table, delete, func, select

from agents.wire import CheckpointShard, Fact, FirstStep, JobFact, JobRefused, KernelEvent, RankStarted
from controlplane.fleet.job import Checkpoint, JobKey, KnownJob, Refusal
from controlplane.fleet.node import StoredKernelEvent
from controlplane.store import tables
from controlplane.store.database import insert_new, reading
from controlplane.store.fleet import is_job

JOB_FACT_TABLES: dict[type, Table] = {
    RankStarted: tables.rank_start,
    FirstStep: tables.first_step,
    CheckpointShard: tables.checkpoint_shard,
}


WAITING_SECONDS_MAX = 3600.0
"""A fact about a job that Slurm does not name within this is about no job."""

WAITING_AT_ONCE = 10_000

REFUSALS_AT_ONCE = 1000


class FactStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(
        self, node: str, facts: Iterable[Fact], now: float, known_job: Callable[[int], KnownJob | None]
    ) -> list[str]:
        """One transaction: all of them or, with an exception, none. Returns what was not believed, in words."""
        dropped: list[str] = []
        with self._engine.begin() as connection:
            for fact in facts:
                if isinstance(fact, KernelEvent):
                    row = msgspec.structs.asdict(fact) | {"node": node, "received_at": now}
                    insert_new(connection, tables.kernel_event, [row])
                elif isinstance(fact, JobRefused):
                    row = msgspec.structs.asdict(fact) | {"node": node, "received_at": now}
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
            return [Checkpoint(r.step, r.path, r.world_size, r.completed_at) for r in connection.execute(query)]

    def processes(self, job: JobKey, restart_count: int) -> tuple[int, int, float | None]:
        """Of the latest launch: how many ranks said hello, how many there are, when the last one's process started."""
        table = tables.rank_start
        query = (
            select(
                func.count(table.c.rank.distinct()),
                func.max(table.c.world_size),
                func.max(table.c.started_at),
            )
            .join(tables.job, tables.job.c.id == table.c.job)
            .where(is_job(job), table.c.restart_count == restart_count)
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

    def first_step_at(self, job: JobKey, restart_count: int) -> tuple[int, float] | None:
        """Of the latest launch: number and time of the first step that every rank has finished; None: not yet."""
        table = tables.first_step
        query = (
            select(
                func.count(table.c.rank.distinct()),
                func.max(table.c.world_size),
                func.min(table.c.step),
                func.max(table.c.at),
            )
            .join(tables.job, tables.job.c.id == table.c.job)
            .where(is_job(job), table.c.restart_count == restart_count)
            .group_by(table.c.launch)
            .order_by(table.c.launch.desc())
        )
        with reading(self._engine) as connection:
            count, world, step, at = connection.execute(query).first() or (0, 0, 0, 0.0)
        return (step, at) if world and count >= world else None


def _kernel_event(row: Row[Any]) -> StoredKernelEvent:
    event = KernelEvent(row.boot_id, row.sequence, row.at, row.text, row.xid, row.bus_id)
    return StoredKernelEvent(row.id, row.node, row.received_at, event)
