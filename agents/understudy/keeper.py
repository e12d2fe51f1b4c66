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
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .checksum import new_sum

DEFAULT_SOCKET = "/run/understudy-keeper/keeper.sock"
BLOCK_BYTES = 1 << 20
ANSWER_BYTES_MAX = 16 << 20
SECONDS_MAX = 120.0
"""Time for an answer, and between two pieces of a part."""

_SHARED_AND_MAPPED = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)  # Python 3.9 has no name for it


class KeeperError(Exception):
    """The keeper refuses, or cannot be reached; the message has the cause."""


def keeper_socket(environment: Mapping[str, str]) -> str:
    """`%n` stands for the node's name, for machines that play several nodes."""
    path = environment.get("UNDERSTUDY_KEEPER_SOCKET") or DEFAULT_SOCKET
    return path.replace("%n", environment.get("SLURMD_NODENAME", ""))


class KeeperLink:
    """One thread uses it at a time, but for cut(). Connects again where the keeper was restarted."""

    def __init__(self, path: str, job_id: int) -> None:
        """Raises KeeperError."""
        self._path, self._job_id = path, job_id
        self.connections = 0
        """How many it has made: what a keeper does for a connection ends with it."""
        self._link = self._connect()
        self.address = str(self.ask("hello").get("keeper", ""))
        """This keeper's address, for those of other nodes."""

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

    def part(self, **fields: Any) -> ReceivedPart:
        """The caller reads it to its end, or gives it up by close(). Raises KeeperError."""
        answer = self.ask("get", **fields)
        return ReceivedPart(self._link, int(answer["length"]), str(answer["checksum"]))

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


class ReceivedPart:
    """A part as it comes from the keeper, summed while it is read."""

    def __init__(self, link: socket.socket, length: int, checksum: str) -> None:
        """Raises KeeperError."""
        self._link, self._left, self._checksum = link, length, checksum
        found = new_sum(checksum.partition(":")[0])
        if found is None:
            self._link.close()
            raise KeeperError(f"this Python cannot verify the checksum {checksum}; install xxhash")
        self._algorithm, self._sum = found

    def read_into(self, content: memoryview) -> None:
        """The next bytes of it, as many. Raises KeeperError."""
        if len(content) > self._left:
            self._link.close()
            raise KeeperError("the part is shorter than its state")
        for at in range(0, len(content), BLOCK_BYTES):
            piece = content[at : at + BLOCK_BYTES]
            self._receive(piece)
            self._sum.update(piece)
        self._left -= len(content)

    def finish(self) -> None:
        """Raises KeeperError where it is not what was saved."""
        if self._left:
            self._link.close()
            raise KeeperError(f"the part has {self._left} bytes that its state does not have")
        checksum = f"{self._algorithm}:{self._sum.hexdigest()}"
        if checksum != self._checksum:
            raise KeeperError(f"the part has the checksum {checksum}, {self._checksum} was named when it was saved")

    def _receive(self, piece: memoryview) -> None:
        at = 0
        try:
            while at < len(piece):
                count = self._link.recv_into(piece[at:])
                if not count:
                    raise ConnectionResetError("the keeper closed the connection")
                at += count
        except OSError as error:
            self._link.close()
            raise KeeperError(f"the part did not come: {error}") from error


class KeptPart:
    """A part that is in this process's own memory."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def read_into(self, content: memoryview) -> None:
        content[:] = self._content[self._at : self._at + len(content)]
        self._at += len(content)

    def finish(self) -> None:
        pass


class Staging:
    """Memory of this process whose descriptor the keeper gets, used again for each save: to get new memory from the
    kernel takes longer than to copy into what is there.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("understudy-save")
        self._memory: mmap.mmap | None = None
        self._length = 0
        self._lock = threading.Lock()

    def make_room(self, length: int) -> memoryview:
        """All of it, which may be longer. From any thread."""
        with self._lock:
            if self._memory is None or self._length < length:
                os.posix_fallocate(self.descriptor, 0, length)  # gets the memory while other threads go on
                self._memory, self._length = mmap.mmap(self.descriptor, length, _SHARED_AND_MAPPED), length
            return memoryview(self._memory)

    def close(self) -> None:
        self._memory = None  # unmapped with its last view
        os.close(self.descriptor)


def sum_of(content: Sequence[int] | memoryview, algorithm: str = "") -> str:
    """The same as SummedFile's; by this algorithm, or the fastest. Empty: this Python does not have it."""
    found = new_sum(algorithm)
    if found is None:
        return ""
    name, made = found
    for at in range(0, len(content), BLOCK_BYTES):
        made.update(content[at : at + BLOCK_BYTES])
    return f"{name}:{made.hexdigest()}"
