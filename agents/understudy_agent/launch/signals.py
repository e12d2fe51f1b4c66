"""The signals that the launcher gets: Slurm's warning of the end, or the end itself.

Belongs here: receiving them, and what each means after earlier ones. Must not: clocks (times are given), or what
follows.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from enum import StrEnum

WARNED_TWICE_SECONDS = 2.0
"""Signals of Slurm to the steps and to the batch script within this time may be the same warning."""


class Meaning(StrEnum):
    WARNING = "warning"
    """The ranks may write a checkpoint; nothing is started any more."""
    END = "end"
    NOTHING = "nothing"


class Signals:
    def __init__(self, checkpoint_signal: signal.Signals) -> None:
        self._checkpoint_signal = checkpoint_signal
        self._received: list[signal.Signals] = []
        self._warned_at: float | None = None
        self.ending_for: signal.Signals | None = None
        """The last signal that meant the end."""

    @property
    def warned(self) -> bool:
        return self._warned_at is not None

    def listen(self) -> socket.socket:
        """Begins to receive. The caller's loop must wait for this socket, too."""
        read_end, write_end = socket.socketpair()
        read_end.setblocking(False)
        write_end.setblocking(False)
        self._sockets = (read_end, write_end)
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        for name in (signal.SIGTERM, signal.SIGINT, self._checkpoint_signal):
            signal.signal(name, lambda received, _: self._received.append(signal.Signals(received)))
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return read_end

    def received(self) -> Iterator[signal.Signals]:
        while self._received:
            yield self._received.pop(0)

    def warn(self, now: float) -> None:
        """The warning has been carried out."""
        self._warned_at = now

    def meaning(self, received: signal.Signals, now: float) -> Meaning:
        """Of a signal to the launcher itself."""
        if received != self._checkpoint_signal or self._is_the_end(received, now):
            return Meaning.END
        return Meaning.NOTHING if received == signal.SIGTERM and self.warned else Meaning.WARNING

    def meaning_of_a_steps(self, number: int) -> Meaning:
        """Of a signal that a seat received from Slurm. Other signals to a step have no meaning for the launcher."""
        first = not self.warned and self.ending_for is None
        return Meaning.WARNING if number == self._checkpoint_signal and first else Meaning.NOTHING

    def _is_the_end(self, received: signal.Signals, now: float) -> bool:
        """SIGTERM as a warning: at the end of the grace time there is another one."""
        late = self._warned_at is not None and now - self._warned_at > WARNED_TWICE_SECONDS
        return received == signal.SIGTERM and (self.ending_for is not None or late)
