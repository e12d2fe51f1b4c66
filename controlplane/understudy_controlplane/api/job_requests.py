"""Requests about one job, also of its owner: pause, resume, move, save, trust its checkpoints."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from fastapi import Response

from understudy_controlplane.api.dependencies import job_unknown
from understudy_controlplane.api.operator_requests import Asked, Checked, RequestDependencies, not_ready, will
from understudy_controlplane.decide import job_moves
from understudy_controlplane.decide.save_steps import step_ahead
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.job import KnownJob
from understudy_controlplane.fleet.operator import JobPause, MoveRequest, Outcome, Prospect, job_subject
from understudy_controlplane.fleet.saving import SavingGang
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store import checkpoints

HINT = "`monitor.checkpoints.due(step)` in the training loop: `understudy help checkpoints`"


def _job(asked: Asked) -> KnownJob | None:
    """None: there is no such job for who asks. Users act on their own jobs."""
    job = asked.deps.directory.find(asked.subject)
    return job if job is not None and asked.identity.sees_jobs_of(job.user_id) else None


def pause(asked: Asked) -> Checked | Response:
    job = _job(asked)
    if job is None:
        return job_unknown(asked.subject)
    before = asked.in_force().job_pauses.get(asked.subject)
    name, see = f"job {asked.subject}", f"see GET /v1/jobs/{asked.subject}"
    if not _managed(asked.deps.pulse.snapshot, job):
        return refuse(409, f"{name} is not paused: it did not ask for Understudy, which leaves it alone anyway", see)
    paused = before is not None and before.concerns(job.key)
    if before is not None and paused and not _may_end(before, asked.identity):
        return _of_operator(name, before)
    checked = will(job_subject(asked.subject), "nothing begins for it; what is under way stops before its next effect")
    words = before.words if before is not None else ""
    detail = {"submit_at": job.key.submit_at}
    return replace(checked, before={"paused": words}, after={"paused": asked.words}, detail=detail)


def resume(asked: Asked) -> Checked | Response:
    job = _job(asked)
    if job is None:
        return job_unknown(asked.subject)
    before = asked.in_force().job_pauses.get(asked.subject)
    if before is None or not before.concerns(job.key):
        return refuse(409, f"job {asked.subject} is not paused", f"see GET /v1/jobs/{asked.subject}")
    if not _may_end(before, asked.identity):
        return _of_operator(f"job {asked.subject}", before)
    checked = will(job_subject(asked.subject), "the control plane attends to it again")
    return replace(checked, before={"paused": before.words}, after={"paused": ""})


def _may_end(pause: JobPause, identity: Identity) -> bool:
    """True if the user may end it, as in Slurm: a user releases what they held, and not what an administrator held."""
    return identity.may(Permission.OPERATE) or pause.by == identity.label


def _of_operator(name: str, pause: JobPause) -> Response:
    hint = "ask the operator, or wait until the pause ends by itself"
    return refuse(403, f"{name} is paused by an operator: {pause.words}", hint)


def _managed(snapshot: Snapshot | None, job: KnownJob) -> bool:
    """True if Slurm shows it as managed now: the user may have asked for it since the job was last written down."""
    shown = snapshot.jobs.get(job.key) if snapshot is not None else None
    return job.managed if shown is None else shown.managed


def move(asked: Asked) -> Checked | Response:
    job, snapshot = _job(asked), asked.deps.pulse.snapshot
    if job is None:
        return job_unknown(asked.subject)
    if snapshot is None:
        return not_ready()
    wanted, config = _move_request(snapshot, job, asked), asked.deps.current.config
    prospect = job_moves.prospect(snapshot, job.key, wanted, config) if isinstance(wanted, MoveRequest) else wanted
    if not isinstance(prospect, Prospect) or not isinstance(wanted, MoveRequest):
        return refuse(409, f"the gang is not moved: {prospect}", f"see GET /v1/jobs/{asked.subject}")
    off = [*wanted.off]
    return Checked(
        job_subject(asked.subject),
        replace(prospect, why=f"{prospect.why}; {_loss(asked.deps, snapshot, job)}"),
        after={"off": [*off]},
        detail={"off": off, "at_checkpoint": wanted.at_checkpoint, "submit_at": wanted.submit_at},
    )


def _move_request(snapshot: Snapshot, job: KnownJob, asked: Asked) -> MoveRequest | str:
    """Or what is wrong with it."""
    shown, number = snapshot.jobs.get(job.key), job.key.job_id
    if shown is None or not shown.running or not shown.managed:
        return f"job {number} does not run, or did not ask for Understudy"
    off = asked.body.off or job_moves.nodes_to_leave(snapshot, shown)
    wrong = [name for name in off if name not in shown.slurm.nodes]
    if wrong:
        return f"job {number} does not run on {', '.join(wrong)}"
    if not off:
        return "all of its nodes are in service: name those that it should leave (off)"
    of_asked = (asked.body.reason, asked.identity.label, asked.now)
    return MoveRequest(0, off, *of_asked, job.key.submit_at, asked.body.at_checkpoint)


def _loss(deps: RequestDependencies, snapshot: Snapshot, job: KnownJob) -> str:
    """What the gang has to do twice, in words."""
    table = snapshot.progress.tables.get(job.key)
    # A checkpoint of before the numbers fell is not counted by them.
    number = table.number if table is not None and not table.fell_at else None
    newest = deps.newest_checkpoint(job)
    where = f"it goes on from the checkpoint of step {newest.step}"
    if not newest.path:
        where = "it has no good checkpoint and begins again"
    return f"{where}; steps lost: {'not known' if number is None else max(0, number + 1 - newest.step)}"


def save(asked: Asked) -> Checked | Response:
    job = _job(asked)
    if job is None:
        return job_unknown(asked.subject)
    if not job.managed:
        return refuse(409, f"job {asked.subject} did not ask for Understudy", "sbatch --comment=understudy")
    prospect = prospect_of(asked.deps.saves.gangs().get(asked.subject), asked.subject, asked.now)
    return prospect if isinstance(prospect, Response) else Checked(job_subject(asked.subject), prospect)


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


def trust_checkpoints(asked: Asked) -> Checked | Response:
    """Anomalies reported later count again, and an attempt keeps the restore point that it was given before."""
    job = _job(asked)
    if job is None:
        return job_unknown(asked.subject)
    why = "its checkpoints are no longer suspect for what was reported until now"
    return will(job_subject(asked.subject), why, partial(checkpoints.trust, job.row))
