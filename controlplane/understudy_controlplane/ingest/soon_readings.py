"""Asks for a reading of Slurm sooner than usual, for processes that wait until Slurm shows their job."""

from __future__ import annotations

from collections.abc import Callable

from understudy_controlplane.clock import Clock
from understudy_controlplane.ingest.rates import Rates

TOGETHER_SECONDS = 0.25
"""One reading serves all who ask within this time, such as the nodes of a gang that starts."""

PER_SECOND_PER_USER, BURST_SECONDS = 1 / 6, 60.0
"""Ten a minute: any user can ask about jobs that do not exist. The next usual reading shows the others, too."""


class SoonReadings:
    """Used by one thread."""

    def __init__(self, read_soon: Callable[[], None], clock: Clock) -> None:
        self._read_soon = read_soon
        self._clock = clock
        self._asked_at = float("-inf")
        self._rates = Rates(PER_SECOND_PER_USER, BURST_SECONDS)

    def ask(self, user_id: int) -> None:
        now = self._clock.monotonic()
        if now - self._asked_at >= TOGETHER_SECONDS and self._rates.admits(str(user_id), now):
            self._asked_at = now
            self._read_soon()
