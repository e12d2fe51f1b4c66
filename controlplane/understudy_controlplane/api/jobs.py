"""Routes to jobs, their ranks and their checkpoints."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.api.dependencies import JobId, ReadDependencies
from understudy_controlplane.api.pages import (
    NEWEST,
    AfterRank,
    Before,
    BeforeTime,
    Limit,
    after_id,
    after_time,
    known_parameters,
    page,
    point_in_time,
)
from understudy_controlplane.live.step_buffer import RankNow
from understudy_controlplane.plan.ettr import ettr
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import Record


def jobs_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/jobs")
    async def jobs(request: Request, limit: Limit = 100, before: Before = ID_MAX) -> Response:
        """Jobs as Slurm showed them last, with their attempts and ETTR."""
        return await deps.readers.read(lambda: _jobs(deps, request, limit, before))

    @router.get("/jobs/{job_id}/ranks")
    async def ranks(request: Request, job_id: JobId, limit: Limit = 1000, after: AfterRank = -1) -> Response:
        """The running attempt's ranks: last step finished, last collective entered."""
        return await deps.readers.read(lambda: _ranks(deps, request, job_id, after + 1, limit))

    @router.get("/checkpoints")
    async def checkpoints(request: Request, limit: Limit = 100, before: BeforeTime = NEWEST) -> Response:
        """Announced checkpoints, complete or not."""
        return await deps.readers.read(lambda: _checkpoints(deps, request, limit, before))

    return router


def _jobs(deps: ReadDependencies, request: Request, limit: int, before: int) -> Response:
    records = deps.queries.jobs(limit, before)
    following = after_id(records, limit)
    progress = deps.queries.progress([record["id"] for record in records])
    for record in records:
        record["ettr"] = ettr(progress.get(record.pop("id"), []))
    return page(request, records, following)


def _ranks(deps: ReadDependencies, request: Request, job_id: int, first: int, limit: int) -> Response:
    found = deps.telemetry.ranks(job_id, range(first, first + limit))
    attempt, known = found if found else (None, [])
    which = attempt._asdict() if attempt else {"restart_count": None, "launch": None}
    content = {"job_id": job_id, **which, "ranks": [_rank(one) for one in known]}
    return page(request, content, {"after": known[-1].rank} if len(known) == limit else {})


def _checkpoints(deps: ReadDependencies, request: Request, limit: int, before: str) -> Response:
    records = deps.queries.checkpoints(limit, *point_in_time(before))
    return page(request, records, after_time(records, "at", "number", limit))


def _rank(now: RankNow) -> Record:
    entered = now.collective
    return {
        "rank": now.rank,
        "node": now.node,
        "role": now.role,
        "gpu_index": now.gpu_index,
        "last_step": now.last_step,
        "collective": msgspec.structs.asdict(entered) if entered else None,
    }
