"""The door for operators: pause and resume, the circuit breaker, and single nodes. Each request leaves a row that says
who and why; what follows from one about a node is decided by the loop, like everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request, Response

from understudy_agent.wire import NOT_UNDERSTOOD
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.ingest.authority import Token
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.repairs import RepairStore


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str
    by: str


class PauseState(msgspec.Struct, frozen=True):
    paused: str


class BreakerState(msgspec.Struct, frozen=True):
    breaker: str


class Asked(msgspec.Struct, frozen=True):
    """The loop takes it up within a second; what came of it stands in `/v1/nodes` and `/v1/decisions`."""

    node: str
    asked: str
    state: str  # of the node, as yet


AT_WORK = (NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.PROBATION)
NOT_AT_WORK = tuple(state for state in NodeState if state not in AT_WORK)

NOT_IN = {
    Verb.HOLD: (NodeState.OPERATOR_HOLD, NodeState.RETIRED),
    Verb.RETIRE: (NodeState.RETIRED,),
    Verb.TEST: NOT_AT_WORK,
    Verb.BURN_IN: NOT_AT_WORK,
    Verb.RELEASE: (
        NodeState.IN_SERVICE,
        NodeState.SUSPECT,
        NodeState.UNKNOWN,
        NodeState.PROBATION,
        NodeState.VALIDATING,
        NodeState.FOREIGN_DRAIN,
    ),
}
"""States in which there is nothing to do about such a request."""


@dataclass(frozen=True, slots=True)
class OperatorDoor:
    token: Token | None
    fleet: FleetStore
    repairs: RepairStore
    clock: Clock
    wake_loop: Callable[[], None]


def intents_router(door: OperatorDoor) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/pause")
    async def pause(request: Request) -> Response:
        """From now on nothing is begun; recoveries under way go on to their end."""
        return await _switch(door, request, Verb.PAUSE)

    @router.post("/v1/resume")
    async def resume(request: Request) -> Response:
        return await _switch(door, request, Verb.RESUME)

    @router.post("/v1/reset-breaker")
    async def reset_breaker(request: Request) -> Response:
        """Close the circuit breaker: a person has looked at why it opened."""
        return await _switch(door, request, Verb.RESET_BREAKER)

    @router.post("/v1/nodes/{node}/hold")
    async def hold(node: str, request: Request) -> Response:
        """Take the node out of service; it is left alone until it is released."""
        return await _about(door, request, Verb.HOLD, node)

    @router.post("/v1/nodes/{node}/release")
    async def release(node: str, request: Request) -> Response:
        """Back into service, through its test where there is one and somebody had worked on the node."""
        return await _about(door, request, Verb.RELEASE, node)

    @router.post("/v1/nodes/{node}/test")
    async def test(node: str, request: Request) -> Response:
        """Test a node in service, as after a repair, once nobody uses it."""
        return await _about(door, request, Verb.TEST, node)

    @router.post("/v1/nodes/{node}/burn-in")
    async def burn_in(node: str, request: Request) -> Response:
        """The same, again and again for some hours."""
        return await _about(door, request, Verb.BURN_IN, node)

    @router.post("/v1/nodes/{node}/retire")
    async def retire(node: str, request: Request) -> Response:
        """Out of service for good."""
        return await _about(door, request, Verb.RETIRE, node)

    return router


async def _switch(door: OperatorDoor, request: Request, verb: Verb) -> Response:
    intent = await read_intent(door.token, request)
    if isinstance(intent, Response):
        return intent
    await asyncio.to_thread(door.fleet.add_intent, verb.value, intent.reason, intent.by, door.clock.now())
    door.wake_loop()
    if verb is Verb.RESET_BREAKER:
        return answer(BreakerState(await asyncio.to_thread(door.repairs.breaker)))
    return answer(PauseState(await asyncio.to_thread(door.fleet.pause)))


async def _about(door: OperatorDoor, request: Request, verb: Verb, node: str) -> Response:
    intent = await read_intent(door.token, request)
    if isinstance(intent, Response):
        return intent
    record = (await asyncio.to_thread(door.fleet.nodes)).get(node)
    if record is None:
        return refuse(404, f"no node {node} is known", "GET /v1/nodes lists them")
    if record.state in NOT_IN[verb]:
        hint = "what others drained in Slurm is theirs: scontrol update State=RESUME"
        hint = hint if record.state is NodeState.FOREIGN_DRAIN else "docs/repair-cycle.md shows what follows on what"
        return refuse(409, f"{node} is {record.state.value}: nothing to {verb.value}", hint)
    await asyncio.to_thread(door.repairs.ask, verb, node, intent.reason, intent.by, door.clock.now())
    door.wake_loop()
    return answer(Asked(node, verb.value, record.state.value))


async def read_intent(token: Token | None, request: Request) -> Intent | Response:
    """What an operator says, or why it is not taken."""
    if token is None:
        return refuse(403, "operator actions are switched off", "set operator_token_file in [server]")
    if not token.admits(request.headers.get("authorization")):
        return refuse(401, "no operator's token", "send Authorization: Bearer with what operator_token_file holds")
    try:
        intent = msgspec.json.decode(await request.body(), type=Intent)
    except NOT_UNDERSTOOD as error:
        return refuse(400, f"not understood: {error}", 'send {"reason": "…", "by": "…"}')
    if not intent.reason.strip() or not intent.by.strip():
        return refuse(422, "reason and by must not be empty", "whoever reads this at night wants to know")
    return intent
