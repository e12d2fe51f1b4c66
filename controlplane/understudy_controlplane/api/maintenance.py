"""Routes to maintenance: plan it, start it, look at it, pause and end it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Request, Response
from msgspec import Meta

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.operator_requests import (
    Asked,
    Checked,
    RequestDependencies,
    log_audited,
    not_ready,
    will,
)
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.config import Config
from understudy_controlplane.decide.guards import object_to_mode
from understudy_controlplane.decide.maintenance import outlook, spares_needed
from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.maintenance import Maintenance, maintenance_subject
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.store import site_maintenance
from understudy_controlplane.store.database import ID_MAX
from understudy_wire.values import NOT_UNDERSTOOD

MaintenanceId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/maintenance` shows it.")]


class MaintenanceBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`targets`: names of nodes, and of domains as in "rack r1". `until`: when the nodes return."""

    targets: Annotated[tuple[Annotated[str, Meta(max_length=255)], ...], Meta(min_length=1, max_length=20_000)]
    until: float
    reason: Annotated[str, Meta(max_length=2000, pattern=r"^[^\x00]*$")]
    at_once: Annotated[int, Meta(ge=1)] | None = None  # nodes out of service at the same time; null: all of them
    dry_run: bool = False


class MaintenanceNode(msgspec.Struct, frozen=True):
    """`stage`: waiting, asked, held (its jobs end or leave), ready (work can begin), returning or done."""

    node: str
    stage: str
    jobs: list[int]
    words: str


class MaintenanceRecord(msgspec.Struct, frozen=True):
    """`id` 0: a plan that is not started. `status`: planned, running, paused or ending."""

    id: int
    status: str
    targets: list[str]
    reason: str
    by: str
    at: float
    until: float
    at_once: int
    spares: str
    nodes: list[MaintenanceNode]


class MaintenanceRecords(msgspec.Struct, frozen=True):
    maintenance: list[MaintenanceRecord]


def maintenance_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/v1/maintenance")
    async def maintenance() -> Response:
        """Maintenance that is under way, with the stage of each node."""
        return await deps.readers.read(lambda: _all(deps))

    return router


def _all(deps: ReadDependencies) -> MaintenanceRecords | Response:
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    found = deps.stores.maintenance.open_ones()
    return MaintenanceRecords([_record(snapshot, one, deps.current.config) for one in found])


def maintenance_requests_router(deps: RequestDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/maintenance")
    async def start(request: Request) -> Response:
        """Take nodes out of service for planned work: they are drained, gangs there leave for spares at their next
        checkpoint, and they return by their validation. With `dry_run` the plan alone.
        """
        return await _start(deps, request)

    return router


async def _start(deps: RequestDependencies, request: Request) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    try:
        body = msgspec.json.decode(await request.body(), type=MaintenanceBody)
    except NOT_UNDERSTOOD as error:
        hint = 'send {"targets": ["rack r1"], "until": 1764000000, "reason": "…", "at_once": 4}'
        return refuse(400, f"the request cannot be read: {error}", hint)
    snapshot, now = deps.pulse.snapshot, deps.clock.now()
    if snapshot is None:
        return not_ready()
    planned = _planned(snapshot, body, identity.label, now)
    if isinstance(planned, Response):
        return planned
    if not body.dry_run:
        entry = AuditEntry.of_request(identity, now, Verb.START_MAINTENANCE.value, "", body.reason)
        entry = replace(entry, after={"targets": [*body.targets], "until": body.until, "at_once": planned.at_once})
        planned = replace(planned, id=await asyncio.to_thread(deps.stores.maintenance.begin, planned, entry))
        log_audited(replace(entry, subject=maintenance_subject(planned.id)))
        deps.wake_loop()
    return answer(MaintenanceRecords([_record(snapshot, planned, deps.current.config)]))


def _planned(snapshot: Snapshot, body: MaintenanceBody, by: str, now: float) -> Maintenance | Response:
    """Or its refusal."""
    if not body.reason.strip():
        return refuse(422, "reason must not be empty", "give a reason that the next operator understands")
    if body.until <= now:
        return refuse(422, "until has to be in the future", "times are seconds since the Unix epoch")
    unknown = [target for target in body.targets if not snapshot.nodes_of(target)]
    if unknown:
        hint = "name nodes as Slurm does, or domains as `understudy topology show` does"
        return refuse(422, f"not known, or without nodes: {', '.join(unknown[:8])}", hint)
    nodes = sorted({name for target in body.targets for name in snapshot.nodes_of(target)}, key=natural)
    if (by_mode := object_to_mode(snapshot, nodes)) and not body.dry_run:
        return refuse(409, by_mode.words, "`dry_run` shows the plan")
    taken = {name: one.id for one in snapshot.operator.maintenances for name in one.unfinished}
    busy = [f"{name} (maintenance {taken[name]})" for name in nodes if name in taken]
    if busy:
        return refuse(
            409, f"under maintenance already: {', '.join(busy[:8])}", "`understudy maintenance list` shows it"
        )
    at_once = min(body.at_once or len(nodes), len(nodes))
    return Maintenance(0, body.targets, tuple(nodes), body.reason, by, now, body.until, at_once)


CHANGES = {
    Verb.PAUSE_MAINTENANCE: "no further node is taken, and no further gang moved; nodes that are out stay out",
    Verb.RESUME_MAINTENANCE: "it goes on",
    Verb.END_MAINTENANCE: "its nodes return by their validation, where validation is enabled",
}
"""What comes of each request."""


def change(asked: Asked) -> Checked | Response:
    """Pause, resume or end it."""
    found = {one.id: one for one in asked.deps.stores.maintenance.open_ones()}.get(asked.subject)
    if found is None:
        return refuse(404, f"no maintenance {asked.subject} is under way", "GET /v1/maintenance lists them")
    effect = partial(site_maintenance.set_paused, found, asked.verb is Verb.PAUSE_MAINTENANCE)
    if asked.verb is Verb.END_MAINTENANCE:
        effect = partial(site_maintenance.end, found)
    return will(maintenance_subject(found.id), CHANGES[asked.verb], effect)


def _record(snapshot: Snapshot, maintenance: Maintenance, config: Config) -> MaintenanceRecord:
    return MaintenanceRecord(
        maintenance.id,
        _status(snapshot, maintenance),
        [*maintenance.targets],
        maintenance.reason,
        maintenance.by,
        maintenance.at,
        maintenance.until,
        maintenance.at_once,
        spares_needed(snapshot, maintenance, config),
        [MaintenanceNode(one.node, one.stage, [*one.jobs], one.words) for one in outlook(snapshot, maintenance)],
    )


def _status(snapshot: Snapshot, maintenance: Maintenance) -> str:
    if not maintenance.id:
        return "planned"
    if maintenance.is_ending(snapshot.now):
        return "ending"
    return "paused" if maintenance.paused else "running"
