"""`POST /v1/mode`: an administrator sets a mode below the configured one, or ends that limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from understudy_controlplane.access.admission import Admission
from understudy_controlplane.api.operator_requests import RequestBody, Seconds, accepted, log_audited
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Mode
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.fleet.operator import Outcome, Prospect, Verb
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.fleet import FleetStore
from understudy_wire.values import NOT_UNDERSTOOD

BELOW = {Mode.OBSERVE: Verb.MODE_OBSERVE, Mode.APPROVE: Verb.MODE_APPROVE}
WHY = {
    Verb.MODE_OBSERVE: "nothing is changed: recoveries under way stop before their next effect, also between two "
    "attempts of a gang; `understudy pause` lets such a gang start again",
    Verb.MODE_APPROVE: "recoveries under way go on; each new one waits for approval",
    Verb.MODE_CONFIGURED: "the mode is the configured one",
}


class ModeBody(RequestBody, frozen=True, forbid_unknown_fields=True, kw_only=True):
    mode: Mode
    for_seconds: Seconds | None = None  # None: until an administrator ends it


@dataclass(frozen=True, slots=True)
class ModeDependencies:
    admission: Admission
    fleet: FleetStore
    current: CurrentConfig
    clock: Clock
    wake_loop: Callable[[], None]


def mode_router(deps: ModeDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.post("/v1/mode", status_code=202)
    async def set_mode(request: Request) -> Response:
        """Set a mode below the configured one, also over a restart; or the configured one, which ends the limit. A mode
        above the configured one is refused.
        """
        identity = await deps.admission.admit(request, Permission.ADMINISTER)
        try:
            body = msgspec.json.decode(await request.body(), type=ModeBody)
        except NOT_UNDERSTOOD as error:
            return refuse(400, f"the request cannot be read: {error}", 'send {"mode": "observe", "reason": "…"}')
        return await _set_mode(deps, identity, body)

    return router


async def _set_mode(deps: ModeDependencies, identity: Identity, body: ModeBody) -> Response:
    if not body.reason.strip():
        return refuse(422, "reason must not be empty", "give a reason that the next operator understands")
    configured = deps.current.config.mode
    if body.mode.at_most(configured) is not body.mode:
        detail = f"mode {body.mode.value} is above the configured mode {configured.value}"
        return refuse(
            409,
            detail,
            f'set mode = "{body.mode.value}" in the configuration file, and reload the control plane',
        )
    verb = Verb.MODE_CONFIGURED if body.mode is configured else BELOW[body.mode]
    if verb is Verb.MODE_CONFIGURED and body.for_seconds is not None:
        return refuse(422, f"the configured mode is {configured.value}: it has no end", "leave for_seconds out")
    prospect = Prospect(Outcome.WILL_ACT, WHY[verb])
    if body.dry_run:
        return accepted(None, "fleet", verb, prospect)
    number = await asyncio.to_thread(_store, deps, identity, body, verb)
    deps.wake_loop()
    return accepted(number, "fleet", verb, prospect)


def _store(deps: ModeDependencies, identity: Identity, body: ModeBody, verb: Verb) -> int:
    now = deps.clock.now()
    until = None if body.for_seconds is None else now + body.for_seconds
    before = deps.current.config.mode.at_most(deps.fleet.mode_limit(now).mode)
    entry = AuditEntry(
        now,
        identity.label,
        identity.role.value,
        identity.address,
        verb.value,
        "fleet",
        body.reason,
        {"mode": before.value},
        {"mode": body.mode.value, "until": until},
    )
    number = deps.fleet.add_intent(verb.value, body.reason, identity.label, now, entry, until)
    log_audited(entry)
    return number
