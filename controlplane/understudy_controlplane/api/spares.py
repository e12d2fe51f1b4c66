"""Routes to the spare pool: what it holds, and how many spares it is to hold."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import JobId, ReadDependencies
from understudy_controlplane.api.operator_requests import Asked, Checked, not_ready
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.decide.spare_outlook import outlook
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.operator import FLEET, Outcome, Prospect, Verb
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import refuse


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
    size = in_force(deps.stores.requests.stored(), deps.clock.now()).spares_size
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


def set_size(asked: Asked) -> Checked:
    configured, size = asked.deps.current.config.spares.count, asked.body.size
    words = f"{counted(configured if size is None else size, 'spare is', 'spares are')} wanted"
    prospect = _prospect(asked, f"{words}; none leaves the pool for that")
    of_size: dict[str, Json] = {"size": size}
    return Checked(FLEET, prospect, {"size": asked.in_force().spares_size.count}, of_size, of_size)


def choose(asked: Asked) -> Checked | Response:
    snapshot, node = asked.deps.pulse.snapshot, asked.subject
    if snapshot is None:
        return not_ready()
    if node not in snapshot.nodes:
        return refuse(404, f"node {node} is not known", "GET /v1/nodes lists the nodes")
    is_spare = snapshot.nodes[node].is_spare
    return Checked(node, _prospect(asked, CHOSEN[asked.verb, is_spare]), {"spare": is_spare})


CHOSEN = {
    (Verb.SPARE_ADD, True): "it is in the pool, and stays there",
    (Verb.SPARE_ADD, False): "it joins the pool as soon as it is healthy and no job uses it",
    (Verb.SPARE_REMOVE, True): "it leaves the pool; another node replaces it where one is idle",
    (Verb.SPARE_REMOVE, False): "it does not join the pool",
    (Verb.SPARE_FORGET, True): "it stays in the pool until a gang takes it",
    (Verb.SPARE_FORGET, False): "it joins the pool when spares are missing",
}
"""What comes of a request, by whether the node is a spare now."""


def _prospect(asked: Asked, words: str) -> Prospect:
    snapshot = asked.deps.pulse.snapshot
    if snapshot is not None and snapshot.mode_of([asked.subject]) is Mode.OBSERVE:
        why = f'recorded: once the control plane acts (now mode = "observe"), {words}'
        return Prospect(Outcome.OBSERVE_ONLY, why)
    return Prospect(Outcome.WILL_ACT, words)
