"""Routes to what the control plane found, decided and did: incidents, decisions, recoveries, tickets."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.api.dependencies import (
    DecisionId,
    IncidentId,
    ReadDependencies,
    RecoveryId,
    TicketId,
)
from understudy_controlplane.api.pages import Epoch, Name, Number, NumberedQuery, known_parameters, numbered_page
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.node import REASON_PREFIX
from understudy_controlplane.fleet.phases import phase_times
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    DrainPlan,
    FillPoolPlan,
    LeavePoolPlan,
    Plan,
    PoolSwapPlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    ReleaseJobPlan,
    SwapPlan,
    job_of,
)
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.queries import DecisionFilter, IncidentFilter, Queries, Record
from understudy_controlplane.store.recoveries import RecoveryFilter


class IncidentsQuery(NumberedQuery):
    open: bool | None = None
    subject: Name | None = Field(None, description="A node, a gang or a domain.")


class DecisionsQuery(NumberedQuery):
    since: Epoch | None = Field(None, description="Seconds since the epoch: then or later.")
    until: Epoch | None = Field(None, description="Seconds since the epoch: before.")
    subject: Name | None = None
    action: Action | None = None


class RecoveriesQuery(NumberedQuery):
    status: RecoveryStatus | None = None
    kind: RecoveryKind | None = None
    job: Number | None = Field(None, description="Slurm's job id.")
    node: Name | None = Field(None, description="That a decision for the recovery was about.")


class TicketsQuery(NumberedQuery):
    open: bool | None = None


def recoveries_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/incidents")
    async def incidents(query: Annotated[IncidentsQuery, Query()]) -> Response:
        """Incidents, with evidence."""
        only = IncidentFilter(open=query.open, subject=query.subject)
        return await deps.readers.read(
            lambda: numbered_page(deps.queries.incidents(query.limit, query.before, only), query.limit)
        )

    @router.get("/incidents/{incident}")
    async def incident(incident: IncidentId) -> Response:
        """An incident."""
        only = IncidentFilter(id=incident)
        return await deps.readers.read(lambda: _one(deps.queries.incidents(1, only=only), "incident", incident))

    @router.get("/decisions")
    async def decisions(query: Annotated[DecisionsQuery, Query()]) -> Response:
        """Decisions and their reasons; decisions to do nothing too."""
        only = DecisionFilter(
            since=query.since,
            until=query.until,
            subject=query.subject,
            action=query.action and query.action.value,
        )
        return await deps.readers.read(
            lambda: numbered_page(deps.queries.decisions(query.limit, query.before, only), query.limit)
        )

    @router.get("/decisions/{decision}")
    async def decision(decision: DecisionId) -> Response:
        """A decision."""
        only = DecisionFilter(id=decision)
        return await deps.readers.read(lambda: _one(deps.queries.decisions(1, only=only), "decision", decision))

    @router.get("/recoveries")
    async def recoveries(query: Annotated[RecoveriesQuery, Query()], reader: Reader) -> Response:
        """Recoveries: plan, steps, and the time of each phase."""
        return await deps.readers.read(lambda: _recoveries(deps, query, reader.user_id))

    @router.get("/recoveries/{recovery}")
    async def recovery(recovery: RecoveryId, reader: Reader) -> Response:
        """A recovery."""
        return await deps.readers.read(lambda: _found(deps, RecoveryFilter(id=recovery, user_id=reader.user_id)))

    _add_tickets(router, deps)
    return router


def _add_tickets(router: APIRouter, deps: ReadDependencies) -> None:
    @router.get("/tickets")
    async def tickets(query: Annotated[TicketsQuery, Query()]) -> Response:
        """Tickets for manual repair, with evidence."""
        read = deps.stores.tickets.tickets
        return await deps.readers.read(
            lambda: numbered_page(read(query.limit, query.before, is_open=query.open), query.limit)
        )

    @router.get("/tickets/{ticket}")
    async def ticket(ticket: TicketId) -> Response:
        """A ticket."""
        return await deps.readers.read(lambda: _one(deps.stores.tickets.tickets(1, number=ticket), "ticket", ticket))


def _one(found: list[Record], what: str, number: int) -> Record | Response:
    return found[0] if found else refuse(404, f"there is no {what} {number}", f"GET /v1/{what}s lists them")


def _found(deps: ReadDependencies, only: RecoveryFilter) -> Record | Response:
    found = deps.stores.recoveries.newest(1, only=only)
    if not found:
        return refuse(404, f"there is no recovery {only.id}", "GET /v1/recoveries lists the recoveries")
    return recovery_record(deps, found[0])


def _recoveries(deps: ReadDependencies, query: RecoveriesQuery, user_id: int | None) -> Response:
    only = RecoveryFilter(status=query.status, kind=query.kind, job_id=query.job, node=query.node, user_id=user_id)
    newest = deps.stores.recoveries.newest(query.limit, query.before, only)
    return numbered_page([recovery_record(deps, one) for one in newest], query.limit)


def recovery_record(deps: ReadDependencies, recovery: Recovery) -> Record:
    plan, job = recovery.plan, job_of(recovery.plan)
    row: Record = {
        "id": recovery.id,
        "kind": plan.kind.value,
        "status": recovery.status.value,
        "reason": _reason(plan),
        "outcome": recovery.outcome,
        "job": job._asdict() if job else None,
        "restart_count": plan.restart_count if isinstance(plan, SwapPlan | ReleaseJobPlan) else 0,
        "nodes": list(plan.nodes),
        "spares": list(plan.spares) if isinstance(plan, PoolSwapPlan | FillPoolPlan | LeavePoolPlan) else [],
        "seats": list(plan.seats) if isinstance(plan, PoolSwapPlan) else [],
        "fault_at": recovery.fault_at,
        "detected_at": recovery.detected_at,
        "decided_at": recovery.decided_at,
        "ended_at": recovery.ended_at,
        "approve_by": recovery.approve_by,
        "approved_by": recovery.approved_by,
        "phases_ms": {phase: round((at - recovery.fault_at) * 1000) for phase, at in phase_times(recovery).items()},
        "steps": recovery.steps,
    }
    if isinstance(plan, AllocationSwapPlan):
        row |= {"launch": plan.launch, "hang": plan.hang}
    if isinstance(plan, PoolSwapPlan) or (isinstance(plan, AllocationSwapPlan) and plan.launch >= 0):
        row |= progress_lost(deps.queries, plan)
    return row


def _reason(plan: Plan) -> str:
    return plan.drain_reason.removeprefix(REASON_PREFIX).strip() if isinstance(plan, DrainPlan) else ""


def progress_lost(queries: Queries, plan: PoolSwapPlan | AllocationSwapPlan) -> dict[str, Any]:
    """The furthest step of the attempt that ended, where the next attempt began, and how many steps were repeated; as
    the program numbers them.
    """
    job = plan.job
    job_row = queries.job_row(job.job_id, job.submit_at)
    launch = plan.launch if isinstance(plan, AllocationSwapPlan) else None  # what follows has gone further
    counted, count_from = queries.last_step(job_row, plan.restart_count, launch) if job_row else (None, 0)
    if isinstance(plan, AllocationSwapPlan):
        following = Attempt(plan.restart_count, plan.launch + 1)
    else:
        following = Attempt(plan.restart_count + 1)
    restored = queries.restored_step(job_row, following) if job_row else None
    # A checkpoint from which step n is next proves that n - 1 was finished, even if its time was never reported.
    proven = restored - 1 if restored else None
    seen = [step - count_from for step in (counted, plan.last_step) if step is not None]
    known = [*seen, *([] if proven is None else [proven])]
    reached = max(known, default=None)
    lost = reached + 1 - restored if reached is not None and restored is not None else None
    return {"last_step": reached, "restore_step": restored, "steps_lost": lost}
