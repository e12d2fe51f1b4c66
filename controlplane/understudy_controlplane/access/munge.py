"""MUNGE's credentials, by the program `unmunge`: which user made one, and what is in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_SECONDS = 5.0

_NO_MUNGED = 6
_EXPIRED = 15
_REPLAYED = 17
_REFUSALS = {_EXPIRED: "it has expired", 16: "its time is in the future", _REPLAYED: "it was used before"}
"""Exit codes of unmunge, from munge.h."""


class MungeUnavailable(Exception):
    """This host cannot decode credentials now; the message has the cause."""


class CredentialRefused(Exception):
    """MUNGE does not accept the credential; the message has the cause."""


@dataclass(frozen=True, slots=True)
class Credential:
    user_id: int
    payload: bytes


class Munge:
    def __init__(self, socket: Path | None = None) -> None:
        self._command = ["unmunge", "--numeric", *([f"--socket={socket}"] if socket else [])]

    def decode(self, credential: str) -> Credential:
        """Each credential once: munged refuses replays. Raises MungeUnavailable and CredentialRefused."""
        try:
            done = subprocess.run(
                self._command, input=credential.encode(), capture_output=True, timeout=TIMEOUT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MungeUnavailable(f"unmunge: {error}") from error
        if done.returncode == _NO_MUNGED:
            raise MungeUnavailable("munged does not answer")
        if done.returncode != 0:
            raise CredentialRefused(_REFUSALS.get(done.returncode, f"unmunge ended with {done.returncode}"))
        return parse(done.stdout)


def parse(output: bytes) -> Credential:
    """`output` is that of `unmunge --numeric`: a line for each key, an empty line, the payload. Raises
    CredentialRefused.
    """
    head, separator, payload = output.partition(b"\n\n")
    pairs = (line.partition(b":") for line in head.splitlines())
    values = {key.strip(): value.strip() for key, _, value in pairs}
    try:
        status, user_id, length = (int(values[key]) for key in (b"STATUS", b"UID", b"LENGTH"))
    except (KeyError, ValueError) as error:
        raise CredentialRefused("the output of unmunge cannot be read") from error
    if status != 0 or not separator or len(payload) < length:
        raise CredentialRefused(f"unmunge reports status {status}, and {len(payload)} of {length} bytes")
    return Credential(user_id, payload[:length])
