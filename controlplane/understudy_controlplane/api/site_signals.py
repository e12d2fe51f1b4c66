"""Routes to the live signals of other systems of the site: read them, and end one that is wrong."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.operator_requests import (
    OperatorDependencies,
    accepted,
    log_audited,
    read_request,
)
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Permission
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb
from understudy_controlplane.fleet.site_signal import signal_subject
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.ingest.site_signals import SignalRecords, record_of
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.site_signals import SiteSignalStore

SignalId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/signals` shows it.")]


def signals_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/v1/signals")
    async def signals() -> Response:
        """The live signals of other systems of the site."""
        return await deps.readers.read(lambda: _live(deps))

    return router


def _live(deps: ReadDependencies) -> SignalRecords:
    return SignalRecords([record_of(one, deps.current) for one in deps.stores.signals.live(deps.clock.now())])


def end_signals_router(deps: OperatorDependencies, store: SiteSignalStore) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/signals/{signal}/end", status_code=202)
    async def end(signal: SignalId, request: Request) -> Response:
        """End a signal that is wrong. The same one is not taken again before the time at which it would have ended."""
        return await _end(deps, store, request, signal)

    return router


async def _end(deps: OperatorDependencies, store: SiteSignalStore, request: Request, number: int) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    now = deps.clock.now()
    found = next((one for one in await asyncio.to_thread(store.live, now) if one.id == number), None)
    if found is None:
        return refuse(404, f"there is no live signal {number}", "GET /v1/signals lists the live signals")
    prospect = Prospect(Outcome.WILL_ACT, "nothing follows from it any more")
    subject = signal_subject(number)
    if operator_request.dry_run:
        return accepted(None, subject, Verb.END_SIGNAL, prospect)
    entry = AuditEntry.of_request(identity, now, Verb.END_SIGNAL.value, subject, operator_request.reason)
    request_number = await asyncio.to_thread(store.end, number, entry)
    log_audited(entry)
    deps.wake_loop()
    return accepted(request_number, subject, Verb.END_SIGNAL, prospect)
