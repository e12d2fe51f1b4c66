"""The door for one word of a person: this job's checkpoints are good, whatever NaN or jumps were seen.

`POST /v1/jobs/{job_id}/trust-checkpoints`. It leaves a row that says who and why. What is seen afterwards counts again,
and an attempt that has been told where to go on stays there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request, Response

from agents.wire import NOT_UNDERSTOOD
from controlplane.clock import Clock
from controlplane.ingest.answers import answer, refuse
from controlplane.ingest.authority import Token
from controlplane.live.directory import JobDirectory
from controlplane.operate.intents import Intent
from controlplane.store.facts import FactStore


class Trusted(msgspec.Struct, frozen=True):
    job_id: int
    cleared_at: float


@dataclass(frozen=True, slots=True)
class TrustDoor:
    token: Token | None
    facts: FactStore
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
    if door.token is None:
        return refuse(403, "operator actions are switched off", "set operator_token_file in [server]")
    if not door.token.admits(request.headers.get("authorization")):
        return refuse(401, "no operator's token", "send Authorization: Bearer with what operator_token_file holds")
    try:
        intent = msgspec.json.decode(await request.body(), type=Intent)
    except NOT_UNDERSTOOD as error:
        return refuse(400, f"not understood: {error}", 'send {"reason": "…", "by": "…"}')
    if not intent.reason.strip() or not intent.by.strip():
        return refuse(422, "reason and by must not be empty", "whoever reads this at night wants to know")
    row = door.directory.row_of(job_id)
    if row is None:
        return refuse(404, f"job {job_id} is not known", "GET /v1/jobs lists those that are")
    now = door.clock.now()
    await asyncio.to_thread(door.facts.clear_anomalies, row, intent.reason, intent.by, now)
    return answer(Trusted(job_id, now))
