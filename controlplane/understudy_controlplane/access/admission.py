"""The identity of a request, or its refusal. Every route that is not open to all asks here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from understudy_controlplane.access.cross_site import changes_by_other_site
from understudy_controlplane.access.proxy import NotBelieved, Proxy
from understudy_controlplane.access.sessions import secret_in_cookie
from understudy_controlplane.access.tokens import Tokens, TooManyLookUps
from understudy_controlplane.access.user_tokens import UserTokens
from understudy_controlplane.fleet.identity import STORED, Identity, Permission, Role, Token, roles_with
from understudy_controlplane.store.database import StoreError
from understudy_wire.addresses import canonical

_SCHEME = "bearer "


class Denied(Exception):
    """The request is refused; the application answers with these values."""

    def __init__(self, status: int, error: str, hint: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sends a request, as far as that is known before any query: limits count by it."""

    name: str
    has_token: bool
    is_user: bool = False  # of the cluster, who acts on own jobs


class Admission:
    def __init__(
        self,
        tokens: Tokens,
        users: UserTokens | None = None,
        open_to_all: Collection[Permission] = (),
        proxy: Proxy | None = None,
        refuses_nodes: Callable[[], bool] = lambda: False,
    ) -> None:
        """`open_to_all`: what a request may do without a token, because the site wants it so. `refuses_nodes`: agents
        and launchers are to ask another control plane.
        """
        self._tokens = tokens
        self.users = users
        self._proxy = proxy
        self._open_to_all = frozenset(open_to_all)
        self._refuses_nodes = refuses_nodes

    async def admit(self, request: Request, permission: Permission) -> Identity:
        """Raises Denied."""
        is_cut_off = permission is Permission.REPORT and self._refuses_nodes()
        identity = await self._identity(request, permission)
        if not identity.may(permission):
            refusal = f"the token of {identity.label} has role {identity.role.value}, which may not {permission.value}"
            raise Denied(403, refusal, _remedy(permission))
        if is_cut_off:  # no stranger learns it
            error = "the database does not confirm that this control plane leads"
            raise Denied(503, error, "ask the other control plane; where there is none, look at PostgreSQL")
        return identity

    async def admit_reader(self, request: Request) -> None:
        """Admits to routers to read: users of the cluster may use only the routes that take a `Reader`."""
        dependant = request.scope["route"].dependant
        of_users = any(one.call is reader_of for one in dependant.dependencies)
        permission = Permission.READ_OWN_JOBS if of_users else Permission.READ
        request.state.reader = await self.admit(request, permission)

    async def _identity(self, request: Request, permission: Permission) -> Identity:
        by_proxy = await self._by_proxy(request)
        if by_proxy is not None:
            return by_proxy
        secret = _secret(request.headers.get("authorization"))
        if secret is None:
            session = await self._by_session(request)
            if session is not None:
                return session
            if permission in self._open_to_all:
                return Identity(Role.VIEWER, "", "", address_of(request))
            raise Denied(401, "the request has no token", _remedy(permission))
        of_user = self.users.find(secret, address_of(request)) if self.users else None
        if of_user is not None:
            return of_user
        token = await self.token(secret)
        if token is None:
            raise Denied(401, "the token is unknown, expired or revoked", _remedy(permission))
        return Identity(token.role, token.label, token.node, address_of(request), token.id)

    async def token(self, secret: str) -> Token | None:
        """The valid token with this secret; none where it is a session's. Raises Denied."""
        token = await self._find(secret)
        return token if token is not None and token.session_of is None else None

    async def _by_session(self, request: Request) -> Identity | None:
        """Raises Denied."""
        secret = secret_in_cookie(request)
        session = await self._find(secret) if secret else None
        if session is None or session.session_of is None:
            return None
        problem = changes_by_other_site(request, named=True)
        if problem is not None:
            raise Denied(403, problem, "programs send a token; of browsers: `understudy help security`")
        return Identity(session.role, session.label, "", address_of(request), session.session_of)

    async def _find(self, secret: str) -> Token | None:
        """Raises Denied."""
        try:
            return await self._tokens.find(secret)
        except StoreError as error:
            raise Denied(
                503, "the token cannot be looked up: the database does not answer", "repeat the request"
            ) from error
        except TooManyLookUps:
            raise Denied(503, "too many requests with unknown tokens wait", "repeat the request") from None

    async def _by_proxy(self, request: Request) -> Identity | None:
        """Raises Denied. A token beside the proxy's header does not count: some proxies pass on one of their own."""
        try:
            return await self._proxy.identity(request, address_of(request)) if self._proxy else None
        except NotBelieved as error:
            raise Denied(403, str(error), "`understudy help security` describes what a proxy has to send") from error

    def sender(self, request: HTTPConnection) -> Sender:
        """A token that is shown for the first time does not count yet: its address does. So do tokens that are none."""
        secret = _secret(request.headers.get("authorization")) or secret_in_cookie(request)
        address = address_of(request)
        of_proxy = self._proxy.names(request, address) if self._proxy else None
        if of_proxy is not None:
            return Sender(f"{of_proxy} (proxy)", has_token=True)
        of_user = self.users.find(secret, address) if self.users and secret is not None else None
        if of_user is not None:
            return Sender(of_user.label, has_token=True, is_user=True)
        token = self._tokens.known(secret) if secret is not None else None
        if token is None:
            return Sender(address, has_token=False)
        return Sender(f"node {token.node}" if token.node else f"token {token.session_of or token.id}", has_token=True)

    def require(self, permission: Permission) -> Callable[[Request], Awaitable[Identity]]:
        """A dependency for routers."""

        async def admitted(request: Request) -> Identity:
            return await self.admit(request, permission)

        return admitted

    def close(self) -> None:
        self._tokens.close()


async def reader_of(request: Request) -> Identity:
    """Who reads, as `Admission.admit_reader` has found it."""
    reader: Identity = request.state.reader
    return reader


Reader = Annotated[Identity, Depends(reader_of)]
"""A parameter of a route to read. It opens the route to users of the cluster: the route shows them their own jobs, and
no others (`Identity.sees_jobs_of`).
"""


def only_for(identity: Identity, node: str) -> None:
    """A token speaks for its own node. Raises Denied for another one."""
    if identity.node != node:
        error = f"the token of node {identity.node} does not speak for node {node}"
        raise Denied(403, error, "give each node a token of its own: `understudy token create --role node --node NODE`")


def address_of(request: HTTPConnection) -> str:
    """The address from which the request came: that of its connection."""
    return canonical(request.client.host) if request.client else ""


def _secret(authorization: str | None) -> str | None:
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return authorization[len(_SCHEME) :].strip()


def _remedy(permission: Permission) -> str:
    if permission is Permission.REPORT:
        return (
            "write the node's own token to token_file of its agent: `understudy token create --role node --node NODE`"
        )
    roles = " or ".join(role.value for role in roles_with(permission) if role in STORED)
    return (
        f"send a token of role {roles}, with --token-file FILE or as `Authorization: Bearer TOKEN`; `understudy token "
        "create` makes one"
    )
