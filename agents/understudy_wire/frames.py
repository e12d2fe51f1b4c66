"""Messages between a rank and its keeper, and between keepers: a length, a JSON object, and sometimes bytes or a
descriptor after it.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from understudy_wire.errors import ClosedError, ProtocolError

Message = dict[str, Any]

MESSAGE_BYTES_MAX = 1 << 20
BLOCK_BYTES = 1 << 20
_LENGTH_BYTES = 4


class Frames:
    """One end of a connection. For one thread at a time."""

    def __init__(self, link: socket.socket, bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        """`bytes_max`: of a message, without the bytes that follow it."""
        self.link, self._bytes_max = link, bytes_max
        self._descriptors: list[int] = []

    def close(self) -> None:
        self._drop_descriptors()
        self.link.close()

    def send(self, message: Mapping[str, object]) -> None:
        body = json.dumps(message).encode()
        self.link.sendall(len(body).to_bytes(_LENGTH_BYTES, "big") + body)

    def send_bytes(self, content: memoryview) -> None:
        for at in range(0, len(content), BLOCK_BYTES):
            self.link.sendall(content[at : at + BLOCK_BYTES])

    def receive(self, with_descriptor: bool = False) -> Message:
        """Raises ProtocolError, ClosedError and OSError. `with_descriptor`: take_descriptor() has what came with it."""
        self._drop_descriptors()
        start = self._receive(_LENGTH_BYTES, with_descriptor, may_end=True)
        length = int.from_bytes(start, "big")
        if length > self._bytes_max:
            raise ProtocolError(f"a message of {length} bytes; at most {self._bytes_max} are taken")
        try:
            message = json.loads(self._receive(length, with_descriptor))
        except (ValueError, RecursionError) as error:
            raise ProtocolError("a message is not JSON") from error
        if not isinstance(message, dict):
            raise ProtocolError("a message is no JSON object")
        return message

    def receive_into(self, content: memoryview) -> None:
        """Exactly as many bytes. Raises OSError."""
        at = 0
        while at < len(content):
            count = self.link.recv_into(content[at : at + BLOCK_BYTES])
            if not count:
                raise ConnectionResetError(f"the connection ended after {at} of {len(content)} bytes")
            at += count

    def take_descriptor(self) -> int | None:
        """The caller closes it."""
        return self._descriptors.pop() if self._descriptors else None

    def _receive(self, length: int, with_descriptor: bool, may_end: bool = False) -> bytes:
        received = b""
        while len(received) < length:
            if with_descriptor:
                piece, descriptors, _, _ = socket.recv_fds(self.link, length - len(received), 1)
                self._descriptors += descriptors
            else:
                piece = self.link.recv(length - len(received))
            if not piece:
                if may_end and not received:
                    raise ClosedError
                raise ConnectionResetError("the connection ended within a message")
            received += piece
        return received

    def _drop_descriptors(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())


def number(message: Mapping[str, Any], name: str, most: int = 2**53) -> int:
    """A number from 0 on. Raises ProtocolError."""
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ProtocolError(f"{name} is {str(value)[:40]!r}, and not a number from 0 to {most}")
    return value


def text(message: Mapping[str, Any], name: str, most: int = 255) -> str:
    """Raises ProtocolError."""
    value = message.get(name)
    if not isinstance(value, str) or len(value) > most or not value.isascii():
        raise ProtocolError(f"{name} is no text of at most {most} ASCII characters")
    return value
