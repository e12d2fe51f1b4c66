"""Routes by which a browser logs in and out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Meta

from understudy_controlplane.access.admission import Admission, Denied, address_of
from understudy_controlplane.access.cross_site import changes_by_other_site
from understudy_controlplane.access.sessions import Sessions, delete_cookie, is_by_session, secret_in_cookie, set_cookie
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.identity import PERMISSIONS, Identity, Permission, Role
from understudy_controlplane.ingest.answers import answer, refuse
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.store.database import StoreError
from understudy_wire.values import NOT_UNDERSTOOD

LOGINS_PER_SECOND_PER_TOKEN = 0.1
"""Each is an entry of the audit."""


class Login(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Annotated[str, Meta(min_length=1, max_length=256)]


class Session(msgspec.Struct, frozen=True):
    """Who the session, or the token, is."""

    label: str
    role: Role


@dataclass(frozen=True, slots=True)
class SessionDependencies:
    admission: Admission
    sessions: Sessions
    clock: Clock


def sessions_router(deps: SessionDependencies) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])
    reader = Depends(deps.admission.require(Permission.READ))
    rates = Rates(LOGINS_PER_SECOND_PER_TOKEN)

    @router.post("/session")
    async def log_in(request: Request) -> Response:
        """Begin a session of a browser, for a token of role viewer, operator or admin. The answer sets its cookie."""
        return await _log_in(deps, rates, request)

    @router.get("/session")
    async def session(identity: Identity = reader) -> Response:
        """Who asks."""
        return answer(Session(identity.label, identity.role))

    @router.delete("/session")
    async def log_out(request: Request, identity: Identity = reader) -> Response:
        """End the session."""
        return await _log_out(deps, request, identity)

    return router


async def _log_in(deps: SessionDependencies, rates: Rates, request: Request) -> Response:
    """Raises Denied."""
    try:
        asked = msgspec.json.decode(await request.body(), type=Login)
    except NOT_UNDERSTOOD as error:
        raise Denied(400, f"the request cannot be read: {error}", "`understudy help api` describes it") from error
    problem = changes_by_other_site(request, named=False)
    if problem is not None:
        raise Denied(403, problem, "log in at /login")
    token = await deps.admission.token(asked.token)
    if token is None:
        raise Denied(401, "the token is unknown, expired or revoked", "`understudy token create` makes one")
    if Permission.READ not in PERMISSIONS[token.role]:
        error_text = f"the token has role {token.role.value}: it is for programs"
        raise Denied(403, error_text, "use a token of role viewer, operator or admin")
    if not rates.admits(f"{token.id}", deps.clock.monotonic()):
        raise Denied(429, f"{token.label} logs in too often", "wait for ten seconds")
    try:
        secret, seconds = await deps.sessions.begin(token, address_of(request))
    except StoreError as error:
        raise Denied(503, "the database does not answer", "ask again") from error
    begun = answer(Session(token.label, token.role))
    set_cookie(begun, request, secret, seconds)
    return begun


async def _log_out(deps: SessionDependencies, request: Request, identity: Identity) -> Response:
    secret = secret_in_cookie(request)
    if secret is None or not is_by_session(request):
        return refuse(409, "the request has no session", "a token is revoked by `understudy token revoke`")
    try:
        await deps.sessions.end(secret, identity)
    except StoreError:
        return refuse(503, "the database does not answer", "ask again")
    ended = answer(Session(identity.label, identity.role))
    delete_cookie(ended, request)
    return ended
