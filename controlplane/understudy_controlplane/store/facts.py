"""Facts from agents: stored once each, however often they arrive."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, Row, Table, delete, select

from understudy_agent.wire import (
    Anomaly,
    CheckpointShard,
    Fact,
    FirstStep,
    HardwareEvent,
    HardwareKind,
    JobFact,
    JobRefused,
    KernelEvent,
    LaunchEnded,
    LaunchStarted,
    RankStarted,
)
from understudy_controlplane.fleet.job import JobThere, KnownJob, Refusal
from understudy_controlplane.fleet.node import Generation, StoredHardwareEvent, StoredKernelEvent
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import insert_new, reading

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

        `jobs_at(time)` returns the jobs that were on the node then; `generation` is the node's driver and set of GPUs.
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

        Returns how many found their job.
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
