"""The route by which an operator or the job's owner asks a gang to save: `POST /v1/jobs/{job_id}/save`.

The request is recorded with who made it and why. It is answered when all ranks of the gang have agreed on the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import JobId, job_unknown
from understudy_controlplane.api.operator_requests import accepted, log_audited, read_request
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.decide.save_steps import step_ahead
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb, job_subject
from understudy_controlplane.fleet.saving import SavingGang
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.save_orders import SaveOrders
from understudy_controlplane.store.repairs import RepairStore

HINT = "`monitor.checkpoints.due(step)` in the training loop: docs/checkpoints.md"


@dataclass(frozen=True, slots=True)
class SaveRequestDependencies:
    admission: Admission
    repairs: RepairStore
    directory: JobDirectory
    saves: SaveOrders
    clock: Clock
    wake_loop: Callable[[], None]


def save_requests_router(deps: SaveRequestDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/jobs/{job_id}/save", status_code=202)
    async def save(job_id: JobId, request: Request) -> Response:
        """Ask all ranks of the job's gang to save a checkpoint, before the same step, some seconds from now. Its
        training has to ask for that (`monitor.checkpoints.due`).
        """
        return await _take(deps, job_id, request)

    return router


async def _take(deps: SaveRequestDependencies, job_id: int, request: Request) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE_OWN_JOBS)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    known = await asyncio.to_thread(deps.directory.find, job_id)
    if known is None or not identity.sees_jobs_of(known.user_id):
        return job_unknown(job_id)
    if not known.managed:
        return refuse(409, f"job {job_id} did not ask for Understudy", "sbatch --comment=understudy")
    now, subject, verb = deps.clock.now(), job_subject(job_id), Verb.SAVE_JOB
    prospect = prospect_of(deps.saves.gangs().get(job_id), job_id, now)
    if isinstance(prospect, Response):
        return prospect
    if operator_request.dry_run:
        return accepted(None, subject, verb, prospect)
    entry = AuditEntry.of_request(identity, now, verb.value, subject, operator_request.reason)
    number = await asyncio.to_thread(deps.repairs.ask_audited, verb, entry)
    log_audited(entry)
    deps.wake_loop()
    return accepted(number, subject, verb, prospect)


def prospect_of(gang: SavingGang | None, job_id: int, now: float) -> Prospect | Response:
    if gang is None:
        return refuse(409, f"job {job_id} cannot be asked to save: no rank of it asks when to", HINT)
    if not gang.is_whole:
        asking = f"{gang.ranks} of its {gang.world_size} ranks ask when to"
        return refuse(409, f"job {job_id} cannot be asked to save: only {asking}", f"on every rank: {HINT}")
    if gang.step_seconds is None or not gang.settled or now < gang.not_before:
        return Prospect(Outcome.WILL_ACT, "all ranks save before the same step, as soon as they can be asked")
    step = step_ahead(gang, now)
    seconds = (step - gang.asked) * gang.step_seconds
    return Prospect(Outcome.WILL_ACT, f"all ranks save before about step {step}, in about {seconds:.0f} s")
