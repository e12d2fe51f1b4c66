"""The connection to the node's keeper, which holds parts of saves in memory (`understudy keeper`).

Messages are a length, a JSON object, and sometimes bytes after it. A rank gives its part as a descriptor of memory, and
gets it again as bytes.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from .checksum import new_sum

DEFAULT_SOCKET = "/run/understudy-keeper/keeper.sock"
BLOCK_BYTES = 1 << 20
ANSWER_BYTES_MAX = 16 << 20
SECONDS_MAX = 120.0
"""For an answer, and between two pieces of a part."""


class KeeperError(Exception):
    """The keeper refuses, or cannot be reached; the message has the cause."""


def keeper_socket(environment: Mapping[str, str]) -> str:
    """`%n` stands for the node's name, for machines that play several nodes."""
    path = environment.get("UNDERSTUDY_KEEPER_SOCKET") or DEFAULT_SOCKET
    return path.replace("%n", environment.get("SLURMD_NODENAME", ""))


class KeeperLink:
    """For one thread at a time, but for cut(). Connects again where the keeper was restarted."""

    def __init__(self, path: str, job_id: int) -> None:
        """Raises KeeperError."""
        self._path, self._job_id = path, job_id
        self.connections = 0
        """How many it has made: what a keeper does for a connection ends with it."""
        self._link = self._connect()
        self.address = str(self.ask("hello").get("keeper", ""))
        """Of this keeper, for those of other nodes."""

    def close(self) -> None:
        self._link.close()

    def cut(self) -> None:
        """The call under way in another thread fails, and the next one connects again."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)

    def ask(self, kind: str, descriptor: int | None = None, **fields: Any) -> dict[str, Any]:
        """Raises KeeperError."""
        body = json.dumps({"type": kind, "job_id": self._job_id, **fields}).encode()
        message = len(body).to_bytes(4, "big") + body
        try:
            if self._link.fileno() < 0:
                self._link = self._connect()
            if descriptor is None:
                self._link.sendall(message)
            else:
                sent = socket.send_fds(self._link, [message], [descriptor])
                self._link.sendall(message[sent:])
            answer = json.loads(self._receive(int.from_bytes(self._receive(4), "big")))
        except (OSError, ValueError) as error:
            self._link.close()
            raise KeeperError(f"the keeper does not answer: {error}") from error
        if not isinstance(answer, dict) or answer.get("error"):
            raise KeeperError(f"the keeper refuses: {answer['error'] if isinstance(answer, dict) else answer}")
        return answer

    def _connect(self) -> socket.socket:
        """Raises KeeperError."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(SECONDS_MAX)
        try:
            link.connect(self._path)
        except OSError as error:
            link.close()
            raise KeeperError(f"no keeper at {self._path}: {error}") from error
        self.connections += 1
        return link

    def read(self, staging: Staging, **fields: Any) -> int:
        """A part into the staging memory, verified. Its length. Raises KeeperError."""
        answer = self.ask("get", **fields)
        length = int(answer["length"])
        view = staging.make_room(length)
        try:
            for at in range(0, length, BLOCK_BYTES):
                self._read_into(view[at : min(at + BLOCK_BYTES, length)])
        except OSError as error:
            self._link.close()
            raise KeeperError(f"the part did not come: {error}") from error
        checksum = sum_of(view[:length], str(answer["checksum"]).partition(":")[0])
        if checksum != answer["checksum"]:
            raise KeeperError(f"the part has the checksum {checksum}, {answer['checksum']} was named when it was saved")
        return length

    def _read_into(self, piece: memoryview) -> None:
        at = 0
        while at < len(piece):
            count = self._link.recv_into(piece[at:])
            if not count:
                raise ConnectionResetError("the keeper closed the connection")
            at += count

    def _receive(self, length: int) -> bytes:
        if length > ANSWER_BYTES_MAX:
            raise ValueError("an answer is too long")
        received = b""
        while len(received) < length:
            piece = self._link.recv(length - len(received))
            if not piece:
                raise ConnectionResetError("the keeper closed the connection")
            received += piece
        return received


class Staging:
    """Memory of this process whose descriptor the keeper gets, used again for each save: to get new memory from the
    kernel takes longer than to copy into what is there.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("understudy-save")
        self._memory: mmap.mmap | None = None
        self._length = 0

    def make_room(self, length: int) -> memoryview:
        """All of it, which may be longer."""
        if self._memory is None or self._length < length:
            os.ftruncate(self.descriptor, length)
            self._memory, self._length = mmap.mmap(self.descriptor, length), length
        return memoryview(self._memory)

    def close(self) -> None:
        self._memory = None  # unmapped with its last view
        os.close(self.descriptor)


def sum_of(content: Sequence[int] | memoryview, algorithm: str = "") -> str:
    """As SummedFile's; by this algorithm, or the fastest. Empty: this Python does not have it."""
    found = new_sum(algorithm)
    if found is None:
        return ""
    name, made = found
    for at in range(0, len(content), BLOCK_BYTES):
        made.update(content[at : at + BLOCK_BYTES])
    return f"{name}:{made.hexdigest()}"
