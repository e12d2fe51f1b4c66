"""How a user of the cluster proves who they are, without a token of their own: by the program `munge`.

The user signs a challenge of the control plane together with the address at which they reached it, so that no other
server can use the credential there. The control plane answers with a token for some minutes.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import httpx

MUNGE_SECONDS = 10.0
CREDENTIAL_SECONDS = 60


class _NoToken(Exception):
    """The message has the cause."""


class MungeAuth(httpx.Auth):
    """Begins without a token, and gets one where a request is refused for want of it. It reads the answers to its own
    requests alone: a stream of events has no end.
    """

    def __init__(self, socket: Path | None = None) -> None:
        """`socket`: of munged; without it MUNGE's own default."""
        self._socket = socket
        self._token = ""
        self.problem = ""
        """Why there is no token."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        response = yield request
        if response.status_code != httpx.codes.UNAUTHORIZED or shutil.which("munge") is None:
            return
        request.headers.pop("Authorization", None)
        try:
            base, _, _ = str(request.url).partition("/v1/")
            self._token = yield from self._ask(base)
        except _NoToken as error:
            self._token, self.problem = "", str(error)
        else:
            request.headers["Authorization"] = f"Bearer {self._token}"
        yield request

    def _ask(self, base: str) -> Generator[httpx.Request, httpx.Response, str]:
        """Raises _NoToken."""
        response = yield httpx.Request("GET", f"{base}/v1/challenge")
        challenge = _field(response, "challenge")
        server = _server_of(response)
        credential = self._sign(f"understudy user token\n{server}\n{challenge}".encode())
        asked = {"challenge": challenge, "server": server, "credential": credential}
        response = yield httpx.Request("POST", f"{base}/v1/user-token", json=asked)
        return _field(response, "token")

    def _sign(self, claim: bytes) -> str:
        command = ["munge", f"--ttl={CREDENTIAL_SECONDS}", *([f"--socket={self._socket}"] if self._socket else [])]
        try:
            done = subprocess.run(command, input=claim, capture_output=True, timeout=MUNGE_SECONDS, check=True)
        except subprocess.CalledProcessError as error:
            raise _NoToken(error.stderr.decode(errors="replace").strip().removeprefix("munge: ")) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _NoToken(str(error)) from error
        return done.stdout.decode().strip()


def _field(response: httpx.Response, name: str) -> str:
    """Raises _NoToken."""
    try:
        response.read()
        found = response.json()
        if not response.is_success:
            raise _NoToken(str(found["detail"]))
        return str(found[name])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _NoToken(f"{response.url} answers HTTP {response.status_code}") from error


def _server_of(response: httpx.Response) -> str:
    """Address and port of the server that answered, as this host's connection has them."""
    try:
        found = response.extensions["network_stream"].get_extra_info("server_addr")
        return f"{found[0]}:{found[1]}"
    except (KeyError, OSError, TypeError) as error:
        raise _NoToken("the connection to the control plane ended; repeat the command") from error
