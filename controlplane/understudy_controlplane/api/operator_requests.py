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

from understudy_agent.wire import NOT_UNDERSTOOD
from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.dependencies import RecoveryId
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb, cancel_subject
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.ingest.answers import ErrorCode, answer, refuse
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.recoveries import RecoveryStore
from understudy_controlplane.store.repairs import RepairStore

log = structlog.get_logger()


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: Annotated[str, Meta(max_length=4000, pattern=r"^[^\x00]*$")]  # SQL refuses NUL
    by: str = ""
    """Ignored: who made the request comes from its token. Clients of earlier releases send it."""


class PauseBody(RequestBody, frozen=True, forbid_unknown_fields=True):
    now: bool = False  # recoveries under way halt as well


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    identity: Identity
    reason: str
    now: bool = False

    @property
    def by(self) -> str:
        return self.identity.label


class PauseState(msgspec.Struct, frozen=True):
    paused: str
    now: bool  # whether recoveries under way are halted


class CancelledRecovery(msgspec.Struct, frozen=True):
    """The loop undoes what was begun within seconds; `/v1/recoveries` shows the outcome."""

    recovery: int
    status: str  # when the request was made


class BreakerState(msgspec.Struct, frozen=True):
    breaker: str


class AcceptedRequest(msgspec.Struct, frozen=True):
    """The loop handles the request within a second; `/v1/nodes` and `/v1/decisions` show the result."""

    node: str
    asked: str
    state: str  # of the node when the request was made


WORKING = (NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.PROBATION)
NOT_WORKING = tuple(state for state in NodeState if state not in WORKING)

REFUSED_IN = {
    Verb.HOLD: (NodeState.OPERATOR_HOLD, NodeState.RETIRED),
    Verb.RETIRE: (NodeState.RETIRED,),
    Verb.TEST: NOT_WORKING,
    Verb.BURN_IN: NOT_WORKING,
    Verb.RELEASE: (
        NodeState.IN_SERVICE,
        NodeState.SUSPECT,
        NodeState.UNKNOWN,
        NodeState.PROBATION,
        NodeState.VALIDATING,
        NodeState.FOREIGN_DRAIN,
    ),
}
"""States of a node in which the request is refused, because it would change nothing."""


@dataclass(frozen=True, slots=True)
class OperatorDependencies:
    admission: Admission
    fleet: FleetStore
    repairs: RepairStore
    recoveries: RecoveryStore
    clock: Clock
    wake_loop: Callable[[], None]


def operator_router(deps: OperatorDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/pause")
    async def pause(request: Request) -> Response:
        """Pause: no recovery begins; those under way stop before their next effect, except between two attempts of a
        gang. With `now` they stop there as well.
        """
        return await _set_switch(deps, request, Verb.PAUSE)

    @router.post("/v1/resume")
    async def resume(request: Request) -> Response:
        """End the pause."""
        return await _set_switch(deps, request, Verb.RESUME)

    @router.post("/v1/reset-breaker")
    async def reset_breaker(request: Request) -> Response:
        """Close the circuit breaker, after a person has found out why it opened."""
        return await _set_switch(deps, request, Verb.RESET_BREAKER)

    @router.post("/v1/recoveries/{recovery}/cancel")
    async def cancel(recovery: RecoveryId, request: Request) -> Response:
        """Cancel a recovery under way: what was begun is undone, or reported as left in its outcome."""
        return await _cancel(deps, request, recovery)

    @router.post("/v1/nodes/{node}/hold")
    async def hold(node: str, request: Request) -> Response:
        """Take the node out of service until an operator releases it."""
        return await _request_for_node(deps, request, Verb.HOLD, node)

    @router.post("/v1/nodes/{node}/release")
    async def release(node: str, request: Request) -> Response:
        """Return the node to service; after a repair it is validated first, where validation is enabled."""
        return await _request_for_node(deps, request, Verb.RELEASE, node)

    @router.post("/v1/nodes/{node}/test")
    async def test(node: str, request: Request) -> Response:
        """Validate a node in service, as soon as no job uses it."""
        return await _request_for_node(deps, request, Verb.TEST, node)

    @router.post("/v1/nodes/{node}/burn-in")
    async def burn_in(node: str, request: Request) -> Response:
        """Repeat the validation for some hours, as soon as no job uses the node."""
        return await _request_for_node(deps, request, Verb.BURN_IN, node)

    @router.post("/v1/nodes/{node}/retire")
    async def retire(node: str, request: Request) -> Response:
        """Take the node out of service for good."""
        return await _request_for_node(deps, request, Verb.RETIRE, node)

    return router


async def _set_switch(deps: OperatorDependencies, request: Request, verb: Verb) -> Response:
    needed = Permission.ADMINISTER if verb is Verb.RESET_BREAKER else Permission.OPERATE
    identity = await deps.admission.admit(request, needed)
    operator_request = await read_request(request, identity, PauseBody if verb is Verb.PAUSE else RequestBody)
    if isinstance(operator_request, Response):
        return operator_request
    if operator_request.now:
        verb = Verb.PAUSE_NOW
    return answer(await asyncio.to_thread(_switch, deps, operator_request, verb))


def _switch(deps: OperatorDependencies, operator_request: OperatorRequest, verb: Verb) -> PauseState | BreakerState:
    now, why, by = deps.clock.now(), operator_request.reason, operator_request.by
    entry = AuditEntry.of_request(operator_request.identity, now, verb.value, "fleet", why)
    if verb is Verb.RESET_BREAKER:
        entry = replace(entry, before={"breaker": deps.repairs.breaker().reason}, after={"breaker": ""})
    else:
        paused = "" if verb is Verb.RESUME else f"{why} ({by})"
        entry = replace(entry, before={"paused": deps.fleet.pause().reason}, after={"paused": paused})
    deps.fleet.add_intent(verb.value, why, by, now, entry)
    log_audited(entry)
    deps.wake_loop()
    if verb is Verb.RESET_BREAKER:
        return BreakerState(deps.repairs.breaker().reason)
    pause = deps.fleet.pause()
    return PauseState(pause.reason, pause.halts)


async def _cancel(deps: OperatorDependencies, request: Request, number: int) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    recovery = await asyncio.to_thread(deps.recoveries.find, number)
    if recovery is None:
        return refuse(404, f"there is no recovery {number}", "GET /v1/recoveries lists the recoveries")
    if recovery.status is not RecoveryStatus.RUNNING or recovery.ends_as is not None:
        status = recovery.ends_as or recovery.status
        detail = f"recovery {number} is {status.value}: there is nothing to cancel"
        return refuse(409, detail, f"see GET /v1/recoveries/{number}", ErrorCode.RECOVERY_STATUS)
    before: dict[str, Json] = {"status": recovery.status.value}
    await asyncio.to_thread(_ask, deps, operator_request, Verb.CANCEL, cancel_subject(number), before)
    deps.wake_loop()
    return answer(CancelledRecovery(number, recovery.status.value))


async def _request_for_node(deps: OperatorDependencies, request: Request, verb: Verb, node: str) -> Response:
    identity = await deps.admission.admit(request, Permission.OPERATE)
    operator_request = await read_request(request, identity)
    if isinstance(operator_request, Response):
        return operator_request
    record = (await asyncio.to_thread(deps.fleet.nodes)).get(node)
    if record is None:
        return refuse(404, f"node {node} is not known", "GET /v1/nodes lists the nodes")
    if record.state in REFUSED_IN[verb]:
        hint = "an administrator drained it in Slurm; resume it there: scontrol update State=RESUME"
        hint = (
            hint
            if record.state is NodeState.FOREIGN_DRAIN
            else "docs/repair-cycle.md shows which request fits which state"
        )
        detail = f"{node} is {record.state.value}: {verb.value} would change nothing"
        return refuse(409, detail, hint, ErrorCode.NODE_STATE)
    await asyncio.to_thread(_ask, deps, operator_request, verb, node, {"state": record.state.value})
    deps.wake_loop()
    return answer(AcceptedRequest(node, verb.value, record.state.value))


def _ask(
    deps: OperatorDependencies, operator_request: OperatorRequest, verb: Verb, subject: str, before: Mapping[str, Json]
) -> None:
    now, why = deps.clock.now(), operator_request.reason
    entry = AuditEntry.of_request(operator_request.identity, now, verb.value, subject, why)
    entry = replace(entry, before=before, after={"requested": verb.value})
    deps.repairs.ask_audited(verb, entry)
    log_audited(entry)


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
    return OperatorRequest(identity, body.reason, isinstance(body, PauseBody) and body.now)
