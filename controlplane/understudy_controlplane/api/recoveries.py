"""Routes to what the control plane found, decided and did: incidents, decisions, recoveries, tickets."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import Before, Limit, after_id, known_parameters, page
from understudy_controlplane.api.timeline import phases_ms
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    FillPoolPlan,
    PoolSwapPlan,
    Recovery,
    ReleaseJobPlan,
    SwapPlan,
    job_of,
)
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import Record


def recoveries_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/incidents")
    async def incidents(request: Request, limit: Limit = 100, before: Before = ID_MAX) -> Response:
        """Incidents, with evidence."""
        return await deps.readers.read(lambda: _page(request, deps.queries.incidents(limit, before), limit))

    @router.get("/decisions")
    async def decisions(request: Request, limit: Limit = 100, before: Before = ID_MAX) -> Response:
        """Decisions and their reasons; decisions to do nothing too."""
        return await deps.readers.read(lambda: _page(request, deps.queries.decisions(limit, before), limit))

    @router.get("/recoveries")
    async def recoveries(request: Request, limit: Limit = 100, before: Before = ID_MAX) -> Response:
        """Recoveries: plan, steps, and the time of each phase."""
        return await deps.readers.read(lambda: _recoveries(deps, request, limit, before))

    @router.get("/tickets")
    async def tickets(request: Request, limit: Limit = 100, before: Before = ID_MAX) -> Response:
        """Tickets for manual repair, with evidence."""
        return await deps.readers.read(lambda: _page(request, deps.stores.repairs.tickets(limit, before), limit))

    return router


def _page(request: Request, records: list[Record], limit: int) -> Response:
    return page(request, records, after_id(records, limit))


def _recoveries(deps: ReadDependencies, request: Request, limit: int, before: int) -> Response:
    newest = deps.stores.recoveries.newest(limit, before)
    return _page(request, [_recovery(deps, one) for one in newest], limit)


def _recovery(deps: ReadDependencies, recovery: Recovery) -> Record:
    plan, job = recovery.plan, job_of(recovery.plan)
    row: Record = {
        "id": recovery.id,
        "kind": plan.kind.value,
        "status": recovery.status.value,
        "outcome": recovery.outcome,
        "job": job._asdict() if job else None,
        "restart_count": plan.restart_count if isinstance(plan, SwapPlan | ReleaseJobPlan) else 0,
        "nodes": list(plan.nodes),
        "spares": list(plan.spares) if isinstance(plan, PoolSwapPlan | FillPoolPlan) else [],
        "seats": list(plan.seats) if isinstance(plan, PoolSwapPlan) else [],
        "fault_at": recovery.fault_at,
        "detected_at": recovery.detected_at,
        "decided_at": recovery.decided_at,
        "ended_at": recovery.ended_at,
        "phases_ms": phases_ms(recovery, recovery.fault_at),
        "steps": recovery.steps,
    }
    if isinstance(plan, AllocationSwapPlan):
        row |= {"launch": plan.launch, "hang": plan.hang}
    if isinstance(plan, PoolSwapPlan) or (isinstance(plan, AllocationSwapPlan) and plan.launch >= 0):
        row |= _progress_lost(deps, plan)
    return row


def _progress_lost(deps: ReadDependencies, plan: PoolSwapPlan | AllocationSwapPlan) -> dict[str, Any]:
    """The furthest step of the attempt that ended, where the next attempt began, and how many steps were repeated."""
    job = plan.job
    job_row = deps.queries.job_row(job.job_id, job.submit_at)
    reached = deps.queries.last_step(job_row, plan.restart_count) if job_row else None
    if isinstance(plan, AllocationSwapPlan):
        following = Attempt(plan.restart_count, plan.launch + 1)
    else:
        following = Attempt(plan.restart_count + 1)
    point = deps.stores.fleet.restore_point(job_row, following) if job_row else None
    restored = point[0] if point else None
    # A checkpoint from which step n is next proves that n - 1 was finished, even if its time was never reported.
    proven = restored - 1 if restored else None
    known = [step for step in (reached, plan.last_step, proven) if step is not None]
    reached = max(known, default=None)
    lost = reached + 1 - restored if reached is not None and restored is not None else None
    return {"last_step": reached, "restore_step": restored, "steps_lost": lost}
