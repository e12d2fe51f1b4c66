"""Routes that explain a node or a job: what it is now, what was done about it and why, and what holds back the rest."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.api.dependencies import JobId, NodeName, ReadDependencies, job_unknown
from understudy_controlplane.api.jobs import job_record
from understudy_controlplane.api.nodes import node_record
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.api.records import (
    DecisionRecord,
    IncidentRecord,
    JobRecord,
    NodeRecord,
    RecoveryRecord,
)
from understudy_controlplane.api.recoveries import recovery_record
from understudy_controlplane.api.requests import RequestState, only_by, request_states
from understudy_controlplane.clock import moment
from understudy_controlplane.decide.restore_point import other_size
from understudy_controlplane.detect.stopped import stopped_gang
from understudy_controlplane.figures.checkpoint_cost import Exposure, cost_of, report
from understudy_controlplane.fleet.counted import times
from understudy_controlplane.fleet.identity import Identity
from understudy_controlplane.fleet.job import Condition, JobKey, KnownJob, RestoreAnswer
from understudy_controlplane.fleet.operator import job_subject
from understudy_controlplane.fleet.plain_text import one_line
from understudy_controlplane.fleet.run_attempts import changes
from understudy_controlplane.fleet.saving import FailureClass
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.recover.saves import fleet_rate, in_memory, measured
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.queries import DecisionFilter, IncidentFilter, JobFilter, Record
from understudy_controlplane.store.recoveries import RecoveryFilter
from understudy_controlplane.store.report import ReportStore
from understudy_controlplane.store.requests import RequestFilter
from understudy_wire.facts import Layout, Tier

CHECKPOINTS_SHOWN = 100
RANKS_MAX = 2**31 - 1

NEWEST = 10
"""Newest records of each kind that are shown."""


class Explanation(msgspec.Struct, frozen=True):
    """What is answered; the two models below describe it."""

    is_now: str
    record: Record
    incidents: list[Record]
    recoveries: list[Record]
    requests: list[RequestState]
    decisions: list[Record]


class _Explained(msgspec.Struct, frozen=True):
    is_now: str
    incidents: list[IncidentRecord]
    recoveries: list[RecoveryRecord]
    requests: list[RequestState]
    decisions: list[DecisionRecord]


class NodeExplanation(_Explained, frozen=True):
    """A node: `is_now` is one line for people; its open incidents, and the newest of the other records."""

    record: NodeRecord


class JobExplanation(_Explained, frozen=True):
    """The same of a job. Users of the cluster see the job, its recoveries and their own requests."""

    record: JobRecord


class JudgedCheckpoint(msgspec.Struct, frozen=True):
    job_id: int  # that wrote it
    attempt: str
    step: int
    path: str
    at: float  # when it was complete
    condition: Condition
    against: str  # what speaks against it; empty: nothing
    layout: str  # "fixed" for as many ranks, "reshardable" for any number; empty: not known
    world_size: int  # ranks that wrote it
    tier: str = ""  # "peer", "local" (disks of its nodes), "shared" or "object"; empty: not known


class AttemptInputs(msgspec.Struct, frozen=True):
    """What an attempt of the run ran with, as its rank 0 named it; empty: not known."""

    job_id: int
    attempt: str
    code: str  # a commit and a sum of its working tree's files, or a sum of the main script
    config: str  # a sum of the files that the user names, or of the command line's arguments
    data: str  # a version that the user names
    changed: list[str]  # "code", "config", "data": what is other than in the attempt before it


class SaveOnNodes(msgspec.Struct, frozen=True):
    """A save in the memory of the job's nodes, as their keepers report it. Its ranks choose among them themselves."""

    attempt: str
    step: int
    at: float
    world_size: int
    ranks: int  # whose parts are held
    nodes: int  # that hold parts
    places: int  # nodes that have each part, of the part that the fewest have; 0: one is not held
    against: str  # why no gang goes on from it; empty: nothing


class TierInterval(msgspec.Struct, frozen=True):
    """How often to save on a tier, by the failures after which it is the nearest one that is left."""

    tier: str
    answers: list[FailureClass]
    cost_seconds: float  # of the training; a copy in the background counts a fiftieth of its time
    mtbf_seconds: float  # of these failures
    best_seconds: float  # a multiple of that of the next nearer tier


class CheckpointInterval(msgspec.Struct, frozen=True):
    """How often a job saves, and what would be best. `..._lost_...` is of saving and of steps that failures make it
    repeat, for each hour of the gang.
    """

    cost_seconds: float  # by which a checkpoint holds the training up
    cost_is_measured: bool  # false: the time until it is written stands for it
    write_seconds: float
    mtbf_seconds: float  # of the gang
    today_seconds: float | None  # null: not known
    best_seconds: float
    daly_seconds: float  # by Daly's formula
    gpus: int
    gpu_hours_lost_today: float | None
    gpu_hours_lost_best: float
    gpu_hour_price: float | None  # null: not configured
    tiers: list[TierInterval] = []  # nearest first, where it saves on several


class CheckpointExplanation(msgspec.Struct, frozen=True):
    """`answer` is what an attempt that begins now is answered: restore, fresh or unknown; `why` is what was passed
    over, or why nothing is known.
    """

    answer: RestoreAnswer
    step: int | None
    path: str
    why: str
    count: int  # of checkpoints that are complete, or were
    checkpoints: list[JudgedCheckpoint]  # furthest first, at most 100
    interval: CheckpointInterval | None  # null: the job does not run, or no checkpoint of it was measured
    ranks: int | None  # for which it is answered: the size of its last gang, unless the request names one
    in_memory: list[SaveOnNodes]  # newest first
    attempts: list[AttemptInputs]  # of the run, newest first, at most 100


def explain_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1/explain", dependencies=[Depends(known_parameters)])

    @router.get("/nodes/{node}")
    async def node(node: NodeName) -> Response:
        """A node, with its open incidents and the newest recoveries, requests and decisions about it."""
        return await deps.readers.read(lambda: explain_node(deps, node))

    @router.get("/jobs/{job_id}")
    async def job(job_id: JobId, reader: Reader) -> Response:
        """The newest job of this id, with the same."""
        return await deps.readers.read(lambda: explain_job(deps, job_id, reader))

    @router.get("/checkpoints/{job_id}")
    async def checkpoints(
        job_id: JobId, reader: Reader, ranks: Annotated[int, Query(ge=0, le=RANKS_MAX)] = 0
    ) -> Response:
        """Point where an attempt of the job would continue now, and what speaks against the checkpoints of its run;
        with `ranks`: if its gang had so many.
        """
        return await deps.readers.read(lambda: explain_checkpoints(deps, job_id, reader, ranks))

    return router


def explain_checkpoints(
    deps: ReadDependencies, job_id: int, reader: Identity, ranks: int = 0
) -> CheckpointExplanation | Response:
    known = deps.directory.find(job_id)
    if known is None or not reader.sees_jobs_of(known.user_id):
        return job_unknown(job_id)
    points = RestorePoints(CheckpointStore(deps.engine), FleetStore(deps.engine), deps.clock)
    ranks, decision, judged = points.explain(known, ranks)
    return CheckpointExplanation(
        decision.answer,
        decision.step if decision.path else None,
        decision.path,
        decision.why,
        len(judged),
        [
            JudgedCheckpoint(
                one.job.job_id,
                str(one.attempt),
                one.step,
                one.path,
                one.completed_at,
                one.condition,
                against,
                "" if one.layout is Layout.UNKNOWN else one.layout.value,
                one.world_size,
                "" if one.tier is Tier.UNKNOWN else one.tier.value,
            )
            for one, against in judged[:CHECKPOINTS_SHOWN]
        ],
        _interval(deps, known),
        ranks or None,
        _in_memory(deps, known, ranks),
        [
            AttemptInputs(one.job.job_id, str(one.attempt), one.code, one.config, one.data, list(changed))
            for one, changed in changes(points.run_attempts(known))
        ],
    )


def _in_memory(deps: ReadDependencies, known: KnownJob, ranks: int) -> list[SaveOnNodes]:
    snapshot = deps.pulse.snapshot
    job = snapshot.jobs.get(known.key) if snapshot is not None else None
    if snapshot is None or job is None:
        return []
    return [
        SaveOnNodes(
            str(one.attempt),
            one.step,
            one.at,
            one.world_size,
            one.ranks,
            one.nodes,
            one.places,
            one.against or other_size(one.world_size, ranks),
        )
        for one in in_memory(job, snapshot)
    ]


def _interval(deps: ReadDependencies, known: KnownJob) -> CheckpointInterval | None:
    snapshot = deps.pulse.snapshot
    job = snapshot.jobs.get(known.key) if snapshot is not None else None
    if snapshot is None or job is None or not job.slurm.nodes:
        return None
    newest = measured(job, snapshot, CheckpointStore(deps.engine))
    policy = deps.current.config.checkpoints
    rate, counts = fleet_rate(ReportStore(deps.engine), len(snapshot.nodes), snapshot.now)
    cost = cost_of(newest, Exposure(rate, len(job.slurm.nodes), counts, policy.copy_megabytes_per_second * 1e6))
    found = report(newest, cost)
    if found is None:
        return None
    return CheckpointInterval(
        found.cost,
        found.is_measured,
        found.write,
        found.mtbf,
        found.today,
        found.best,
        found.daly,
        found.gpus,
        found.lost_today,
        found.lost_best,
        policy.gpu_hour_price,
        [TierInterval(one.tier.value, list(one.answers), one.cost, one.mtbf, one.interval) for one in cost.tiers],
    )


def explain_node(deps: ReadDependencies, name: str) -> Explanation | Response:
    record = node_record(deps, name)
    if isinstance(record, Response):
        return record
    slurm = record["slurm"]
    there = f"in Slurm {slurm['state']} {' '.join(slurm['flags'])}".rstrip() if slurm else "not in Slurm"
    reason = f": {slurm['reason']}" if slurm and slurm["reason"] else ""
    since = moment(record["since"]).strftime("%Y-%m-%d %H:%M:%S")
    is_now = f"{name} is {record['state']}{' (spare)' if record['spare'] else ''} since {since}, {there}{reason}"
    return Explanation(
        is_now,
        record,
        _incidents(deps, name),
        _recoveries(deps, RecoveryFilter(node=name)),
        request_states(deps, NEWEST, ID_MAX, RequestFilter(node=name)),
        _decisions(deps, name),
    )


def explain_job(deps: ReadDependencies, job_id: int, reader: Identity) -> Explanation | Response:
    record = job_record(deps, JobFilter(job_id=job_id, user_id=reader.user_id))
    if isinstance(record, Response):
        return record
    managed = "managed" if record["managed"] else "not managed: Understudy never touches it"
    restarted = f"restarted {times(record['restart_count'])}"
    key = JobKey(record["cluster"], job_id, record["submit_at"])
    snapshot = deps.pulse.snapshot
    found = stopped_gang(snapshot, key) if snapshot is not None else None
    stopped = f"; {found.summary}" if found is not None else ""
    is_now = f"job {job_id} of {record['user']} is {record['state']}, {restarted}, {managed}{stopped}"
    is_now += _in_slurm(deps, key)
    recoveries = _recoveries(deps, RecoveryFilter(job_id=job_id, user_id=reader.user_id))
    requests = request_states(deps, NEWEST, ID_MAX, RequestFilter(node=job_subject(job_id), by=only_by(reader)))
    if reader.user_id is not None:
        return Explanation(is_now, record, [], recoveries, requests, [])
    decisions = _decisions_of_job(deps, job_id, recoveries, found.node if found is not None else None)
    incidents = [record for subject in (str(key), *_nodes_at_fault(deps, key)) for record in _incidents(deps, subject)]
    return Explanation(is_now, record, incidents[:NEWEST], recoveries, requests, decisions)


def _nodes_at_fault(deps: ReadDependencies, key: JobKey) -> list[str]:
    """Nodes of the job with an open incident."""
    snapshot = deps.pulse.snapshot
    job = snapshot.jobs.get(key) if snapshot is not None else None
    if snapshot is None or job is None:
        return []
    known = {one.subject.name for one in snapshot.incidents.values() if one.subject.kind is SubjectKind.NODE}
    return sorted(known.intersection(job.slurm.nodes))[:NEWEST]


def _in_slurm(deps: ReadDependencies, key: JobKey) -> str:
    """What a user of `squeue` and `scontrol` has to know besides."""
    job = deps.pulse.snapshot.jobs.get(key) if deps.pulse.snapshot is not None else None
    if job is None:
        return ""
    task = f"; it is task {job.slurm.array_task} of a job array" if job.slurm.array_task else ""
    waits = job.slurm.pending and job.slurm.reason not in ("", "None")
    pends = f"; Slurm gives the reason {one_line(job.slurm.reason)}" if waits else ""
    alone = f"; it {job.slurm.not_alone}: its gang is left to a person" if job.slurm.not_alone else ""
    return task + pends + alone


def _incidents(deps: ReadDependencies, subject: str) -> list[Record]:
    return deps.queries.incidents(NEWEST, only=IncidentFilter(open=True, subject=subject))


def _recoveries(deps: ReadDependencies, only: RecoveryFilter) -> list[Record]:
    return [recovery_record(deps, one) for one in deps.stores.recoveries.newest(NEWEST, only=only)]


def _decisions(deps: ReadDependencies, subject: str) -> list[Record]:
    return deps.queries.decisions(NEWEST, only=DecisionFilter(subject=subject))


def _decisions_of_job(
    deps: ReadDependencies, job_id: int, recoveries: list[Record], stopped_by: str | None
) -> list[Record]:
    """Also those about nodes for which the job was moved, and about the one that has stopped it."""
    moved = deps.queries.decisions(NEWEST, only=DecisionFilter(recoveries=tuple(one["id"] for one in recoveries)))
    about = _decisions(deps, stopped_by) if stopped_by is not None else []
    found = {one["id"]: one for one in (*moved, *about, *_decisions(deps, job_subject(job_id)))}
    return [found[number] for number in sorted(found, reverse=True)[:NEWEST]]
