"""The door for one word of a person: this job's checkpoints are good, whatever NaN or jumps were seen.

`POST /v1/jobs/{job_id}/trust-checkpoints`. It leaves a row that says who and why. What is seen afterwards counts again,
and an attempt that has been told where to go on stays there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request, Response

from understudy_controlplane.api.operator_requests import read_intent
from understudy_controlplane.clock import Clock
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.ingest.authority import Token
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.store.checkpoints import CheckpointStore


class Trusted(msgspec.Struct, frozen=True):
    job_id: int
    cleared_at: float


@dataclass(frozen=True, slots=True)
class TrustDoor:
    token: Token | None
    checkpoints: CheckpointStore
    directory: JobDirectory
    clock: Clock


def trust_router(door: TrustDoor) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/jobs/{job_id}/trust-checkpoints")
    async def trust_checkpoints(job_id: int, request: Request) -> Response:
        """Checkpoints of the job that are suspect by now are good."""
        return await _take(door, job_id, request)

    return router


async def _take(door: TrustDoor, job_id: int, request: Request) -> Response:
    intent = await read_intent(door.token, request)
    if isinstance(intent, Response):
        return intent
    row = door.directory.row_of(job_id)
    if row is None:
        return refuse(404, f"job {job_id} is not known", "GET /v1/jobs lists those that are")
    now = door.clock.now()
    await asyncio.to_thread(door.checkpoints.clear_anomalies, row, intent.reason, intent.by, now)
    return answer(Trusted(job_id, now))
