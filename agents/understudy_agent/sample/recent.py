"""How much a counter grew, and how often something was so, within the last minutes. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from understudy_agent.wire import RECENT_SECONDS


class Growth:
    """Of many counters, by key. A counter that was set back begins anew."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        self._seconds = seconds
        self._readings: dict[Hashable, deque[tuple[float, int]]] = {}

    def add(self, key: Hashable, now: float, value: int | None) -> int | None:
        """By how much it grew lately; None for a counter that is not there."""
        if value is None:
            return None
        readings = self._readings.setdefault(key, deque())
        if readings and value < readings[-1][1]:
            readings.clear()
        if not readings or now > readings[-1][0]:
            readings.append((now, value))
        while readings[0][0] < now - self._seconds:
            readings.popleft()
        return value - readings[0][1]


class Share:
    """Of many yes-or-no readings, by key."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        self._seconds = seconds
        self._readings: dict[Hashable, deque[tuple[float, bool]]] = {}
        self._yes: Counter[Hashable] = Counter()

    def add(self, key: Hashable, now: float, yes: bool) -> float | None:
        """Share of yes lately; None before half of the time was watched."""
        readings = self._readings.setdefault(key, deque())
        readings.append((now, yes))
        self._yes[key] += yes
        while readings[0][0] < now - self._seconds:
            self._yes[key] -= readings.popleft()[1]
        if now - readings[0][0] < self._seconds / 2:
            return None
        return self._yes[key] / len(readings)
