"""Routes to the spare pool: what it holds, and how many spares it is to hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response
from msgspec import Meta

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import JobId, NodeName, ReadDependencies
from understudy_controlplane.api.operator_requests import RequestBody, Seconds, accepted, log_audited, not_ready
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Mode
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide.spare_outlook import outlook
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.store.fleet import FleetStore
from understudy_wire.values import NOT_UNDERSTOOD


class SizeBody(RequestBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    size: Annotated[int, Meta(ge=0, le=100_000)] | None = None  # None: as configured


class ChoiceBody(RequestBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    for_seconds: Seconds | None = None  # None: until another request about the node


class Reservation(msgspec.Struct, frozen=True):
    """Reservation of the control plane."""

    name: str
    nodes: list[str]
    holder: str  # the pool, or the job or node that it is for


class Spares(msgspec.Struct, frozen=True):
    wanted: int
    configured: int
    set_by: str  # who has set another number than the configured one, and why; empty: no one
    held: list[str]
    added: list[str]  # by operators: in the pool whenever no job uses them
    removed: list[str]  # by operators: never in the pool
    reservations: list[Reservation]


class SpareCandidate(msgspec.Struct, frozen=True):
    node: str
    spare: bool  # of the pool; otherwise an idle node
    fits: bool
    why_not: str  # empty: it fits


class SpareExplanation(msgspec.Struct, frozen=True):
    """`outcome` is what would become of the gang; `before`: jobs that wait for a spare now and would come before it."""

    job: int
    priority: int
    lost: str
    moves: bool
    outcome: str
    taken: list[str]
    before: list[int]
    candidates: list[SpareCandidate]


@dataclass(frozen=True, slots=True)
class SpareDependencies:
    admission: Admission
    fleet: FleetStore
    current: CurrentConfig
    clock: Clock
    pulse: Pulse
    wake_loop: Callable[[], None]


def spares_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/v1/spares")
    async def spares() -> Response:
        """The spare pool, and who holds which reservation of the control plane."""
        return await deps.readers.read(lambda: spare_pool(deps))

    @router.get("/v1/spares/explain/{job_id}")
    async def explain(
        job_id: JobId, node: Annotated[str | None, Query(max_length=255, description="That fails.")] = None
    ) -> Response:
        """What if: which spare the gang of this job would get if it lost `node` now (its first one without it), why it
        would not get the others, and which gangs would come before it.
        """
        return await deps.readers.read(lambda: _explain(deps, job_id, node))

    return router


def _explain(deps: ReadDependencies, job_id: int, node: str | None) -> SpareExplanation | Response:
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    job = next((one for key, one in snapshot.jobs.items() if key.job_id == job_id and one.running), None)
    if job is None or not job.managed:
        hint = "GET /v1/jobs?state=RUNNING&managed=true lists those that do"
        return refuse(404, f"job {job_id} does not run, or did not ask for Understudy", hint)
    lost = node or job.slurm.nodes[0]
    if lost not in job.slurm.nodes:
        return refuse(422, f"job {job_id} does not run on {lost}", f"it runs on {', '.join(job.slurm.nodes[:8])}")
    if lost not in snapshot.nodes:
        return refuse(404, f"Slurm shows no node {lost}", "`scontrol show node` prints those that it shows")
    found = outlook(snapshot, job, lost, deps.current.config)
    candidates = [SpareCandidate(one.node, one.is_spare, one.fits, one.words) for one in found.candidates]
    return SpareExplanation(
        job_id, job.slurm.priority, lost, found.moves, found.words, [*found.taken], [*found.before], candidates
    )


def spare_pool(deps: ReadDependencies) -> Spares | Response:
    snapshot, policy = deps.pulse.snapshot, deps.current.config.spares
    if snapshot is None:
        return not_ready()
    size = deps.stores.fleet.spares_size()
    held = sorted(node.name for node in snapshot.nodes.values() if node.is_spare)
    added, removed = _chosen(snapshot, True), _chosen(snapshot, False)
    wanted = policy.count if size.count is None else size.count
    return Spares(wanted, policy.count, size.reason, held, added, removed, _reservations(snapshot, policy.reservation))


def _chosen(snapshot: Snapshot, wanted: bool) -> list[str]:
    return sorted((name for name, chosen in snapshot.operator.spare_choices.items() if chosen is wanted), key=natural)


def _reservations(snapshot: Snapshot, pool: str) -> list[Reservation]:
    holders = {pool: "the spare pool"}
    for name in snapshot.slurm.reservations:
        if name.startswith(SEATS_PREFIX):
            holders[name] = f"job {name.removeprefix(SEATS_PREFIX)}, for its seats"
        elif name.startswith(NODE_HOLD_PREFIX):
            holders[name] = f"node {name.removeprefix(NODE_HOLD_PREFIX)}, for its repair or validation"
    shown = [one for one in snapshot.slurm.reservations.values() if one.name in holders]
    return [Reservation(one.name, sorted(one.nodes), holders[one.name]) for one in sorted(shown, key=lambda r: r.name)]


def spare_requests_router(deps: SpareDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/spares/size", status_code=202)
    async def set_size(request: Request) -> Response:
        """Set how many spares the pool is to hold, also over a restart; null: the configured number again. A smaller
        number takes no node out of the pool: spares that gangs take are not replaced until it is reached.
        """
        return await _set_size(deps, request)

    @router.post("/v1/spares/{node}/add", status_code=202)
    async def add(node: NodeName, request: Request) -> Response:
        """Have a node in the pool whenever no job uses it, besides those that the control plane chooses."""
        return await _choose(deps, request, node, Verb.SPARE_ADD)

    @router.post("/v1/spares/{node}/remove", status_code=202)
    async def remove(node: NodeName, request: Request) -> Response:
        """Take a node out of the pool, and keep it out."""
        return await _choose(deps, request, node, Verb.SPARE_REMOVE)

    @router.post("/v1/spares/{node}/forget", status_code=202)
    async def forget(node: NodeName, request: Request) -> Response:
        """Let the control plane choose again whether a node is in the pool."""
        return await _choose(deps, request, node, Verb.SPARE_FORGET)

    return router


async def _set_size(deps: SpareDependencies, request: Request) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    try:
        body = msgspec.json.decode(await request.body(), type=SizeBody)
    except NOT_UNDERSTOOD as error:
        return refuse(400, f"the request cannot be read: {error}", 'send {"size": 4, "reason": "…"}')
    if not body.reason.strip():
        return refuse(422, "reason must not be empty", "give a reason that the next operator understands")
    configured = deps.current.config.spares.count
    words = f"{counted(configured if body.size is None else body.size, 'spare is', 'spares are')} wanted"
    prospect = _prospect(deps, f"{words}; none leaves the pool for that")
    number = None
    if not body.dry_run:
        before = await asyncio.to_thread(deps.fleet.spares_size)
        entry = AuditEntry.of_request(identity, deps.clock.now(), Verb.SPARES_SIZE.value, "fleet", body.reason)
        entry = replace(entry, before={"size": before.count}, after={"size": body.size})
        number = await asyncio.to_thread(deps.fleet.set_spares_size, entry, body.size)
        log_audited(entry)
        deps.wake_loop()
    return accepted(number, "fleet", Verb.SPARES_SIZE, prospect)


async def _choose(deps: SpareDependencies, request: Request, node: str, verb: Verb) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    try:
        body = msgspec.json.decode(await request.body(), type=ChoiceBody)
    except NOT_UNDERSTOOD as error:
        return refuse(400, f"the request cannot be read: {error}", 'send {"reason": "…"}')
    if not body.reason.strip():
        return refuse(422, "reason must not be empty", "give a reason that the next operator understands")
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    if node not in snapshot.nodes:
        return refuse(404, f"node {node} is not known", "GET /v1/nodes lists the nodes")
    is_spare, number = snapshot.nodes[node].is_spare, None
    if not body.dry_run:
        now = deps.clock.now()
        until = None if body.for_seconds is None else now + body.for_seconds
        entry = AuditEntry.of_request(identity, now, verb.value, node, body.reason)
        entry = replace(entry, before={"spare": is_spare}, after={"requested": verb.value, "until": until})
        number = await asyncio.to_thread(deps.fleet.add_answered, entry, until)
        log_audited(entry)
        deps.wake_loop()
    return accepted(number, node, verb, _prospect(deps, CHOSEN[verb, is_spare]))


CHOSEN = {
    (Verb.SPARE_ADD, True): "it is in the pool, and stays there",
    (Verb.SPARE_ADD, False): "it joins the pool as soon as it is healthy and no job uses it",
    (Verb.SPARE_REMOVE, True): "it leaves the pool; another node replaces it where one is idle",
    (Verb.SPARE_REMOVE, False): "it does not join the pool",
    (Verb.SPARE_FORGET, True): "it stays in the pool until a gang takes it",
    (Verb.SPARE_FORGET, False): "it joins the pool when spares are missing",
}
"""What comes of a request, by whether the node is a spare now."""


def _prospect(deps: SpareDependencies, words: str) -> Prospect:
    snapshot = deps.pulse.snapshot
    if snapshot is not None and snapshot.mode is Mode.OBSERVE:
        why = f'recorded: once the control plane acts (now mode = "observe"), {words}'
        return Prospect(Outcome.OBSERVE_ONLY, why)
    return Prospect(Outcome.WILL_ACT, words)
