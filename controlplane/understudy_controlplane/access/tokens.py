"""Finds the token that a request shows. Known tokens are in memory: most requests need no query.

A token that another control plane or `understudy token` made is looked up when it is first shown. Revoked ones are read
every second; while the database does not answer, the last answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import structlog

from understudy_controlplane.access.secret import digest_of
from understudy_controlplane.access.token_ends import SHOWN_AFTER_SECONDS, DailyWarning, Ends, ends_of
from understudy_controlplane.clock import Clock
from understudy_controlplane.fleet.identity import OF_NODES, Token
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.tokens import TokenStore

log = structlog.get_logger()

REVOKED_READ_SECONDS = 1.0
ENDS_READ_SECONDS = 60.0
USE_NOTED_SECONDS = 3600.0
LOOK_UPS_WAITING_MAX = 256
"""Requests with unknown tokens that wait for the database; further ones are refused."""

Result = TypeVar("Result")


class TooManyLookUps(Exception):
    """Too many requests with unknown tokens wait already."""


class Tokens:
    """Belongs to one event loop. Queries run on a thread of their own, one after the other."""

    def __init__(self, store: TokenStore, clock: Clock, note_ends: Callable[[Ends], None] = lambda _: None) -> None:
        """`note_ends` gets the ends of people's and programs' tokens, every minute. Raises StoreError."""
        self._store = store
        self._clock = clock
        self._known = store.valid(clock.now())
        self._revoked: frozenset[int] = frozenset()
        self._read_at = clock.monotonic()
        self._note_ends = note_ends
        self._ends_read_at = float("-inf")
        self._warning = DailyWarning()
        self._thread = ThreadPoolExecutor(1, "tokens")
        self._waiting = 0

    def known(self, secret: str) -> Token | None:
        """The valid token with this secret, where it is in memory."""
        token = self._known.get(digest_of(secret))
        return token if token is not None and self._is_valid(token, self._clock.now()) else None

    async def find(self, secret: str) -> Token | None:
        """The valid token with this secret. Raises StoreError and TooManyLookUps."""
        if self._clock.monotonic() - self._read_at >= REVOKED_READ_SECONDS:
            await self._read_revoked()
        if self._clock.monotonic() - self._ends_read_at >= ENDS_READ_SECONDS:
            await self._read_ends()
        digest = digest_of(secret)
        token = self._known.get(digest) or await self._look_up(digest)
        now = self._clock.now()
        if token is None or not self._is_valid(token, now):
            return None
        if token.role not in OF_NODES and now - (token.last_used_at or 0.0) >= USE_NOTED_SECONDS:
            await self._note_use(digest, token, now)
        return token

    def forget(self, digest: str) -> None:
        """It is looked up when it is shown again."""
        self._known.pop(digest, None)

    def forget_deleted(self, deleted: Mapping[str, int]) -> None:
        """Forgets tokens by digest. Their ids may be those of others now."""
        for digest in deleted:
            self.forget(digest)
        self._revoked -= set(deleted.values())

    async def run(self, query: Callable[[], Result]) -> Result:
        """Runs on the thread of the look-ups: what they found before is in memory before this returns."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, query)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _is_valid(self, token: Token, now: float) -> bool:
        """A session ends with its token, also where it was made while the token was revoked."""
        return token.is_valid_at(now) and self._revoked.isdisjoint((token.id, token.session_of))

    async def _look_up(self, digest: str) -> Token | None:
        if self._waiting >= LOOK_UPS_WAITING_MAX:
            raise TooManyLookUps
        self._waiting += 1
        try:
            found = await self.run(lambda: self._store.find(digest))
        finally:
            self._waiting -= 1
        if found is not None and found.is_valid_at(self._clock.now()):
            self._known[digest] = found
        return found

    async def _read_revoked(self) -> None:
        """Requests that come meanwhile do not wait for it."""
        self._read_at, now = self._clock.monotonic(), self._clock.now()
        try:
            self._revoked = await self.run(lambda: self._store.revoked(now))
        except StoreError as error:
            log.warning("revoked_tokens_not_read", error=type(error).__name__)
            return
        gone = [digest for digest, token in self._known.items() if now >= token.expires_at]
        for digest in gone:
            del self._known[digest]

    async def _read_ends(self) -> None:
        self._ends_read_at, now = self._clock.monotonic(), self._clock.now()
        try:
            tokens = await self.run(lambda: self._store.of_people(now - SHOWN_AFTER_SECONDS))
        except StoreError as error:
            log.warning("ends_of_tokens_not_read", error=type(error).__name__)
            return
        ends = ends_of(tokens, now)
        self._note_ends(ends)
        self._warning.warn(ends, now)

    async def _note_use(self, digest: str, token: Token, now: float) -> None:
        self._known[digest] = replace(token, last_used_at=now)
        try:
            await self.run(lambda: self._store.note_use(token.id, now))
        except StoreError as error:
            log.warning("use_of_token_not_stored", error=type(error).__name__)
