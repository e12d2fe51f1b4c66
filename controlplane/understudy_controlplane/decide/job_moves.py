"""Gangs that operators move off nodes. The gang moves as off a faulty node; the node stays in service. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from understudy_controlplane.config import Config
from understudy_controlplane.decide import guards
from understudy_controlplane.decide.decision_context import Round
from understudy_controlplane.decide.gang_moves import gang_moves, gangs_on
from understudy_controlplane.decide.repair_cycle import REQUEST_WAITS_SECONDS
from understudy_controlplane.fleet.decision import Because
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.evidence import Evidence
from understudy_controlplane.fleet.finding import Finding, RequestDetail, Signal
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.node import OUT_OF_SERVICE, NodeState
from understudy_controlplane.fleet.operator import MoveRequest, Outcome, Prospect, Verb
from understudy_controlplane.fleet.snapshot import Snapshot

RULE = f"operator.{Verb.MOVE_JOB.value}"


def moves_asked(snapshot: Snapshot) -> Iterator[Finding]:
    for key, request in snapshot.operator.moves.items():
        over = _given_up(snapshot, key, request)
        if over:
            words = f"the move, asked for by {request.by}, is given up: {over}"
            yield _finding(snapshot, key, request, Signal.MOVE_GIVEN_UP, "", words)
        elif not waits_for(snapshot, key, request):
            yield from _asked(snapshot, key, request)


def _asked(snapshot: Snapshot, key: JobKey, request: MoveRequest) -> Iterator[Finding]:
    for name in request.off:
        if name in snapshot.nodes and key in {job.key for job in gangs_on(snapshot, {name})}:
            words = f"{request.by} moves job {key.job_id} off it: {request.reason}"
            found = _finding(snapshot, key, request, Signal.MOVE_ASKED, name, words)
            yield replace(found, dead=snapshot.nodes[name].is_mute(snapshot.now))


def _finding(snapshot: Snapshot, key: JobKey, request: MoveRequest, signal: Signal, node: str, words: str) -> Finding:
    evidence = Evidence({"request": request.id, "job": key.job_id, "off": [*request.off]})
    detail = RequestDetail(request=request.id, verb=Verb.MOVE_JOB)
    return Finding(signal, RULE, node, snapshot.now, words, evidence, job=key, detail=detail)


def _given_up(snapshot: Snapshot, key: JobKey, request: MoveRequest) -> str:
    """Why the request is not carried out any more; empty: it is, or waits."""
    job = snapshot.jobs.get(key)
    if by_mode := guards.object_to_mode(snapshot, (), key):
        return by_mode.words
    if snapshot.now - request.at > REQUEST_WAITS_SECONDS:
        return f"it could not be done within {REQUEST_WAITS_SECONDS / HOUR_SECONDS:g} h"
    if snapshot.slurm.read_at is None or snapshot.recovery_of(key) is not None:
        return ""
    if job is None or not job.running:
        return f"job {key.job_id} does not run"
    return "" if set(request.off) & set(job.slurm.nodes) else f"job {key.job_id} runs on none of these nodes"


def waits_for(snapshot: Snapshot, key: JobKey, request: MoveRequest) -> str:
    """What has to happen first; empty: nothing."""
    recovery = snapshot.recovery_of(key)
    if recovery is not None:
        return f"job {key.job_id} is moved or restarted already by recovery {recovery.id}"
    if request.at_checkpoint and (request.checkpoint_at is None or request.checkpoint_at <= request.at):
        return f"it waits for the next complete checkpoint of job {key.job_id}"
    mute = [name for name in request.off if _is_mute_in_service(snapshot, name)]
    return f"it waits until {', '.join(mute)} answers, or is found dead" if mute else ""


def _is_mute_in_service(snapshot: Snapshot, name: str) -> bool:
    """Slurm could end the job there only by setting the node down, which is to stay in service."""
    node = snapshot.nodes.get(name)
    out = OUT_OF_SERVICE | {NodeState.FOREIGN_DRAIN}
    return node is not None and node.is_mute(snapshot.now) and node.state not in out


def nodes_to_leave(snapshot: Snapshot, job: Job) -> tuple[str, ...]:
    """Those of its nodes that are not simply in service: where an operator names none."""
    return tuple(one.name for one in snapshot.views_of(job) if one.state is not NodeState.IN_SERVICE)


def prospect(snapshot: Snapshot, key: JobKey, request: MoveRequest, config: Config) -> Prospect | str:
    """What will come of the request, or why the gang cannot be moved."""
    if by_mode := guards.object_to_mode(snapshot, (), key):
        return Prospect(Outcome.OBSERVE_ONLY, f"{by_mode.words}: the request is recorded, and nothing is done")
    objection = guards.object_to_operator(snapshot) or guards.object_while_open(snapshot)
    waits = objection.words if objection is not None else waits_for(snapshot, key, request)
    because, words, moves = _move(snapshot, list(_asked(snapshot, key, request)), config)
    if not moves and because in (Because.RULE, Because.LEFT_TO_PERSON):
        return words
    if waits or not moves:
        return Prospect(Outcome.HELD_BY_GUARD, waits or words)
    return Prospect(Outcome.WILL_ACT, words)


def _move(snapshot: Snapshot, findings: Sequence[Finding], config: Config) -> tuple[Because, str, bool]:
    """Why, in words, and whether the gang moves."""
    off = frozenset(finding.node for finding in findings)
    current = replace(Round(snapshot, config).with_condemned(off), undrained=off).with_idle()
    move = next(iter(gang_moves(current, findings).values()), None)
    if move is None:
        return Because.RULE, "it has no seat on these nodes, or the control plane does not manage it", False
    return move.because, move.words, move.plan is not None
