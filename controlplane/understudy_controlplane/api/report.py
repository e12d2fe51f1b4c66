"""The route to a report: what happened in a span of time, and what it cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.documents import Document, Form, date
from understudy_controlplane.api.pages import Epoch, known_parameters
from understudy_controlplane.api.report_plots import plots
from understudy_controlplane.api.report_sections import FleetReport, sections, summary
from understudy_controlplane.decide.observed import records
from understudy_controlplane.detect.lemon import lemons
from understudy_controlplane.figures.fleet_costs import History, fleet_costs
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.history import Span
from understudy_controlplane.store.history import HistoryStore
from understudy_controlplane.store.report import ReportStore

DAYS = 7


Since = Annotated[Epoch | None, Query(description="Seconds since the epoch; without it 7 days.")]
Until = Annotated[Epoch | None, Query(description="Seconds since the epoch; without it now.")]
Price = Annotated[
    float | None,
    Query(
        gt=0,
        le=1e6,
        description="Of one GPU for an hour, in any currency; without it `checkpoints.gpu_hour_price`.",
    ),
]
Format = Annotated[Form, Query(description="`text` is Markdown; `html` has plots.")]


def report_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/report")
    async def report(
        since: Since = None, until: Until = None, gpu_hour_price: Price = None, format: Format = Form.JSON
    ) -> Response:
        """What happened and what it cost: interruptions by cause, hours lost by job and owner, spares, lemons, false
        alarms, incidents, recoveries, quarantines, what guards held back.
        """
        end = deps.clock.now() if until is None else until
        begin = end - DAYS * DAY_SECONDS if since is None else since
        return await deps.readers.read(
            lambda: document(fleet_report(deps, begin, end, gpu_hour_price)).response(format)
        )

    return router


def fleet_report(
    deps: ReadDependencies, since: float, until: float, gpu_hour_price: float | None = None
) -> FleetReport:
    """`gpu_hour_price`: None: as configured."""
    sums, queries = ReportStore(deps.engine), deps.queries
    incidents = sums.incidents(since, until)
    price = deps.current.config.checkpoints.gpu_hour_price if gpu_hour_price is None else gpu_hour_price
    begins_at = HistoryStore(deps.engine).begins_at()
    known = Span(since if begins_at is None else min(max(since, begins_at), until), until)
    history = _history(deps, known, {one.name: one.count for one in incidents})
    return FleetReport(
        since,
        until,
        incidents,
        len(deps.stores.incidents.open_incidents()),
        sums.recoveries(since, until),
        sums.seconds_lost(since, until),
        sums.quarantines(since, until),
        sums.worst_nodes(since, until),
        sums.held_back(since, until),
        records(
            queries.held_decisions(since, until),
            deps.stores.requests.verdicts(since),
            queries.administrators_drains(since),
        ),
        deps.current.config.cluster,
        fleet_costs(history, known, price),
    )


def document(report: FleetReport) -> Document:
    span = date(report.since), date(report.until)
    return Document(
        report,
        f"Understudy, {span[0]} to {span[1]} UTC, {report.cluster}",
        sections(report),
        summary(report),
        plots(report.costs),
        (("since", span[0]), ("until", span[1]), ("cluster", report.cluster)),
    )


def gpus_of(deps: ReadDependencies) -> Callable[[str], int]:
    """How many GPUs a node has; where nothing is known of it, as many as the largest, or 1."""
    snapshot = deps.pulse.snapshot
    views = snapshot.nodes if snapshot is not None else {}
    known = {name: view.whole_gpus for name, view in views.items()}
    usual = max(known.values(), default=0) or 1
    return lambda node: known.get(node) or usual


def _history(deps: ReadDependencies, span: Span, incidents: dict[str, int]) -> History:
    snapshot, config = deps.pulse.snapshot, deps.current.config
    views = snapshot.nodes if snapshot is not None else {}
    stored, gpus = deps.stores.fleet.nodes(), gpus_of(deps)
    history = HistoryStore(deps.engine)
    return History(
        nodes={name: (record.state, record.since) for name, record in stored.items()},
        gpus=sum(map(gpus, stored)),
        jobs=history.jobs(span.since, span.until, gpus),
        incidents=incidents,
        transitions=history.transitions(span.since, span.until),
        verdicts=deps.stores.requests.verdicts(span.since),
        pool=history.pool(span.since),
        spares=[name for name, view in views.items() if view.is_spare],
        lemons=lemons(snapshot, config.lemon) if snapshot is not None else {},
    )
