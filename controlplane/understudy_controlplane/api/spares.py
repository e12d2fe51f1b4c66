"""Routes to the spare pool: what it holds, and how many spares it is to hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Meta

from understudy_agent.wire import NOT_UNDERSTOOD
from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.operator_requests import RequestBody, accepted, log_audited, not_ready
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb
from understudy_controlplane.fleet.recovery import NODE_HOLD_PREFIX, SEATS_PREFIX
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.fleet import FleetStore


class SizeBody(RequestBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    size: Annotated[int, Meta(ge=0, le=100_000)] | None = None  # None: as configured


class Reservation(msgspec.Struct, frozen=True):
    """Of the control plane."""

    name: str
    nodes: list[str]
    holder: str  # the pool, or the job or node that it is for


class Spares(msgspec.Struct, frozen=True):
    wanted: int
    configured: int
    set_by: str  # who has set another number than the configured one, and why; empty: no one
    held: list[str]
    reservations: list[Reservation]


@dataclass(frozen=True, slots=True)
class SpareDependencies:
    admission: Admission
    fleet: FleetStore
    current: CurrentConfig
    clock: Clock
    wake_loop: Callable[[], None]


def spares_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/v1/spares")
    async def spares() -> Response:
        """The spare pool, and who holds which reservation of the control plane."""
        return await deps.readers.read(lambda: _spares(deps))

    return router


def _spares(deps: ReadDependencies) -> Spares | Response:
    snapshot, policy = deps.pulse.snapshot, deps.current.config.spares
    if snapshot is None:
        return not_ready()
    size = deps.stores.fleet.spares_size()
    held = sorted(node.name for node in snapshot.nodes.values() if node.is_spare)
    wanted = policy.count if size.count is None else size.count
    return Spares(wanted, policy.count, size.reason, held, _reservations(snapshot, policy.reservation))


def _reservations(snapshot: Snapshot, pool: str) -> list[Reservation]:
    holders = {pool: "the spare pool"}
    for name in snapshot.reservations:
        if name.startswith(SEATS_PREFIX):
            holders[name] = f"job {name.removeprefix(SEATS_PREFIX)}, for its seats"
        elif name.startswith(NODE_HOLD_PREFIX):
            holders[name] = f"node {name.removeprefix(NODE_HOLD_PREFIX)}, for its repair or validation"
    shown = [one for one in snapshot.reservations.values() if one.name in holders]
    return [Reservation(one.name, sorted(one.nodes), holders[one.name]) for one in sorted(shown, key=lambda r: r.name)]


def spare_requests_router(deps: SpareDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/spares/size", status_code=202)
    async def set_size(request: Request) -> Response:
        """Set how many spares the pool is to hold, also over a restart; null: the configured number again. A smaller
        number takes no node out of the pool: spares that gangs take are not replaced until it is reached.
        """
        return await _set_size(deps, request)

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
    words = f"{configured if body.size is None else body.size} spares are wanted"
    prospect = Prospect(Outcome.WILL_ACT, f"{words}; none leaves the pool for that")
    number = None
    if not body.dry_run:
        before = await asyncio.to_thread(deps.fleet.spares_size)
        entry = AuditEntry.of_request(identity, deps.clock.now(), Verb.SPARES_SIZE.value, "fleet", body.reason)
        entry = replace(entry, before={"size": before.count}, after={"size": body.size})
        number = await asyncio.to_thread(deps.fleet.set_spares_size, entry, body.size)
        log_audited(entry)
        deps.wake_loop()
    return accepted(number, "fleet", Verb.SPARES_SIZE, prospect)
