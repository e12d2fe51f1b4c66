"""Routes to operators' requests, and what became of each."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Response
from pydantic import Field

from understudy_controlplane.access.admission import Reader
from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.pages import Name, NumberedQuery, known_parameters, page
from understudy_controlplane.decide import job_moves, request_preview
from understudy_controlplane.fleet.identity import Identity
from understudy_controlplane.fleet.operator import NODE_VERBS, Request, RequestStatus, Verb, job_of_subject, recovery_of
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import Record
from understudy_controlplane.store.requests import RequestFilter

RequestId = Annotated[int, Path(ge=1, le=ID_MAX, description="As the answer to the request shows it.")]


class RequestState(msgspec.Struct, frozen=True):
    """A request, and what became of it; `decision` and `recovery` answered it."""

    id: int
    verb: Verb
    subject: str
    by: str
    reason: str
    at: float
    until: float | None
    status: RequestStatus
    why: str
    decision: int | None
    recovery: int | None


class RequestsQuery(NumberedQuery):
    node: Name | None = Field(None, description="That the request was about.")


def requests_router(deps: ReadDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])

    @router.get("/requests")
    async def requests(query: Annotated[RequestsQuery, Query()], reader: Reader) -> Response:
        """Operators' requests, and what became of each. To a user of the cluster: their own."""
        only = RequestFilter(node=query.node, by=only_by(reader))
        return await deps.readers.read(lambda: _page(deps, query, only))

    @router.get("/requests/{request}")
    async def request(request: RequestId, reader: Reader) -> Response:
        """A request: whether it waits and why, or the decision that answered it."""
        return await deps.readers.read(lambda: _request(deps, RequestFilter(id=request, by=only_by(reader))))

    return router


def _page(deps: ReadDependencies, query: RequestsQuery, only: RequestFilter) -> Response:
    found = request_states(deps, query.limit, query.before, only)
    return page(found, found[-1].id if len(found) == query.limit else None)


def only_by(reader: Identity) -> str | None:
    return None if reader.user_id is None else reader.label


def _request(deps: ReadDependencies, only: RequestFilter) -> RequestState | Response:
    found = request_states(deps, 1, ID_MAX, only)
    return found[0] if found else refuse(404, f"there is no request {only.id}", "GET /v1/requests lists the requests")


def request_states(deps: ReadDependencies, limit: int, before: int, only: RequestFilter) -> list[RequestState]:
    return [_shown(deps, row) for row in deps.stores.requests.newest(limit, before, only)]


def _shown(deps: ReadDependencies, row: Record) -> RequestState:
    verb = Verb(row["verb"])
    if verb is Verb.CANCEL:
        row["recovery"] = recovery_of(row["subject"])
        status, why = _of_cancel(deps, row)
    elif verb is Verb.APPROVE:
        row["recovery"] = recovery_of(row["subject"])
        status, why = _of_approval(deps, row)
    elif verb in NODE_VERBS:
        status, why = _of_node(deps, row, verb)
    elif verb is Verb.MOVE_JOB:
        status, why = _of_move(deps, row)
    elif verb is Verb.SAVE_JOB:
        status, why = _of_save(row)
    elif verb is Verb.DRILL and row["answered_at"] is None:
        status, why = RequestStatus.WAITING, "the drill goes on"
    else:
        status, why = RequestStatus.DONE, "it took effect at once"
    names = ("id", "subject", "by", "reason", "at", "until", "decision", "recovery")
    return RequestState(verb=verb, status=status, why=why, **{name: row[name] for name in names})


def _of_node(deps: ReadDependencies, row: Record, verb: Verb) -> tuple[RequestStatus, str]:
    if row["answered_at"] is None:
        asked = Request(row["id"], row["subject"], verb, row["reason"], row["by"], row["at"], row["until"])
        return RequestStatus.WAITING, _waits_for(deps, asked)
    return _of_decision(row)


def _of_move(deps: ReadDependencies, row: Record) -> tuple[RequestStatus, str]:
    if row["answered_at"] is not None:
        return _of_decision(row)
    snapshot = deps.pulse.snapshot
    moves = snapshot.operator.moves.items() if snapshot is not None else ()
    asked = next(((key, one) for key, one in moves if one.id == row["id"]), None)
    if snapshot is None or snapshot.slurm.read_at is None:
        return RequestStatus.WAITING, "Slurm has not been read yet"
    if job_of_subject(row["subject"]) not in {key.job_id for key in snapshot.jobs}:
        return RequestStatus.GIVEN_UP, "Slurm does not show the job any more"
    if asked is None:
        return RequestStatus.WAITING, "the next round takes it up"
    prospect = job_moves.prospect(snapshot, *asked, deps.current.config)
    return RequestStatus.WAITING, prospect if isinstance(prospect, str) else prospect.why


def _of_save(row: Record) -> tuple[RequestStatus, str]:
    if row["answered_at"] is None:
        return RequestStatus.WAITING, "the ranks are asked before which step they can save"
    detail = row["detail"]
    if detail is None:
        return RequestStatus.GIVEN_UP, "a newer request about the same subject replaced it"
    return (RequestStatus.DONE if detail["is_done"] else RequestStatus.GIVEN_UP), detail["outcome"]


def _of_decision(row: Record) -> tuple[RequestStatus, str]:
    if row["decision"] is None:
        return RequestStatus.GIVEN_UP, "a newer request about the same subject replaced it"
    if row["table_row"] in request_preview.GIVEN_UP_ROWS:
        return RequestStatus.GIVEN_UP, row["decided"]
    named = f"recovery {row['recovery']}"
    return {
        RecoveryStatus.RUNNING.value: (RequestStatus.WAITING, f"{named} is under way"),
        RecoveryStatus.FAILED.value: (RequestStatus.FAILED, f"{named} failed: {row['outcome']}"),
        RecoveryStatus.OVERTAKEN.value: (RequestStatus.GIVEN_UP, f"{named} is overtaken: {row['outcome']}"),
        RecoveryStatus.CANCELLED.value: (RequestStatus.GIVEN_UP, f"{named} is cancelled: {row['outcome']}"),
    }.get(row["recovery_status"], (RequestStatus.DONE, row["decided"]))


def _waits_for(deps: ReadDependencies, asked: Request) -> str:
    snapshot = deps.pulse.snapshot
    if snapshot is None or asked.subject not in snapshot.nodes:
        return "Slurm does not show the node"
    prospect = request_preview.of_node(snapshot, asked, deps.current.config)
    if prospect is None:
        return f"{asked.subject} is {snapshot.nodes[asked.subject].state.value}"
    return prospect.why


def _of_cancel(deps: ReadDependencies, row: Record) -> tuple[RequestStatus, str]:
    recovery = deps.stores.recoveries.find(row["recovery"])
    if recovery is None:
        return RequestStatus.GIVEN_UP, "there is no such recovery any more"
    status = recovery.ends_as or recovery.status
    if status is RecoveryStatus.CANCELLED:
        under_way = recovery.status is RecoveryStatus.RUNNING
        return (RequestStatus.WAITING, "it is being undone") if under_way else (RequestStatus.DONE, recovery.outcome)
    if status is RecoveryStatus.RUNNING:
        return RequestStatus.WAITING, "the recovery still runs"
    return RequestStatus.GIVEN_UP, f"the recovery is {status.value}: {recovery.outcome}"


def _of_approval(deps: ReadDependencies, row: Record) -> tuple[RequestStatus, str]:
    proposal = deps.stores.recoveries.find(row["recovery"])
    if proposal is None:
        return RequestStatus.GIVEN_UP, "there is no such recovery any more"
    if proposal.status is RecoveryStatus.APPROVED:
        return RequestStatus.WAITING, "the next round plans it from the newest facts"
    if proposal.status is RecoveryStatus.SUPERSEDED:
        return RequestStatus.DONE, f"it is carried out: {proposal.outcome}"
    return RequestStatus.GIVEN_UP, proposal.outcome
