"""The seat's end of its connection to a rank that may go on in the next launch (`--in-process`).

Belongs here: the descriptor that the rank is given, and what is said over it: `restartable` and `waiting` by the rank,
its next part by the seat. Must not: when a rank is to go on, or what becomes of one that does not.
"""

from __future__ import annotations

import contextlib
import json
import socket

from understudy_agent.launch.protocol import Lines, ProtocolError

DESCRIPTOR_VARIABLE = "UNDERSTUDY_RESTART_FD"
"""The same name stands in `understudy.restart`, which may import nothing of ours."""


class Channel:
    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.descriptor = self._theirs.fileno()
        self.open = True
        self.restartable = False
        """Its program has said that it can go on."""
        self.waiting = False
        """It has left its gang."""
        self._lines = Lines()

    def handed_over(self) -> None:
        """The rank has its end: we keep none, so that we see when it is gone."""
        self._theirs.close()

    def hear(self) -> bool:
        """Whether it said something. What no rank of ours would say ends the conversation."""
        try:
            messages = self._lines.feed(piece := self.ours.recv(65536))
        except BlockingIOError:
            return False
        except (OSError, ProtocolError):
            self.open = False
            return False
        self.open = bool(piece)
        for message in messages:
            self.restartable = self.restartable or message["what"] == "restartable"
            self.waiting = self.waiting or message["what"] == "waiting"
        return bool(messages)

    def go_on(self, environment: dict[str, str]) -> None:
        self.waiting = False
        with contextlib.suppress(OSError):  # it has died meanwhile: its exit is noticed as any rank's is
            self.ours.sendall(json.dumps({"environment": environment}).encode() + b"\n")
