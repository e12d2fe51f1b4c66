"""What a service reports to systemd: sd_notify(3), one datagram for each message.

Without systemd nothing is sent. Agent and control plane use it; it is shorter than what the packages on PyPI need to be
built or kept.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping

SEND_SECONDS_MAX = 1.0


class ServiceManager:
    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.is_ready = False

    def starting(self, status: str, seconds: float) -> None:
        """The start is not over yet, and may take this much longer from now on."""
        if self.is_ready:  # it stood by: systemd waits for signs of life
            self.alive(status)
            return
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1e6)}", f"STATUS={status}")

    def ready(self, status: str) -> None:
        self.is_ready = True
        self._send("READY=1", f"STATUS={status}")

    def alive(self, status: str) -> None:
        """The service has made progress. systemd restarts it where this does not come in time (`WatchdogSec=`)."""
        self._send("WATCHDOG=1", f"STATUS={status}")

    def stopping(self) -> None:
        self._send("STOPPING=1", "STATUS=stops")

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        message = "\n".join(" ".join(line.split()) for line in lines)
        # A message that is lost costs a restart at most, as one that was never sent.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(SEND_SECONDS_MAX)
            sender.sendto(message.encode(), self._address)
