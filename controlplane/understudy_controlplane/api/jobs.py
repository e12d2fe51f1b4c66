"""Routes to jobs, their ranks and their checkpoints."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.api.dependencies import JobId, ReadDependencies, job_unknown
from understudy_controlplane.api.pages import (
    ListQuery,
    Name,
    Number,
    NumberedQuery,
    TimedQuery,
    known_parameters,
    page,
    timed_page,
)
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.figures.ettr import ettr
from understudy_controlplane.fleet import training
from understudy_controlplane.fleet.identity import Identity
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.slurm import ArrayTask
from understudy_controlplane.live.step_buffer import RankNow
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import JobFilter, Record


class JobState(StrEnum):
    """Slurm's, as `squeue` prints them."""

    BOOT_FAIL = "BOOT_FAIL"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"
    COMPLETING = "COMPLETING"
    CONFIGURING = "CONFIGURING"
    DEADLINE = "DEADLINE"
    FAILED = "FAILED"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    PENDING = "PENDING"
    PREEMPTED = "PREEMPTED"
    REQUEUED = "REQUEUED"
    RESIZING = "RESIZING"
    REVOKED = "REVOKED"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    TIMEOUT = "TIMEOUT"


class JobsQuery(NumberedQuery):
    state: JobState | None = None
    managed: bool | None = Field(None, description="The job asked for Understudy.")
    user: Name | None = None
    task: str | None = Field(
        None, pattern=r"^[0-9]{1,18}_[0-9]{1,18}$", description="A task of a job array that Slurm shows: `4711_3`."
    )


class RanksQuery(ListQuery):
    limit: int = Field(1000, ge=1, le=1000, description="Most records of a page.")
    cursor: int | None = Field(None, ge=0, le=ID_MAX, description="`next` of the page before.")


class CheckpointsQuery(TimedQuery):
    job: Number | None = Field(None, description="Slurm's job id.")


def jobs_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/jobs")
    async def jobs(query: Annotated[JobsQuery, Query()], reader: Reader) -> Response:
        """Jobs as Slurm showed them last, with their attempts and ETTR."""
        state = query.state and query.state.value
        job_id = None if query.task is None else _job_id_of(deps, query.task)
        only = JobFilter(state=state, managed=query.managed, user=query.user, job_id=job_id, user_id=reader.user_id)
        return await deps.readers.read(lambda: _page(deps, query, only))

    @router.get("/jobs/{job_id}")
    async def job(job_id: JobId, reader: Reader) -> Response:
        """The newest job of this id."""
        return await deps.readers.read(lambda: job_record(deps, JobFilter(job_id=job_id, user_id=reader.user_id)))

    @router.get("/jobs/{job_id}/ranks")
    async def ranks(job_id: JobId, query: Annotated[RanksQuery, Query()], reader: Reader) -> Response:
        """The running attempt's ranks: last step finished, last collective entered."""
        return await deps.readers.read(lambda: _ranks(deps, job_id, query, reader))

    @router.get("/checkpoints")
    async def checkpoints(query: Annotated[CheckpointsQuery, Query()], reader: Reader) -> Response:
        """Announced checkpoints, complete or not."""
        return await deps.readers.read(lambda: _checkpoints(deps, query, reader))

    return router


def job_records(deps: ReadDependencies, limit: int, before: int, only: JobFilter) -> list[Record]:
    records = deps.queries.jobs(limit, before, only)
    progress = deps.queries.progress([record["id"] for record in records])
    pauses = in_force(deps.stores.requests.stored(), deps.clock.now()).job_pauses
    shown = deps.pulse.snapshot.jobs if deps.pulse.snapshot is not None else {}
    for record in records:
        job = shown.get(_key(record))
        record["task"] = str(job.slurm.array_task) if job is not None and job.slurm.array_task is not None else ""
        pause = pauses.get(record["job_id"])
        held = pause if pause is not None and pause.concerns(_key(record)) else None
        record["paused"], record["paused_until"] = (held.words, held.until) if held is not None else ("", None)
        record["ettr"] = ettr(progress.get(record["id"], []))
    return records


NO_JOB = 0
"""Slurm's first job has the id 1."""


def _job_id_of(deps: ReadDependencies, task: str) -> int:
    array, _, number = task.partition("_")
    wanted = ArrayTask(int(array), int(number))
    shown = deps.pulse.snapshot.jobs.values() if deps.pulse.snapshot is not None else ()
    return next((job.key.job_id for job in shown if job.slurm.array_task == wanted), NO_JOB)


def _key(record: Record) -> JobKey:
    return JobKey(record["cluster"], record["job_id"], record["submit_at"])


def _page(deps: ReadDependencies, query: JobsQuery, only: JobFilter) -> Response:
    records = job_records(deps, query.limit, query.before, only)
    numbers = [record.pop("id") for record in records]
    return page(records, numbers[-1] if len(records) == query.limit else None)


def job_record(deps: ReadDependencies, only: JobFilter) -> Record | Response:
    found = job_records(deps, 1, ID_MAX, only)
    if not found:
        return job_unknown(only.job_id)
    return {key: value for key, value in found[0].items() if key != "id"}


def _ranks(deps: ReadDependencies, job_id: int, query: RanksQuery, reader: Identity) -> Response:
    known = deps.directory.find(job_id) if reader.user_id is not None else None
    if reader.user_id is not None and (known is None or not reader.sees_jobs_of(known.user_id)):
        return job_unknown(job_id)
    first = 0 if query.cursor is None else query.cursor
    found = deps.telemetry.ranks(job_id, range(first, first + query.limit))
    attempt, ranks = found if found else (None, [])
    which = attempt._asdict() if attempt else {"restart_count": None, "launch": None}
    following = ranks[-1].rank + 1 if len(ranks) == query.limit else None
    used = _mfu_of_ranks(deps, job_id, range(first, first + query.limit))
    return page([rank_record(one, used.get(one.rank)) for one in ranks], following, job_id=job_id, **which)


def _checkpoints(deps: ReadDependencies, query: CheckpointsQuery, reader: Identity) -> Response:
    only = JobFilter(job_id=query.job, user_id=reader.user_id)
    records = deps.queries.checkpoints(query.limit, *query.before, only=only)
    return timed_page(records, "at", "number", query.limit)


def _mfu_of_ranks(deps: ReadDependencies, job_id: int, wanted: range) -> dict[int, float]:
    snapshot, known = deps.pulse.snapshot, deps.directory.find(job_id)
    table = snapshot.progress.tables.get(known.key) if snapshot is not None and known is not None else None
    if snapshot is None or table is None:
        return {}
    return training.mfu_of_ranks(table, snapshot.gpus_on, wanted)


def rank_record(now: RankNow, mfu: float | None = None) -> Record:
    entered = now.collective
    return {
        "rank": now.rank,
        "node": now.node,
        "role": now.role,
        "gpu_index": now.gpu_index,
        "last_step": now.last_step,
        "collective": msgspec.structs.asdict(entered) if entered else None,
        "step_seconds": now.step_seconds,
        "loss": now.training.loss,
        "grad_norm": now.training.grad_norm,
        "tokens_per_second": now.training.tokens_per_second,
        "mfu": mfu,
    }
