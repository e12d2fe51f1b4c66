"""How much a counter grew, and which share of readings was true, within the last minutes. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable

from understudy_wire.hardware import RECENT_SECONDS


class Growth:
    """Many counters, by key. A counter that was reset starts again."""

    def __init__(self, seconds: float = RECENT_SECONDS) -> None:
        self._seconds = seconds
        self._readings: dict[Hashable, deque[tuple[float, int]]] = {}
        """Each value, and when it was last read: most counters of a healthy node stand still."""

    def add(self, key: Hashable, now: float, value: int | None) -> int | None:
        """Growth of the counter within the time; None when `value` is None."""
        if value is None:
            return None
        readings = self._readings.get(key)
        if readings is None:
            readings = self._readings[key] = deque()
        if readings:
            last_at, last = readings[-1]
            if value < last:
                readings.clear()
            elif value == last and now > last_at:
                readings.pop()
            elif now <= last_at:
                return value - readings[0][1]
        readings.append((now, value))
        while readings[0][0] < now - self._seconds:
            readings.popleft()
        return value - readings[0][1]


class Share:
    """Many readings that are true or false, by key."""

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
