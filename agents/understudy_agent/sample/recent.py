"""How much a counter grew, and which share of readings was true, within the last minutes. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from understudy_agent.wire import RECENT_SECONDS


class Growth:
    """Of many counters, by key. A counter that was reset starts again."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        self._seconds = seconds
        self._readings: dict[Hashable, deque[tuple[float, int]]] = {}

    def add(self, key: Hashable, now: float, value: int | None) -> int | None:
        """By how much the counter grew within the time; None when `value` is None."""
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
    """Of many readings that are true or false, by key."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        self._seconds = seconds
        self._readings: dict[Hashable, deque[tuple[float, bool]]] = {}
        self._true: Counter[Hashable] = Counter()

    def add(self, key: Hashable, now: float, value: bool) -> float | None:
        """Share of true readings; None until readings cover half of the time."""
        readings = self._readings.setdefault(key, deque())
        readings.append((now, value))
        self._true[key] += value
        while readings[0][0] < now - self._seconds:
            self._true[key] -= readings.popleft()[1]
        if now - readings[0][0] < self._seconds / 2:
            return None
        return self._true[key] / len(readings)
