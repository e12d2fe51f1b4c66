"""The signals that the launcher gets: Slurm's warning of the end, or the end itself, and what each means after earlier
ones.
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


def handled(checkpoint_signal: signal.Signals) -> frozenset[signal.Signals]:
    return frozenset({signal.SIGTERM, signal.SIGINT, checkpoint_signal})


class Signals:
    def __init__(self, checkpoint_signal: signal.Signals) -> None:
        self._checkpoint_signal = checkpoint_signal
        self._received: list[signal.Signals] = []
        self.warned_at: float | None = None
        """Time at which a warning was carried out."""
        self.ending_for: signal.Signals | None = None
        """The last signal that meant the end."""

    @property
    def warned(self) -> bool:
        return self.warned_at is not None

    def listen(self) -> socket.socket:
        """Begins to notice the ends of child processes. The caller's loop must wait for this socket, too."""
        read_end, write_end = socket.socketpair()
        read_end.setblocking(False)
        write_end.setblocking(False)
        self._sockets = (read_end, write_end)
        signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)
        # Not SIG_IGN, which the steps would inherit. Slurm may signal guardian and launcher: the guardian's counts.
        for name in (signal.SIGCHLD, *handled(self._checkpoint_signal)):
            signal.signal(name, lambda *_: None)
        return read_end

    def take(self, numbers: bytes) -> None:
        """`numbers` of signals come from the guardian. Empty: the guardian is gone, and with it the job."""
        known = handled(self._checkpoint_signal)
        self._received += [signal.Signals(number) for number in numbers if number in known]
        if not numbers:
            self._received += [signal.SIGINT, signal.SIGINT]

    def received(self) -> Iterator[signal.Signals]:
        while self._received:
            yield self._received.pop(0)

    def resume(self, warned_at: float | None, ending_for: signal.Signals | None) -> None:
        """What was carried out before the launcher was killed."""
        self.warned_at, self.ending_for = warned_at, ending_for

    def meaning(self, received: signal.Signals, now: float) -> Meaning:
        if received != self._checkpoint_signal or self._is_the_end(received, now):
            return Meaning.END
        return Meaning.NOTHING if received == signal.SIGTERM and self.warned else Meaning.WARNING

    def meaning_of_a_steps(self, number: int) -> Meaning:
        """A seat received this signal from Slurm. Other signals to a step have no meaning for the launcher."""
        first = not self.warned and self.ending_for is None
        return Meaning.WARNING if number == self._checkpoint_signal and first else Meaning.NOTHING

    def _is_the_end(self, received: signal.Signals, now: float) -> bool:
        """SIGTERM as a warning: at the end of the grace time there is another one."""
        late = self.warned_at is not None and now - self.warned_at > WARNED_TWICE_SECONDS
        return received == signal.SIGTERM and (self.ending_for is not None or late)
