"""Sessions of browsers: made from a token, stored as a token is, and ended with it.

The secret of a session is in a cookie that no script can read. A browser sends it with every request to the control
plane, also with one that a page of another site causes: see `cross_site`.
"""

from __future__ import annotations

import re
from typing import Final

from fastapi import Response
from starlette.requests import HTTPConnection

from understudy_controlplane.access.secret import digest_of, new_secret
from understudy_controlplane.access.tokens import Tokens
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Identity, Token
from understudy_controlplane.store.tokens import NewToken, TokenStore

COOKIE: Final = "understudy_session"
PER_TOKEN_MAX = 16
"""Above these the oldest one ends."""

ON_THIS_HOST = frozenset({"localhost", "127.0.0.1", "[::1]"})


class Sessions:
    """Belongs to one event loop."""

    def __init__(self, tokens: Tokens, store: TokenStore, clock: Clock, current: CurrentConfig) -> None:
        self._tokens = tokens
        self._store = store
        self._clock = clock
        self._current = current

    async def begin(self, token: Token, address: str) -> tuple[str, float]:
        """The secret, and the seconds until the session ends. Raises StoreError."""
        secret, now = new_secret(), self._clock.now()
        ends_at = min(now + self._current.config.access.session_hours * 3600.0, token.expires_at)
        made = NewToken(digest_of(secret), token.role, token.label, "", now, "login", ends_at, token.id)
        entry = AuditEntry.of_request(
            Identity(token.role, token.label, "", address), now, "session begin", f"token {token.id}", ""
        )
        deleted = await self._tokens.run(lambda: self._store.add_session(made, PER_TOKEN_MAX, entry))
        self._tokens.forget_deleted(deleted)
        return secret, ends_at - now

    async def end(self, secret: str, identity: Identity) -> None:
        """Raises StoreError."""
        session, now = self._tokens.known(secret), self._clock.now()
        if session is not None:
            entry = AuditEntry.of_request(identity, now, "session end", f"token {session.session_of}", "")
            await self._tokens.run(lambda: self._store.revoke([session.id], identity.label, now, entry))
            self._tokens.forget(digest_of(secret))


def secret_in_cookie(connection: HTTPConnection) -> str | None:
    return connection.cookies.get(_name_of(connection)) if "cookie" in connection.headers else None


def is_by_session(connection: HTTPConnection) -> bool:
    """True if the request was admitted by its cookie: a token counts before it."""
    return secret_in_cookie(connection) is not None and "authorization" not in connection.headers


def set_cookie(response: Response, connection: HTTPConnection, secret: str, seconds: float) -> None:
    response.set_cookie(
        _name_of(connection), secret, int(seconds), path="/", secure=True, httponly=True, samesite="strict"
    )


def delete_cookie(response: Response, connection: HTTPConnection) -> None:
    set_cookie(response, connection, "", 0)


def _name_of(connection: HTTPConnection) -> str:
    """Name of the cookie. Browsers take one with this prefix from this very host alone, by TLS; and so from no
    `http://localhost`.
    """
    host = re.sub(r":\d+$", "", connection.headers.get("host", ""))
    return COOKIE if host in ON_THIS_HOST else f"__Host-{COOKIE}"
