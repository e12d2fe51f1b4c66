"""The route by which users of the cluster get a token: `POST /v1/user-token`, without one.

The user signs a challenge of the control plane with MUNGE, and with it the address at which their command reached the
control plane: a server elsewhere that passes a challenge on gets a credential that counts here for nothing. The user is
whom MUNGE names; the request's body names none.
"""

from __future__ import annotations

import asyncio
import pwd
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated

import msgspec
import structlog
from fastapi import APIRouter, Depends, Request, Response
from msgspec import Meta

from understudy_controlplane.access.admission import Denied, address_of
from understudy_controlplane.access.challenges import Challenges
from understudy_controlplane.access.munge import Credential, CredentialRefused, MungeUnavailable
from understudy_controlplane.access.user_tokens import SECONDS, UserTokens
from understudy_controlplane.api.pages import known_parameters
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.ingest.answers import answer
from understudy_wire.addresses import canonical, split_port
from understudy_wire.messages import CREDENTIAL_CHARACTERS_MAX
from understudy_wire.values import NOT_UNDERSTOOD

log = structlog.get_logger()

DECODED_AT_ONCE = 2
WAITING_PER_ADDRESS_MAX = 8
WAITING_MAX = 64
LOGGED_EVERY_SECONDS = 1.0


class UserTokenRequest(msgspec.Struct, frozen=True):
    """`credential` is MUNGE's for `claim`, made by the user."""

    challenge: Annotated[str, Meta(min_length=1, max_length=256)]
    server: Annotated[
        str, Meta(min_length=1, max_length=256)
    ]  # of the control plane, as the client sees it: ADDRESS:PORT
    credential: Annotated[str, Meta(min_length=1, max_length=CREDENTIAL_CHARACTERS_MAX)]


class UserToken(msgspec.Struct, frozen=True):
    """Valid for the next `seconds`, and for the address that asked."""

    token: str
    seconds: float


@dataclass(frozen=True, slots=True)
class UserTokenDependencies:
    """`decode` is MUNGE's; it may block."""

    current: CurrentConfig
    decode: Callable[[str], Credential]
    challenges: Challenges
    tokens: UserTokens
    clock: Clock


def user_tokens_router(deps: UserTokenDependencies) -> APIRouter:
    router = APIRouter(dependencies=[Depends(known_parameters)])
    issuer = _Issuer(deps)

    @router.post("/v1/user-token")
    async def user_token(request: Request) -> Response:
        """A token for the user who made the credential."""
        try:
            asked = msgspec.json.decode(await request.body(), type=UserTokenRequest)
        except NOT_UNDERSTOOD as error:
            raise Denied(400, f"the request cannot be read: {error}", "`understudy help api` describes it") from error
        return answer(await issuer.issue(asked, address_of(request), _server_of(request)))

    return router


def claim(server: str, challenge: str) -> bytes:
    """What the user signs. Its first line keeps credentials of other programs out."""
    return f"understudy user token\n{server}\n{challenge}".encode()


class _Issuer:
    def __init__(self, deps: UserTokenDependencies) -> None:
        self._deps = deps
        self._threads = ThreadPoolExecutor(DECODED_AT_ONCE, "munge of users")  # never those of nodes
        self._waiting: Counter[str] = Counter()
        self._logged_at = float("-inf")

    async def issue(self, asked: UserTokenRequest, address: str, server: str) -> UserToken:
        """Raises Denied."""
        try:
            self._check(asked, address, server)
            credential = await self._decode(asked, address)
            self._check_credential(credential, asked)
            name = await asyncio.to_thread(_name_of, credential.user_id)
        except Denied as denied:
            self._note_refusal(address, denied)
            raise
        return UserToken(self._deps.tokens.make(credential.user_id, name, address), SECONDS)

    def _check(self, asked: UserTokenRequest, address: str, server: str) -> None:
        """What costs no process comes first: any client may send this."""
        access = self._deps.current.config.access
        if not access.munge_users:
            hint = "ask an administrator for a token, and name its file with --token-file"
            raise Denied(403, "users of the cluster get no tokens by MUNGE here: access.munge_users is false", hint)
        if not self._deps.challenges.is_valid(asked.challenge, address):
            raise Denied(403, "the challenge is not valid, or not any more", "get another one: GET /v1/challenge")
        if _canonical_server(asked.server) not in {server, *map(_canonical_server, access.addresses)}:
            error = f"the credential is for the server {asked.server:.100}; this one is {server}"
            raise Denied(403, error, "use an URL of the control plane itself, or add the address to access.addresses")

    async def _decode(self, asked: UserTokenRequest, address: str) -> Credential:
        if self._waiting[address] >= WAITING_PER_ADDRESS_MAX or self._waiting.total() >= WAITING_MAX:
            raise Denied(429, "too many credentials of users wait", "repeat the request")
        self._waiting[address] += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._deps.decode, asked.credential)
        except MungeUnavailable as error:
            raise Denied(503, "MUNGE does not work on the control plane's host", "start munged") from error
        except CredentialRefused as error:
            raise Denied(403, f"MUNGE refuses the credential: {error}", "see that the clocks agree") from error
        finally:
            self._waiting[address] -= 1
            if not self._waiting[address]:
                del self._waiting[address]

    def _check_credential(self, credential: Credential, asked: UserTokenRequest) -> None:
        is_for_this = credential.payload == claim(asked.server, asked.challenge)
        if not is_for_this or not self._deps.challenges.use(asked.challenge):
            raise Denied(403, "the credential is for another claim, or was used before", "make a new one")

    def _note_refusal(self, address: str, denied: Denied) -> None:
        """One line a second: any client can cause them."""
        now = self._deps.clock.monotonic()
        if now - self._logged_at >= LOGGED_EVERY_SECONDS:
            self._logged_at = now
            cause = str(denied.__cause__) if denied.__cause__ else ""
            log.warning("user_token_refused", address=address, error=denied.error, cause=cause)


def _server_of(request: Request) -> str:
    """Server that the connection names, not a header."""
    host, port = request.scope.get("server") or ("", 0)
    return f"{canonical(host)}:{port}"


def _canonical_server(text: str) -> str:
    host, port = split_port(text)
    return f"{canonical(host)}:{port}"


def _name_of(user_id: int) -> str:
    """Empty where this host knows no such user."""
    try:
        return pwd.getpwuid(user_id).pw_name
    except (KeyError, OverflowError):
        return ""
