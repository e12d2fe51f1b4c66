"""The route by which an operator or the job's owner declares its checkpoints good, although NaN or jumps were reported.

`POST /v1/jobs/{job_id}/trust-checkpoints`. The request is recorded with who made it and why. Anomalies reported later
count again, and an attempt keeps the restore point that it was given before.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import JobId, job_unknown
from understudy_controlplane.api.operator_requests import accepted, log_audited, read_request
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.store.checkpoints import CheckpointStore


@dataclass(frozen=True, slots=True)
class TrustDependencies:
    admission: Admission
    checkpoints: CheckpointStore
    directory: JobDirectory
    clock: Clock


def trust_router(deps: TrustDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/jobs/{job_id}/trust-checkpoints", status_code=202)
    async def trust_checkpoints(job_id: JobId, request: Request) -> Response:
        """Declare the job's checkpoints good that are suspect now."""
        return await _take(deps, job_id, request)

    return router


async def _take(deps: TrustDependencies, job_id: int, request: Request) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE_OWN_JOBS)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    known = await asyncio.to_thread(deps.directory.find, job_id)
    if known is None or not identity.sees_jobs_of(known.user_id):
        return job_unknown(job_id)
    verb = Verb.TRUST_CHECKPOINTS
    prospect = Prospect(Outcome.WILL_ACT, "its checkpoints are no longer suspect for what was reported until now")
    if operator_request.dry_run:
        return accepted(None, f"job {job_id}", verb, prospect)
    entry = AuditEntry.of_request(identity, deps.clock.now(), verb.value, f"job {job_id}", operator_request.reason)
    number = await asyncio.to_thread(deps.checkpoints.trust, known.row, entry)
    log_audited(entry)
    return accepted(number, f"job {job_id}", verb, prospect)
