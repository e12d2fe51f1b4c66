"""Messages between launcher and seats: one JSON object a line, over TLS (`tls.py`). Framing and limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from understudy_wire.errors import ProtocolError

Message = dict[str, Any]

LINE_BYTES_MAX = 1024 * 1024
"""A start names all nodes of the gang: 12,500 names of 60 characters."""
BEAT_SECONDS = 1.0
RESTING_BEAT_SECONDS = 30.0
"""Interval of a seat beside which another one beats, on the same node."""
SECRET_VARIABLE = "UNDERSTUDY_LAUNCH_SECRET"  # noqa: S105 - its name, not the secret


def encode(kind: str, **fields: object) -> bytes:
    return json.dumps({"type": kind, **fields}).encode() + b"\n"


def encode_each(kind: str, common: Mapping[str, object], own: str, values: Iterable[int]) -> Iterator[bytes]:
    """A message for each value of the field `own`. What they have in common, as a list of nodes, is encoded once."""
    head = json.dumps({"type": kind, **common})[:-1].encode()
    return (b'%b, "%b": %d}\n' % (head, own.encode(), value) for value in values)


BEAT = encode("beat")


class Lines:
    """Puts messages together from the pieces in which they arrive."""

    __slots__ = ("_rest", "bytes_max")

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
