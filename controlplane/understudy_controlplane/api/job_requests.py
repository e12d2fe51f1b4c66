"""Routes by which people act on one job: pause and resume it for the control plane, move its gang."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import JobId, job_unknown
from understudy_controlplane.api.operator_requests import (
    HoldBody,
    MoveBody,
    OperatorRequest,
    RequestBody,
    accepted,
    log_audited,
    not_ready,
    read_request,
)
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide import job_moves
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.job import KnownJob, RestoreDecision
from understudy_controlplane.fleet.operator import JobPause, MoveRequest, Outcome, Prospect, Verb, job_subject
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.store.repairs import RepairStore


@dataclass(frozen=True, slots=True)
class JobRequestDependencies:
    admission: Admission
    repairs: RepairStore
    directory: JobDirectory
    newest_checkpoint: Callable[[KnownJob], RestoreDecision]
    current: CurrentConfig
    pulse: Pulse
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

    @router.post("/v1/jobs/{job_id}/move", status_code=202)
    async def move(job_id: JobId, request: Request) -> Response:
        """Move the job's gang off nodes, which stay in service: `off`, or those of its nodes that are not simply in
        service. The answer names the steps that are done twice for it. With `at_checkpoint` it waits for the next
        complete checkpoint.
        """
        return await _move(deps, request, job_id)

    return router


async def _move(deps: JobRequestDependencies, request: Request, job_id: int) -> Response:
    identity, job = await _admit(deps, request, job_id, Permission.OPERATE)
    operator_request = await read_request(request, identity, MoveBody)
    if isinstance(operator_request, Response):
        return operator_request
    if job is None:
        return job_unknown(job_id)
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    asked = _move_request(snapshot, job, operator_request, deps.clock.now())
    config = deps.current.config
    prospect = job_moves.prospect(snapshot, job.key, asked, config) if isinstance(asked, MoveRequest) else asked
    if not isinstance(prospect, Prospect) or not isinstance(asked, MoveRequest):
        return refuse(409, f"the gang is not moved: {prospect}", f"see GET /v1/jobs/{job_id}")
    loss = await asyncio.to_thread(_loss, deps, snapshot, job)
    number = None
    if not operator_request.dry_run:
        entry = AuditEntry.of_request(identity, asked.at, Verb.MOVE_JOB.value, job_subject(job_id), asked.reason)
        entry = replace(entry, after={"off": [*asked.off]})
        ask = partial(deps.repairs.move_job, entry, asked.off, job.key, at_checkpoint=asked.at_checkpoint)
        number = await asyncio.to_thread(ask)
        log_audited(entry)
        deps.wake_loop()
    prospect = replace(prospect, why=f"{prospect.why}; {loss}")
    return accepted(number, job_subject(job_id), Verb.MOVE_JOB, prospect)


def _move_request(
    snapshot: Snapshot, job: KnownJob, operator_request: OperatorRequest, now: float
) -> MoveRequest | str:
    """Or what is wrong with it."""
    shown, number = snapshot.jobs.get(job.key), job.key.job_id
    if shown is None or not shown.running or not shown.managed:
        return f"job {number} does not run, or did not ask for Understudy"
    off = operator_request.off or job_moves.nodes_to_leave(snapshot, shown)
    wrong = [name for name in off if name not in shown.slurm.nodes]
    if wrong:
        return f"job {number} does not run on {', '.join(wrong)}"
    if not off:
        return "all of its nodes are in service: name those that it should leave (off)"
    at_checkpoint, submit_at = operator_request.at_checkpoint, job.key.submit_at
    return MoveRequest(0, off, operator_request.reason, operator_request.by, now, submit_at, at_checkpoint)


def _loss(deps: JobRequestDependencies, snapshot: Snapshot, job: KnownJob) -> str:
    """What the gang has to do twice, in words."""
    table = snapshot.progress.tables.get(job.key)
    # A checkpoint of before the numbers fell is not counted by them.
    number = table.number if table is not None and not table.fell_at else None
    newest = deps.newest_checkpoint(job)
    where = f"it goes on from the checkpoint of step {newest.step}"
    if not newest.path:
        where = "it has no good checkpoint and begins again"
    return f"{where}; steps lost: {'not known' if number is None else max(0, number + 1 - newest.step)}"


async def _admit(
    deps: JobRequestDependencies, request: Request, job_id: int, needed: Permission = Permission.OPERATE_OWN_JOBS
) -> tuple[Identity, KnownJob | None]:
    """Who acts, and on which job; None: there is no such job for them. Users act on their own jobs,
    except that a move takes spares: that needs an operator.
    """
    identity = await deps.admission.admit(request, needed)
    job = await asyncio.to_thread(deps.directory.find, job_id)
    return identity, job if job is not None and identity.sees_jobs_of(job.user_id) else None


def _may_end(pause: JobPause, identity: Identity) -> bool:
    """True if the user may end it, as in Slurm: a user releases what they held, and not what an administrator held."""
    return identity.may(Permission.OPERATE) or pause.by == identity.label


def _managed(snapshot: Snapshot | None, job: KnownJob) -> bool:
    """True if Slurm shows it as managed now: the user may have asked for Understudy since the job was last written
    down.
    """
    shown = snapshot.jobs.get(job.key) if snapshot is not None else None
    return job.managed if shown is None else shown.managed


def _why_not_switched(
    snapshot: Snapshot | None, job: KnownJob, verb: Verb, pause: JobPause | None, identity: Identity
) -> Response | None:
    name, see = f"job {job.key.job_id}", f"see GET /v1/jobs/{job.key.job_id}"
    if verb is Verb.PAUSE_JOB and not _managed(snapshot, job):
        return refuse(409, f"{name} is not paused: it did not ask for Understudy, which leaves it alone anyway", see)
    paused = pause is not None and pause.concerns(job.key)
    if verb is Verb.RESUME_JOB and not paused:
        return refuse(409, f"{name} is not paused", see)
    if pause is not None and paused and not _may_end(pause, identity):
        hint = "ask the operator, or wait until the pause ends by itself"
        return refuse(403, f"{name} is paused by an operator: {pause.words}", hint)
    return None


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
    refusal = _why_not_switched(deps.pulse.snapshot, job, verb, pause, identity)
    if refusal is not None:
        return refusal
    prospect = Prospect(Outcome.WILL_ACT, SWITCHES[verb])
    if operator_request.dry_run:
        return accepted(None, subject, verb, prospect)
    until, why = operator_request.until(now), operator_request.reason
    entry = AuditEntry.of_request(identity, now, verb.value, subject, why)
    after: dict[str, Json] = {"paused": f"{why} ({identity.label})" if verb is Verb.PAUSE_JOB else ""}
    after |= {} if until is None else {"until": until}
    entry = replace(entry, before={"paused": pause.words if pause is not None else ""}, after=after)
    if verb is Verb.PAUSE_JOB:
        number = await asyncio.to_thread(deps.repairs.pause_job, entry, until, job.key)
    else:
        number = await asyncio.to_thread(deps.repairs.resume_job, entry, until)
    log_audited(entry)
    deps.wake_loop()
    return accepted(number, subject, verb, prospect)
