"""The route to a report: what happened in a span of time."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.decide.observed import DAY_SECONDS, RuleRecord, records
from understudy_controlplane.store.report import Count, RecoveryCount, ReportStore

DAYS = 7

Since = Annotated[float | None, Query(allow_inf_nan=False, description="Seconds since the epoch; without it 7 days.")]
Until = Annotated[float | None, Query(allow_inf_nan=False, description="Seconds since the epoch; without it now.")]


class FleetReport(msgspec.Struct, frozen=True):
    """Of what began in the span. `recoveries` have ended; `observed` are decisions that were not carried out, with
    what people answered, also later.
    """

    since: float
    until: float
    incidents: list[Count]
    incidents_open: int
    recoveries: list[RecoveryCount]
    seconds_lost: float
    quarantines: list[Count]
    worst_nodes: list[Count]
    held_back: list[Count]
    observed: list[RuleRecord]


def report_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/report")
    async def report(since: Since = None, until: Until = None) -> Response:
        """What happened: incidents, recoveries with median times, time lost, quarantines, what guards held back."""
        end = deps.clock.now() if until is None else until
        begin = end - DAYS * DAY_SECONDS if since is None else since
        return await deps.readers.read(lambda: _report(deps, begin, end))

    return router


def _report(deps: ReadDependencies, since: float, until: float) -> FleetReport:
    sums, queries = ReportStore(deps.engine), deps.queries
    return FleetReport(
        since,
        until,
        sums.incidents(since, until),
        len(deps.stores.incidents.open_incidents()),
        sums.recoveries(since, until),
        sums.seconds_lost(since, until),
        sums.quarantines(since, until),
        sums.worst_nodes(since, until),
        sums.held_back(since, until),
        records(queries.held_decisions(since, until), queries.verdicts(since), queries.administrators_drains(since)),
    )
