"""Routes to the live signals of other systems of the site: read them, and end one that is wrong."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.ingest.site_signals import SignalRecords, record_of
from understudy_controlplane.store.database import ID_MAX

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
