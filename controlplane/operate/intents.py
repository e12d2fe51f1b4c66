"""The door for operators: `POST /v1/pause` and `POST /v1/resume`. Each leaves a row that says who and why."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Request, Response

from controlplane.clock import Clock
from controlplane.ingest.answers import answer, refuse
from controlplane.ingest.authority import Token
from controlplane.store.fleet import FleetStore


class Intent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str
    by: str


class PauseState(msgspec.Struct, frozen=True):
    paused: str


@dataclass(frozen=True, slots=True)
class OperatorDoor:
    token: Token | None
    fleet: FleetStore
    clock: Clock
    wake_loop: Callable[[], None]


def intents_router(door: OperatorDoor) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/pause")
    async def pause(request: Request) -> Response:
        """From now on nothing is begun; recoveries under way go on to their end."""
        return await _take(door, request, "pause")

    @router.post("/v1/resume")
    async def resume(request: Request) -> Response:
        return await _take(door, request, "resume")

    return router


async def _take(door: OperatorDoor, request: Request, verb: str) -> Response:
    if door.token is None:
        return refuse(403, "operator actions are switched off", "set operator_token_file in [server]")
    if not door.token.admits(request.headers.get("authorization")):
        return refuse(401, "no operator's token", "send Authorization: Bearer with what operator_token_file holds")
    try:
        intent = msgspec.json.decode(await request.body(), type=Intent)
    except msgspec.MsgspecError as error:
        return refuse(400, f"not understood: {error}", 'send {"reason": "…", "by": "…"}')
    if not intent.reason.strip() or not intent.by.strip():
        return refuse(422, "reason and by must not be empty", "whoever reads this at night wants to know")
    await asyncio.to_thread(door.fleet.add_intent, verb, intent.reason, intent.by, door.clock.now())
    door.wake_loop()
    return answer(PauseState(await asyncio.to_thread(door.fleet.pause)))
