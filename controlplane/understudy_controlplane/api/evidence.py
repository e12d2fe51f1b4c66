"""Routes to what ranks showed before they were ended: stacks, and their last lines. For operators and the job's owner.

Source lines and paths of a program may stand in it, so that a role that reads everything else does not see it.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.api.dependencies import IncidentId, JobId, ReadDependencies, job_unknown
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.api.records import EvidenceRecord, EvidenceRecords
from understudy_controlplane.fleet.identity import Identity, Permission, roles_with
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.queries import IncidentFilter, JobFilter

EVIDENCE_MAX = 50


def evidence_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/jobs/{job_id}/evidence")
    async def of_job(job_id: JobId, reader: Reader) -> Response:
        """What ranks of a job showed before they were ended: who did not enter which collective, stacks, last lines."""
        only = JobFilter(job_id=job_id, user_id=reader.user_id)
        return await deps.readers.read(lambda: _of_job(deps, only, reader))

    @router.get("/incidents/{incident}/evidence")
    async def of_incident(incident: IncidentId, reader: Reader) -> Response:
        """The same of the jobs that an incident concerned, while it was open. Users see their own jobs' alone."""
        return await deps.readers.read(lambda: _of_incident(deps, incident, reader))

    return router


def _of_job(deps: ReadDependencies, only: JobFilter, reader: Identity) -> EvidenceRecords | Response:
    refused = _refused(reader)
    if refused is not None:
        return refused
    if not deps.queries.jobs(1, only=only):
        return job_unknown(only.job_id)
    return _records(deps, only)


def _of_incident(deps: ReadDependencies, number: int, reader: Identity) -> EvidenceRecords | Response:
    refused = _refused(reader)
    if refused is not None:
        return refused
    found = _records(deps, JobFilter(user_id=reader.user_id), number)
    if not found.items and (
        reader.user_id is not None or not deps.queries.incidents(1, only=IncidentFilter(id=number))
    ):
        return refuse(404, f"there is no incident {number}", "GET /v1/incidents lists them")
    return found


def _refused(reader: Identity) -> Response | None:
    """A reader that may act on a job may see what its ranks showed."""
    if reader.may(Permission.OPERATE_OWN_JOBS):
        return None
    roles = ", ".join(role.value for role in roles_with(Permission.OPERATE_OWN_JOBS))
    return refuse(403, f"role {reader.role.value} may not read what ranks showed", f"it needs one of {roles}")


def _records(deps: ReadDependencies, only: JobFilter, incident: int | None = None) -> EvidenceRecords:
    found = deps.queries.evidence(EVIDENCE_MAX, only, incident)
    return EvidenceRecords([EvidenceRecord(**one) for one in found])
