"""How the agent proves which node it is: by the node's own token in a file, or by MUNGE.

With MUNGE root of this node signs a challenge of the control plane, and gets a token for an hour. The agent asks for
the next one in time.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import msgspec

from understudy_agent.config import Config, ConfigError, read_token
from understudy_agent.log import fields, log
from understudy_wire.messages import WIRE_VERSION, Challenge, NodeClaim, NodeToken, NodeTokenRequest
from understudy_wire.values import NOT_UNDERSTOOD

MUNGE_SECONDS = 10.0
CREDENTIAL_SECONDS = 60
RETRY_SECONDS_MIN = 0.25
RETRY_SECONDS_MAX = 15.0

Sign = Callable[[bytes], str]
"""Claim → MUNGE's credential for it. Raises OSError and subprocess.SubprocessError."""

Ask = Callable[[str, str, bytes | None], Awaitable[bytes]]
"""Method, path, body → body of the answer, from one control plane. Raises RefusedError."""


class RefusedError(Exception):
    """The control plane did not answer, or refused; the message has the cause."""


class Credentials(Protocol):
    token: str
    refusals: frozenset[int]
    """Status codes after which another token may help."""

    def is_due(self) -> bool:
        """True: ask for the next token although this one is valid."""
        ...

    async def renew(self, refused: str, ask: Ask) -> bool:
        """True if there is another token than the one that was refused. Raises nothing."""
        ...


def credentials_of(config: Config) -> Credentials:
    """Raises ConfigError."""
    file = config.token_file
    if file is not None:
        return TokenFile(lambda: read_token(file))
    return MungeCredentials(config.cluster, config.node, lambda claim: sign(claim, config.munge_socket))


class TokenFile:
    """The file is read again when the control plane refuses its token."""

    refusals = frozenset({401, 403})

    def __init__(self, read: Callable[[], str]) -> None:
        """`read` raises ConfigError."""
        self._read = read
        self.token = read()

    def is_due(self) -> bool:
        return False

    async def renew(self, refused: str, _ask: Ask) -> bool:
        try:
            self.token = await asyncio.to_thread(self._read)
        except ConfigError as error:
            log.error("token_unreadable", extra=fields(error=error))
        return self.token != refused


class MungeCredentials:
    """Begins without a token: the first request is refused, and then the agent asks for one."""

    refusals = frozenset({401})

    def __init__(self, cluster: str, node: str, sign: Sign) -> None:
        self.token = ""
        self._cluster = cluster
        self._node = node
        self._sign = sign
        self._due_at = float("inf")
        self._pause_seconds = 0.0
        self._not_before = 0.0
        self._problem = ""
        self._one_at_a_time = asyncio.Lock()

    def is_due(self) -> bool:
        return time.monotonic() >= max(self._due_at, self._not_before)

    async def renew(self, refused: str, ask: Ask) -> bool:
        async with self._one_at_a_time:
            if self.token != refused:
                return True
            if time.monotonic() < self._not_before:
                return False
            try:
                answer = await self._ask_for_token(ask)
            except (RefusedError, OSError, subprocess.SubprocessError, *NOT_UNDERSTOOD) as error:
                self._note_failure(error)
                return False
            self.token = answer.token
            self._due_at = time.monotonic() + answer.seconds * random.uniform(0.4, 0.6)  # noqa: S311 - spreads the load
            self._pause_seconds, self._problem = 0.0, ""
            return True

    async def _ask_for_token(self, ask: Ask) -> NodeToken:
        challenge = msgspec.json.decode(await ask("GET", "/v1/challenge", None), type=Challenge)
        claim = NodeClaim(self._cluster, self._node, challenge.challenge)
        credential = await asyncio.to_thread(self._sign, msgspec.json.encode(claim))
        request = NodeTokenRequest(WIRE_VERSION, claim, credential)
        return msgspec.json.decode(await ask("POST", "/v1/node-token", msgspec.json.encode(request)), type=NodeToken)

    def _note_failure(self, error: Exception) -> None:
        self._pause_seconds = min(max(2 * self._pause_seconds, RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)
        self._not_before = time.monotonic() + self._pause_seconds
        if str(error) != self._problem:
            self._problem = str(error)
            log.error("no_token", extra=fields(error=error))


def sign(claim: bytes, socket: Path | None, only_for: int | None = None) -> str:
    """`only_for`: the user id that alone can read it. Raises OSError."""
    command = ["munge", f"--ttl={CREDENTIAL_SECONDS}", *([f"--socket={socket}"] if socket else [])]
    command += [f"--restrict-uid={only_for}"] if only_for is not None else []
    done = subprocess.run(command, input=claim, capture_output=True, timeout=MUNGE_SECONDS, check=False)
    if done.returncode != 0:
        raise OSError(f"munge: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode().strip()
