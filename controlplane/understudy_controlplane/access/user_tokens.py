"""Tokens of users of the cluster, who have proven by MUNGE who they are.

They are in memory, for some minutes: each command gets one of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.access.secret import digest_of, new_secret
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.identity import Identity, Role

SECONDS = 300.0
PER_USER_MAX = 64
ALL_MAX = 16_384
"""Above these the oldest is dropped: its command gets another one."""


@dataclass(frozen=True, slots=True)
class _Token:
    user_id: int
    name: str
    address: str
    ends_at: float  # monotonic


class UserTokens:
    """Belongs to one event loop."""

    def __init__(self, current: CurrentConfig, clock: Clock) -> None:
        self._current = current
        self._clock = clock
        self._tokens: dict[str, _Token] = {}
        """Tokens by digest, oldest first."""

    def make(self, user_id: int, name: str, address: str) -> str:
        """The secret. `name`: of the user on this host; empty: it has none."""
        secret, now = new_secret(), self._clock.monotonic()
        self._drop(user_id, now)
        self._tokens[digest_of(secret)] = _Token(user_id, name, address, now + SECONDS)
        return secret

    def find(self, secret: str, address: str) -> Identity | None:
        """Identity of the token's user. It counts for the address that got it."""
        token = self._tokens.get(digest_of(secret)) if self._tokens else None
        if token is None or self._clock.monotonic() >= token.ends_at or token.address != address:
            return None
        return self._identity(token)

    def _identity(self, token: _Token) -> Identity | None:
        """Identity with the role that the configuration gives now."""
        access, name = self._current.config.access, token.name
        if not access.munge_users:
            return None
        label = f"user {name or '?'} ({token.user_id})"
        if name and (role := access.munge_roles.get(name)):
            return Identity(Role(role), label, "", token.address)
        return Identity(Role.USER, label, "", token.address, user_id=token.user_id)

    def _drop(self, user_id: int, now: float) -> None:
        valid = {digest: token for digest, token in self._tokens.items() if now < token.ends_at}
        of_user = [digest for digest, token in valid.items() if token.user_id == user_id]
        for digest in of_user[: max(0, len(of_user) + 1 - PER_USER_MAX)]:
            del valid[digest]
        for digest in list(valid)[: max(0, len(valid) + 1 - ALL_MAX)]:
            del valid[digest]
        self._tokens = valid
