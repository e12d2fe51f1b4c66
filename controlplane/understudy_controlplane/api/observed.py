"""The route to what each rule would have done while it only observed, and how often people agreed."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import Epoch, known_parameters
from understudy_controlplane.decide.observed import RuleRecord, records
from understudy_controlplane.fleet.durations import DAY_SECONDS

DAYS = 30

Since = Annotated[Epoch | None, Query(description="Seconds since the epoch; without it 30 days.")]


class Observed(msgspec.Struct, frozen=True):
    """`ready`: the rules whose record speaks for mode act."""

    since: float
    rules: list[RuleRecord]
    ready: list[str]


def observed_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/observed")
    async def observed(since: Since = None) -> Response:
        """Each rule: what it would have done, and whether people agreed: operators, approvals, drains in Slurm."""
        begin = deps.clock.now() - DAYS * DAY_SECONDS if since is None else since
        return await deps.readers.read(lambda: observed_rules(deps, begin))

    return router


def observed_rules(deps: ReadDependencies, since: float) -> Observed:
    queries = deps.queries
    rules = records(
        queries.held_decisions(since), deps.stores.requests.verdicts(since), queries.administrators_drains(since)
    )
    return Observed(since, rules, [one.rule for one in rules if one.ready])
