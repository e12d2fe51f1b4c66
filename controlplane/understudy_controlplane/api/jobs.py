"""Routes to jobs, their ranks and their checkpoints."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Response

from understudy_controlplane.api.dependencies import Limit, ReadDependencies
from understudy_controlplane.live.step_buffer import RankNow
from understudy_controlplane.plan.ettr import ettr
from understudy_controlplane.store.queries import Record


def jobs_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/jobs")
    async def jobs(limit: Limit = 100) -> Response:
        """Jobs as Slurm showed them last, with their attempts and ETTR."""
        return await deps.readers.read(lambda: _jobs(deps, limit))

    @router.get("/jobs/{job_id}/ranks")
    async def ranks(job_id: int) -> Response:
        """The running attempt's ranks: last step finished, last collective entered."""
        return await deps.readers.read(lambda: _ranks(deps, job_id))

    @router.get("/checkpoints")
    async def checkpoints(limit: Limit = 100) -> Response:
        """Announced checkpoints, complete or not."""
        return await deps.readers.read(lambda: deps.queries.checkpoints(limit))

    return router


def _jobs(deps: ReadDependencies, limit: int) -> list[Record]:
    records = deps.queries.jobs(limit)
    progress = deps.queries.progress([record["id"] for record in records])
    for record in records:
        record["ettr"] = ettr(progress.get(record.pop("id"), []))
    return records


def _ranks(deps: ReadDependencies, job_id: int) -> Record:
    found = deps.telemetry.ranks(job_id)
    attempt, known = found if found else (None, [])
    which = attempt._asdict() if attempt else {"restart_count": None, "launch": None}
    return {"job_id": job_id, **which, "ranks": [_rank(one) for one in known]}


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
