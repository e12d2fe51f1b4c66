"""The process at the other end of a local socket, and when it was created, according to the kernel."""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

from understudy_wire.process_stat import read_stat

_UCRED = struct.Struct("iII")  # pid, uid, gid: struct ucred of unix(7)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Pid and user id of the process that connected. The pid is 0 when the process lives in a pid namespace that this
    one cannot see.
    """
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, user_id, _ = _UCRED.unpack(raw)
    return int(pid), int(user_id)


class ProcessClock:
    """Creation times of processes as seconds since the Unix epoch, the same at every call."""

    def __init__(self) -> None:
        # Read once: the difference of the two clocks moves by microseconds, and `started_at` is part of a key.
        self._booted_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")

    def started_at(self, pid: int) -> float:
        """Raises ProcessLookupError when this process cannot see `pid`."""
        try:
            ticks = read_stat(Path(f"/proc/{pid}/stat")).started_ticks
        except OSError as error:
            raise ProcessLookupError(f"process {pid}: /proc/{pid}/stat cannot be read: {error.strerror}") from error
        return round(self._booted_at + ticks / self._ticks_per_second, 2)
