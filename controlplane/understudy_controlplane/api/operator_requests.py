"""Routes for operators' requests: pause and resume, the circuit breaker, and single nodes.

Each request is recorded with who made it and why. The loop decides what follows from a request about a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import structlog
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Meta

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import DecisionId, NodeName, RecoveryId, TicketId
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide import request_preview
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb, cancel_subject, decision_subject
from understudy_controlplane.fleet.operator import Request as AskedFor
from understudy_controlplane.fleet.recovery import Recovery, RecoveryStatus
from understudy_controlplane.ingest.answers import ErrorCode, answer, refuse
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.recoveries import RecoveryStore
from understudy_controlplane.store.repairs import RepairStore
from understudy_wire.values import NOT_UNDERSTOOD

log = structlog.get_logger()

Seconds = Annotated[float, Meta(gt=0, le=366 * 24 * 3600)]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=4000, pattern=r"^[^\x00]*$")]  # SQL refuses NUL
    dry_run: bool = False  # only answer what would come of it


class PauseBody(RequestBody, frozen=True, forbid_unknown_fields=True):
    now: bool = False  # recoveries under way halt as well
    for_seconds: Seconds | None = None  # None: until a person resumes


class HoldBody(RequestBody, frozen=True, forbid_unknown_fields=True):
    for_seconds: Seconds | None = None  # None: until a person releases it


class MoveBody(RequestBody, frozen=True, forbid_unknown_fields=True):
    off: Annotated[
        tuple[Annotated[str, Meta(max_length=255)], ...], Meta(max_length=1000)
    ] = ()  # nodes that the gang leaves
    at_checkpoint: bool = False  # not before the job's next complete checkpoint


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    identity: Identity
    reason: str
    dry_run: bool = False
    now: bool = False
    for_seconds: float | None = None
    off: tuple[str, ...] = ()
    at_checkpoint: bool = False

    @property
    def by(self) -> str:
        return self.identity.label

    def until(self, now: float) -> float | None:
        return None if self.for_seconds is None else now + self.for_seconds


class Accepted(msgspec.Struct, frozen=True):
    """What will come of a request. `request` is its number, for `GET /v1/requests/{request}`; null: a dry run."""

    request: int | None
    subject: str
    verb: Verb
    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class OperatorDependencies:
    admission: Admission
    fleet: FleetStore
    repairs: RepairStore
    recoveries: RecoveryStore
    current: CurrentConfig
    clock: Clock
    pulse: Pulse
    wake_loop: Callable[[], None]


def operator_router(deps: OperatorDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/pause", status_code=202)
    async def pause(request: Request) -> Response:
        """Pause: no recovery begins; those under way stop before their next effect, except between two attempts of a
        gang. With `now` they stop there as well. With `for_seconds` it ends by itself.
        """
        return await _set_switch(deps, request, Verb.PAUSE)

    @router.post("/v1/resume", status_code=202)
    async def resume(request: Request) -> Response:
        """End the pause."""
        return await _set_switch(deps, request, Verb.RESUME)

    @router.post("/v1/breaker/reset", status_code=202)
    async def reset_breaker(request: Request) -> Response:
        """Close the circuit breaker, after a person has found out why it opened."""
        return await _set_switch(deps, request, Verb.RESET_BREAKER)

    @router.post("/v1/recoveries/{recovery}/cancel", status_code=202)
    async def cancel(recovery: RecoveryId, request: Request) -> Response:
        """Cancel a recovery under way: what was begun is undone, or reported as left in its outcome."""
        return await _cancel(deps, request, recovery)

    @router.post("/v1/recoveries/{recovery}/approve", status_code=202)
    async def approve(recovery: RecoveryId, request: Request) -> Response:
        """Approve a recovery that waits for it, in mode approve. The next round plans it from the newest facts."""
        return await _approve(deps, request, recovery)

    @router.post("/v1/decisions/{decision}/agree", status_code=202)
    async def agree(decision: DecisionId, request: Request) -> Response:
        """Agree with a decision that the control plane only observed: the record of its rule shows it."""
        return await _judge(deps, request, decision, Verb.AGREE)

    @router.post("/v1/decisions/{decision}/disagree", status_code=202)
    async def disagree(decision: DecisionId, request: Request) -> Response:
        """Disagree with a decision that the control plane only observed."""
        return await _judge(deps, request, decision, Verb.DISAGREE)

    _add_node_requests(router, deps)
    _add_tickets(router, deps)
    return router


def _add_tickets(router: APIRouter, deps: OperatorDependencies) -> None:
    @router.post("/v1/tickets/{ticket}/ack", status_code=202)
    async def acknowledge(ticket: TicketId, request: Request) -> Response:
        """Acknowledge a ticket: others see who deals with it."""
        return await _answer_ticket(deps, request, ticket, Verb.ACKNOWLEDGE_TICKET)

    @router.post("/v1/tickets/{ticket}/close", status_code=202)
    async def close(ticket: TicketId, request: Request) -> Response:
        """Close a ticket. Its node stays in manual repair until it is released."""
        return await _answer_ticket(deps, request, ticket, Verb.CLOSE_TICKET)


def _add_node_requests(router: APIRouter, deps: OperatorDependencies) -> None:
    @router.post("/v1/nodes/{node}/hold", status_code=202)
    async def hold(node: NodeName, request: Request) -> Response:
        """Take the node out of service until an operator releases it, or for `for_seconds`."""
        return await _request_for_node(deps, request, Verb.HOLD, node)

    @router.post("/v1/nodes/{node}/quarantine", status_code=202)
    async def quarantine(node: NodeName, request: Request) -> Response:
        """Report a fault of the node: as with a fault that the control plane finds, the node is drained, its gang moves
        to a spare, and the node is repaired and validated. The budgets of such faults apply.
        """
        return await _request_for_node(deps, request, Verb.QUARANTINE, node)

    @router.post("/v1/nodes/{node}/release", status_code=202)
    async def release(node: NodeName, request: Request) -> Response:
        """Return the node to service; after a repair it is validated first, where validation is enabled."""
        return await _request_for_node(deps, request, Verb.RELEASE, node)

    @router.post("/v1/nodes/{node}/validate", status_code=202)
    async def validate(node: NodeName, request: Request) -> Response:
        """Validate a node in service, as soon as no job uses it."""
        return await _request_for_node(deps, request, Verb.VALIDATE, node)

    @router.post("/v1/nodes/{node}/burn-in", status_code=202)
    async def burn_in(node: NodeName, request: Request) -> Response:
        """Repeat the validation for some hours, as soon as no job uses the node."""
        return await _request_for_node(deps, request, Verb.BURN_IN, node)

    @router.post("/v1/nodes/{node}/retire", status_code=202)
    async def retire(node: NodeName, request: Request) -> Response:
        """Take the node out of service for good."""
        return await _request_for_node(deps, request, Verb.RETIRE, node)


SWITCHES = {
    Verb.PAUSE: "nothing begins; recoveries stop before their next effect, except between two attempts of a gang",
    Verb.PAUSE_NOW: "nothing begins; recoveries stop before their next effect, also between two attempts of a gang",
    Verb.RESUME: "recoveries go on",
    Verb.RESET_BREAKER: "the circuit breaker is closed: neither it nor the budgets of rules count earlier quarantines",
}
"""What comes of the requests that take effect at once, in every mode."""


async def _set_switch(deps: OperatorDependencies, request: Request, verb: Verb) -> Response:
    needed = Permission.ADMINISTER if verb is Verb.RESET_BREAKER else Permission.OPERATE
    identity = await deps.admission.admit(request, needed)
    operator_request = await read_request(request, identity, PauseBody if verb is Verb.PAUSE else RequestBody)
    if isinstance(operator_request, Response):
        return operator_request
    if operator_request.now:
        verb = Verb.PAUSE_NOW
    number = None if operator_request.dry_run else await asyncio.to_thread(_switch, deps, operator_request, verb)
    return accepted(number, "fleet", verb, Prospect(Outcome.WILL_ACT, SWITCHES[verb]))


def _switch(deps: OperatorDependencies, operator_request: OperatorRequest, verb: Verb) -> int:
    now, why, by = deps.clock.now(), operator_request.reason, operator_request.by
    entry = AuditEntry.of_request(operator_request.identity, now, verb.value, "fleet", why)
    until = operator_request.until(now)
    if verb is Verb.RESET_BREAKER:
        entry = replace(entry, before={"breaker": deps.repairs.breaker().reason}, after={"breaker": ""})
    else:
        after: dict[str, Json] = {"paused": "" if verb is Verb.RESUME else f"{why} ({by})"}
        after |= {} if until is None else {"until": until}
        entry = replace(entry, before={"paused": deps.fleet.pause(now).reason}, after=after)
    number = deps.fleet.add_intent(verb.value, why, by, now, entry, until)
    log_audited(entry)
    deps.wake_loop()
    return number


async def _cancel(deps: OperatorDependencies, request: Request, number: int) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    recovery = await asyncio.to_thread(deps.recoveries.find, number)
    if recovery is None:
        return refuse(404, f"there is no recovery {number}", "GET /v1/recoveries lists the recoveries")
    if recovery.status is RecoveryStatus.AWAITS_APPROVAL:
        return await _answer_proposal(deps, operator_request, recovery, Verb.CANCEL)
    if recovery.status is not RecoveryStatus.RUNNING or recovery.ends_as is not None:
        status = recovery.ends_as or recovery.status
        detail = f"recovery {number} is {status.value}: there is nothing to cancel"
        return refuse(409, detail, f"see GET /v1/recoveries/{number}", ErrorCode.RECOVERY_STATUS)
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    before: dict[str, Json] = {"status": recovery.status.value}
    asked = await _ask(deps, operator_request, Verb.CANCEL, cancel_subject(number), before)
    return accepted(asked, cancel_subject(number), Verb.CANCEL, request_preview.of_cancel(snapshot))


async def _approve(deps: OperatorDependencies, request: Request, number: int) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    recovery = await asyncio.to_thread(deps.recoveries.find, number)
    if recovery is None:
        return refuse(404, f"there is no recovery {number}", "GET /v1/recoveries lists the recoveries")
    if recovery.status is not RecoveryStatus.AWAITS_APPROVAL:
        return _waits_no_more(recovery)
    return await _answer_proposal(deps, operator_request, recovery, Verb.APPROVE)


ANSWERS = {
    Verb.APPROVE: "it is planned from the newest facts and begins within seconds, while its fault stands",
    Verb.CANCEL: "it is not proposed again before the time until which it could have been approved",
}
"""What comes of the answer to a proposal."""


async def _answer_proposal(
    deps: OperatorDependencies, operator_request: OperatorRequest, recovery: Recovery, verb: Verb
) -> Response:
    subject, prospect = cancel_subject(recovery.id), Prospect(Outcome.WILL_ACT, ANSWERS[verb])
    if operator_request.dry_run:
        return accepted(None, subject, verb, prospect)
    now, why = deps.clock.now(), operator_request.reason
    entry = AuditEntry.of_request(operator_request.identity, now, verb.value, subject, why)
    entry = replace(entry, before={"status": recovery.status.value}, after={"requested": verb.value})
    store = deps.recoveries.approve if verb is Verb.APPROVE else deps.recoveries.reject
    number = await asyncio.to_thread(store, recovery.id, entry)
    if number is None:  # another operator, or the loop, was faster
        return _waits_no_more(await asyncio.to_thread(deps.recoveries.get, recovery.id))
    log_audited(entry)
    deps.wake_loop()
    return accepted(number, subject, verb, prospect)


def _waits_no_more(recovery: Recovery) -> Response:
    detail = f"recovery {recovery.id} is {recovery.status.value}: it does not wait for approval"
    return refuse(409, detail, f"see GET /v1/recoveries/{recovery.id}", ErrorCode.RECOVERY_STATUS)


TICKETS = {
    Verb.ACKNOWLEDGE_TICKET: "GET /v1/tickets shows who deals with it",
    Verb.CLOSE_TICKET: "it is closed; its node stays in manual repair until it is released",
}
"""What comes of the answer to a ticket."""


async def _answer_ticket(deps: OperatorDependencies, request: Request, ticket: int, verb: Verb) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    found = await asyncio.to_thread(deps.repairs.tickets, 1, number=ticket)
    if not found:
        return refuse(404, f"there is no ticket {ticket}", "GET /v1/tickets lists the tickets")
    closed = refuse(409, f"ticket {ticket} is closed already", f"see GET /v1/tickets/{ticket}")
    if found[0]["closed_at"] is not None:
        return closed
    subject, prospect = f"ticket {ticket}", Prospect(Outcome.WILL_ACT, TICKETS[verb])
    if operator_request.dry_run:
        return accepted(None, subject, verb, prospect)
    entry = AuditEntry.of_request(identity, deps.clock.now(), verb.value, subject, operator_request.reason)
    store = deps.repairs.acknowledge_ticket if verb is Verb.ACKNOWLEDGE_TICKET else deps.repairs.close_ticket
    number = await asyncio.to_thread(store, ticket, entry)
    if number is None:  # another operator was faster
        return closed
    log_audited(entry)
    return accepted(number, subject, verb, prospect)


async def _judge(deps: OperatorDependencies, request: Request, decision: int, verb: Verb) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    if not await asyncio.to_thread(deps.repairs.is_decision, decision):
        return refuse(404, f"there is no decision {decision}", "GET /v1/decisions lists the decisions")
    subject = decision_subject(decision)
    number = await _ask(deps, operator_request, verb, subject, {})
    return accepted(number, subject, verb, Prospect(Outcome.WILL_ACT, "GET /v1/observed counts it for its rule"))


async def _request_for_node(deps: OperatorDependencies, request: Request, verb: Verb, node: str) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity, HoldBody if verb is Verb.HOLD else RequestBody)
    if isinstance(operator_request, Response):
        return operator_request
    record = (await asyncio.to_thread(deps.fleet.nodes_named, [node])).get(node)
    snapshot = deps.pulse.snapshot
    if snapshot is None:
        return not_ready()
    if record is None or node not in snapshot.nodes:
        return refuse(404, f"node {node} is not known", "GET /v1/nodes lists the nodes")
    current = replace(snapshot, nodes={**snapshot.nodes, node: replace(snapshot.nodes[node], record=record)})
    now = deps.clock.now()
    asked = AskedFor(0, node, verb, operator_request.reason, operator_request.by, now)
    prospect = request_preview.of_node(current, asked, deps.current.config)
    if prospect is None:
        hint = "docs/repair-cycle.md shows which request fits which state"
        if record.state is NodeState.FOREIGN_DRAIN:
            hint = "an administrator drained it in Slurm; resume it there: scontrol update State=RESUME"
        detail = f"{node} is {record.state.value}: {verb.value} would change nothing"
        return refuse(409, detail, hint, ErrorCode.NODE_STATE)
    if operator_request.for_seconds is not None and record.at_fault:
        detail = f"{node} is {record.state.value}: the end of the hold would return it to service with its fault"
        hint = "hold it without an end, and release it when the fault is repaired"
        return refuse(409, detail, hint, ErrorCode.NODE_STATE)
    number = await _ask(deps, operator_request, verb, node, {"state": record.state.value})
    return accepted(number, node, verb, prospect)


async def _ask(
    deps: OperatorDependencies, operator_request: OperatorRequest, verb: Verb, subject: str, before: Mapping[str, Json]
) -> int | None:
    """The number of the request; None: it was only to be answered."""
    if operator_request.dry_run:
        return None
    now, why = deps.clock.now(), operator_request.reason
    until = operator_request.until(now)
    after: dict[str, Json] = {"requested": verb.value}
    after |= {} if until is None else {"until": until}
    entry = AuditEntry.of_request(operator_request.identity, now, verb.value, subject, why)
    entry = replace(entry, before=before, after=after)
    number = await asyncio.to_thread(deps.repairs.ask_audited, verb, entry, until)
    log_audited(entry)
    deps.wake_loop()
    return number


def accepted(number: int | None, subject: str, verb: Verb, prospect: Prospect) -> Response:
    """202 for what is stored, 200 for a dry run."""
    status = 200 if number is None else 202
    return answer(Accepted(number, subject, verb, prospect.outcome, prospect.why), status)


def not_ready() -> Response:
    return refuse(503, "the control plane has just started and has not looked at the cluster yet", "repeat the request")


def log_audited(entry: AuditEntry) -> None:
    """The journal of the host, or whatever collects its logs, keeps a copy that no one with the database can change."""
    log.info(
        "operator_request",
        who=entry.who,
        address=entry.address,
        action=entry.action,
        subject=entry.subject,
        reason=entry.reason,
    )


async def read_request(
    request: Request, identity: Identity, kind: type[RequestBody] = RequestBody
) -> OperatorRequest | Response:
    """The operator's request, or its refusal."""
    try:
        body = msgspec.json.decode(await request.body(), type=kind)
    except NOT_UNDERSTOOD as error:
        return refuse(400, f"the request cannot be read: {error}", 'send {"reason": "…"}')
    if not body.reason.strip():
        return refuse(422, "reason must not be empty", "give a reason that the next operator understands")
    for_seconds = body.for_seconds if isinstance(body, PauseBody | HoldBody) else None
    now = isinstance(body, PauseBody) and body.now
    off, at_checkpoint = (body.off, body.at_checkpoint) if isinstance(body, MoveBody) else ((), False)
    return OperatorRequest(identity, body.reason, body.dry_run, now, for_seconds, off, at_checkpoint)
