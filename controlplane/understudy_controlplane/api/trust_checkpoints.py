"""The route by which an operator declares a job's checkpoints good, although NaN or jumps were reported.

`POST /v1/jobs/{job_id}/trust-checkpoints`. The request is recorded with who made it and why. Anomalies reported later
count again, and an attempt keeps the restore point that it was given before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import JobId
from understudy_controlplane.api.operator_requests import log_audited, read_request
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.store.checkpoints import CheckpointStore


class Trusted(msgspec.Struct, frozen=True):
    job_id: int
    cleared_at: float


@dataclass(frozen=True, slots=True)
class TrustDependencies:
    admission: Admission
    checkpoints: CheckpointStore
    directory: JobDirectory
    clock: Clock


def trust_router(deps: TrustDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/jobs/{job_id}/trust-checkpoints")
    async def trust_checkpoints(job_id: JobId, request: Request) -> Response:
        """Declare the job's checkpoints good that are suspect now."""
        return await _take(deps, job_id, request)

    return router


async def _take(deps: TrustDependencies, job_id: int, request: Request) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    known = await asyncio.to_thread(deps.directory.find, job_id)
    if known is None:
        return refuse(404, f"job {job_id} is not known", "GET /v1/jobs lists the known jobs")
    now = deps.clock.now()
    why, by = operator_request.reason, operator_request.by
    entry = AuditEntry.of_request(identity, now, "trust-checkpoints", f"job {job_id}", why)
    await asyncio.to_thread(deps.checkpoints.clear_anomalies, known.row, why, by, now, entry)
    log_audited(entry)
    return answer(Trusted(job_id, now))
