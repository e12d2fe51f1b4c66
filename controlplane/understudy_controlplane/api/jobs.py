"""Routes to jobs, their ranks and their checkpoints."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter

from understudy_controlplane.api.dependencies import Limit, ReadDependencies
from understudy_controlplane.live.step_buffer import RankNow
from understudy_controlplane.plan.ettr import ettr
from understudy_controlplane.store.queries import Record


def jobs_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/jobs")
    def jobs(limit: Limit = 100) -> list[Record]:
        """Jobs as Slurm showed them last, with their attempts and ETTR."""
        records = deps.queries.jobs(limit)
        for record in records:
            result = ettr(deps.queries.progress(record.pop("id")))
            record["ettr"] = msgspec.to_builtins(result)
        return records

    @router.get("/jobs/{job_id}/ranks")
    def ranks(job_id: int) -> Record:
        """The running attempt's ranks: last step finished, last collective entered."""
        found = deps.telemetry.ranks(job_id)
        attempt, known = found if found else (None, [])
        which = attempt._asdict() if attempt else {"restart_count": None, "launch": None}
        return {"job_id": job_id, **which, "ranks": [_rank(one) for one in known]}

    @router.get("/checkpoints")
    def checkpoints(limit: Limit = 100) -> list[Record]:
        """Announced checkpoints, complete or not."""
        return deps.queries.checkpoints(limit)

    return router


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
