"""The seat's end of its connection to a rank that may go on in the next launch (`--in-process`).

The rank sends `restartable` and `waiting`, the seat an order to leave the gang, and the environment of the rank's next
launch.
"""

from __future__ import annotations

import contextlib
import json
import socket

from understudy_launcher.protocol import Lines
from understudy_wire.errors import ProtocolError

DESCRIPTOR_VARIABLE = "UNDERSTUDY_RESTART_FD"
"""`understudy.restart` has the same name: the hook cannot import this package. A test compares the two."""


class Channel:
    def __init__(self) -> None:
        self.seat_end, self._rank_end = socket.socketpair()
        self.seat_end.setblocking(False)
        self.descriptor = self._rank_end.fileno()
        self.open = True
        self.restartable = False
        """Its program has reported that it can continue in the next launch."""
        self.waiting = False
        """It has left its gang."""
        self._takes_leave = False
        """Its hook knows the order to leave."""
        self._ordered = False
        """It was given the order in this launch."""
        self._lines = Lines()

    def close_rank_end(self) -> None:
        """Called once the rank has inherited it: otherwise the seat would not notice that the rank is gone."""
        self._rank_end.close()

    def read(self) -> bool:
        """True if a message came. A message that is malformed closes the channel."""
        try:
            messages = self._lines.feed(piece := self.seat_end.recv(65536))
        except BlockingIOError:
            return False
        except (OSError, ProtocolError):
            self.open = False
            return False
        self.open = bool(piece)
        for message in messages:
            self.restartable = self.restartable or message["type"] == "restartable"
            self.waiting = self.waiting or message["type"] == "waiting"
            self._takes_leave = self._takes_leave or message.get("takes_leave") is True
        return bool(messages)

    def order_to_leave(self) -> None:
        """Once in a launch."""
        if self._takes_leave and not (self._ordered or self.waiting):
            self._ordered = True
            self._send({"leave": True})

    def go_on(self, environment: dict[str, str]) -> None:
        self.waiting = self._ordered = False
        self._send({"environment": environment})

    def _send(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):  # the rank has ended meanwhile: the seat sees its exit
            self.seat_end.sendall(json.dumps(message).encode() + b"\n")
