"""Messages between launcher and seats: one JSON object a line, over TCP.

Belongs here: framing, limits, and the proof that the other side knows the launch's secret. Must not: what follows from
a message.

A seat runs what the launcher sends and the launcher believes what seats report, on a network that other users' programs
can reach. So each side answers a challenge of the other side with the secret, which travels in the environment of the
step, through Slurm, and never over this connection.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]

LINE_BYTES_MAX = 1024 * 1024
"""A start names all nodes of the gang: 12,500 names of 60 characters."""
BEAT_SECONDS = 1.0
SECRET_VARIABLE = "UNDERSTUDY_LAUNCH_SECRET"  # noqa: S105 - its name, not the secret


class ProtocolError(Exception):
    """The other side sent a wrong message; the text describes the error."""


def new_secret() -> str:
    return secrets.token_hex(32)


def challenge() -> str:
    return secrets.token_hex(16)


def answer(secret: str, side: str, challenge_text: str) -> str:
    """The proof. With `side` in it, an answer of one side cannot be used as an answer of the other side."""
    return hmac.new(secret.encode(), _bytes(f"{side}:{challenge_text}"), hashlib.sha256).hexdigest()


def is_answer(given: object, secret: str, side: str, challenge_text: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(_bytes(given), _bytes(answer(secret, side, challenge_text)))


def _bytes(any_text: str) -> bytes:
    """JSON can also name half a character, which UTF-8 refuses."""
    return any_text.encode(errors="surrogatepass")


def encode(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


BEAT = encode("beat")


class Lines:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self, bytes_max: int = LINE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._rest = b""

    @property
    def at_the_end(self) -> bool:
        """No line has begun."""
        return not self._rest

    def feed(self, piece: bytes) -> list[Message]:
        """Raises ProtocolError."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if max(map(len, (*lines, self._rest))) > self.bytes_max:
            raise ProtocolError(f"a line of more than {self.bytes_max} bytes")
        return [_decode(line) for line in lines]


def _decode(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {line[:80]!r}") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError(f"not a message object: {line[:80]!r}")
    return message


def number(message: Mapping[str, Any], name: str) -> int:
    """Raises ProtocolError."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProtocolError(f"{message.get('type')}: {name} is {value!r}, not a number")
    return value


def text(message: Mapping[str, Any], name: str) -> str:
    """Raises ProtocolError."""
    value = message.get(name)
    if not isinstance(value, str):
        raise ProtocolError(f"{message.get('type')}: {name} is {value!r}, not a text")
    return value
