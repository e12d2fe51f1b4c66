"""Routes by which people act on one job: the control plane leaves it alone for a while, and attends to it again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import JobId, job_unknown
from understudy_controlplane.api.operator_requests import HoldBody, RequestBody, accepted, log_audited, read_request
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.job import KnownJob
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb, job_subject
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.store.repairs import RepairStore


@dataclass(frozen=True, slots=True)
class JobRequestDependencies:
    admission: Admission
    repairs: RepairStore
    directory: JobDirectory
    clock: Clock
    wake_loop: Callable[[], None]


def job_requests_router(deps: JobRequestDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/jobs/{job_id}/pause", status_code=202)
    async def pause(job_id: JobId, request: Request) -> Response:
        """Begin nothing for this job: no move, no restart, no release. What is under way stops before its
        next effect, except between two attempts of the gang. With `for_seconds` it ends by itself.
        """
        return await _switch(deps, request, job_id, Verb.PAUSE_JOB)

    @router.post("/v1/jobs/{job_id}/resume", status_code=202)
    async def resume(job_id: JobId, request: Request) -> Response:
        """End the pause of this job."""
        return await _switch(deps, request, job_id, Verb.RESUME_JOB)

    return router


async def _admit(deps: JobRequestDependencies, request: Request, job_id: int) -> tuple[Identity, KnownJob | None]:
    """Who acts, and on which job; None: there is no such job for them. Users act on their own jobs."""
    identity = await deps.admission.admit(request, Permission.OPERATE_OWN_JOBS)
    job = await asyncio.to_thread(deps.directory.find, job_id)
    return identity, job if job is not None and identity.sees_jobs_of(job.user_id) else None


SWITCHES = {
    Verb.PAUSE_JOB: "nothing begins for it; what is under way stops before its next effect",
    Verb.RESUME_JOB: "the control plane attends to it again",
}
"""What comes of the requests that take effect at once, in every mode."""


async def _switch(deps: JobRequestDependencies, request: Request, job_id: int, verb: Verb) -> Response:
    identity, job = await _admit(deps, request, job_id)
    operator_request = await read_request(request, identity, HoldBody if verb is Verb.PAUSE_JOB else RequestBody)
    if isinstance(operator_request, Response):
        return operator_request
    if job is None:
        return job_unknown(job_id)
    now, subject = deps.clock.now(), job_subject(job_id)
    pause = (await asyncio.to_thread(deps.repairs.job_pauses, now)).get(job_id)
    if verb is Verb.RESUME_JOB and (pause is None or not pause.concerns(job.key)):
        return refuse(409, f"job {job_id} is not paused", f"see GET /v1/jobs/{job_id}")
    prospect = Prospect(Outcome.WILL_ACT, SWITCHES[verb])
    if operator_request.dry_run:
        return accepted(None, subject, verb, prospect)
    until, why = operator_request.until(now), operator_request.reason
    entry = AuditEntry.of_request(identity, now, verb.value, subject, why)
    after: dict[str, Json] = {"paused": f"{why} ({identity.label})" if verb is Verb.PAUSE_JOB else ""}
    after |= {} if until is None else {"until": until}
    entry = replace(entry, before={"paused": pause.words if pause is not None else ""}, after=after)
    ask = deps.repairs.pause_job if verb is Verb.PAUSE_JOB else deps.repairs.resume_job
    number = await asyncio.to_thread(ask, entry, until)
    log_audited(entry)
    deps.wake_loop()
    return accepted(number, subject, verb, prospect)
