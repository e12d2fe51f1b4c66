"""Loss and gradient norm that are NaN or jump.

They are reported with the step at which they began and, once values are as before, the first such step. A value that
settles at a new level is no anomaly any more: the new level becomes what is usual. So do jumps that come again and
again. The control plane judges what they
mean: the data, the program or a GPU that computes wrong results can be the cause.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

JUMP_RATIO = 5.0
"""A jump is larger than the median of the values before it times this, and larger than twice the largest of them."""

SEEN = 64
SEEN_MIN = 16
NORMAL_STEPS = 20
"""This many consecutive values as before end an anomaly."""

LEVEL_STEPS = 64
"""This many consecutive values within JUMP_RATIO of their median, that do not grow, are a new level."""

SPIKY_STEPS = 256
"""Number of values in which jumps that come again and again are usual, where most values are as before and nothing
grows.
"""

GROWTH_MAX = 1.5
"""A series grows when the median of the later half of them is that of the earlier one times this, or larger."""

REPORTED_MAX = 64
"""Anomalies of one value that are reported in the life of this process."""


class Series:
    """One value, watched step by step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: deque[float] = deque(maxlen=SEEN)
        self._open: dict[str, Any] | None = None
        self._level: deque[tuple[int, float]] = deque(maxlen=SPIKY_STEPS)
        """The newest numbers since the open anomaly began, with their steps."""
        self._finite_since = 0
        """First step of the open anomaly after the last NaN."""
        self._normal_since = 0
        self._normal = 0
        self._reported = 0

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def add(self, step: int, value: float) -> dict[str, Any] | None:
        """A notice where an anomaly begins or ends."""
        what = self._classify(value)
        if self._open is None:
            if not what:
                self._seen.append(value)
            elif self._reported < REPORTED_MAX:
                self._reported += 1
                usual = self._usual()
                self._open = {
                    "type": "anomaly",
                    "kind": f"{self._name}_{what}",
                    "step": step,
                    "value": repr(value)[:32],
                    "usual": usual if usual is not None else 0.0,
                }
                self._normal = 0
                self._level.clear()
                if what != "nan":
                    self._level.append((step, value))
                return {**self._open, "at": time.time()}
            return None
        if what == "nan":
            self._level.clear()
        else:
            self._finite_since = self._finite_since if self._level else step
            self._level.append((step, value))
        if what:
            self._normal = 0
            return self._settled() if self._is_level() else None
        self._normal_since = self._normal_since if self._normal else step
        self._normal += 1
        if self._normal == 1 and self._is_spiky():
            return self._settled()
        if self._normal < NORMAL_STEPS:
            return None
        over, self._open = self._open, None
        return {**over, "until": self._normal_since, "at": time.time()}

    def _is_level(self) -> bool:
        earlier, later = self._halves(LEVEL_STEPS)
        if not later or max(earlier + later) > JUMP_RATIO * _median(earlier + later):
            return False
        return _median(later) < GROWTH_MAX * _median(earlier)

    def _is_spiky(self) -> bool:
        earlier, later = self._halves(SPIKY_STEPS)
        usual = self._usual()
        if not later or usual is None or _median(later) > JUMP_RATIO * abs(usual):
            return False
        return _median(later) < GROWTH_MAX * _median(earlier) and max(later) < GROWTH_MAX * max(earlier)

    def _halves(self, count: int) -> tuple[list[float], list[float]]:
        """The sizes of the newest `count` numbers since the anomaly began; empty: there are fewer."""
        if len(self._level) < count:
            return [], []
        values = [abs(value) for _, value in self._level][-count:]
        return values[: count // 2], values[count // 2 :]

    def _settled(self) -> dict[str, Any] | None:
        """The anomaly is over: what settled at a new level was only another level, and jumps that come again and again
        are usual. NaN was more, until it ended.
        """
        over, self._open = self._open, None
        assert over is not None
        first = self._finite_since if over["kind"].endswith("_nan") else over["step"]
        self._seen = deque((value for _, value in self._level), maxlen=SEEN)
        return {**over, "until": first, "at": time.time()}

    def _classify(self, value: float) -> str:
        if not math.isfinite(value):
            return "nan"
        usual = self._usual()
        if usual is None:
            return ""
        far = abs(value) > JUMP_RATIO * abs(usual) and abs(value) > 2 * max(map(abs, self._seen))
        return "jump" if far else ""

    def _usual(self) -> float | None:
        if len(self._seen) < SEEN_MIN:
            return None
        return _median(list(self._seen))


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


class AnomalyWatch:
    def __init__(self) -> None:
        self._loss = Series("loss")
        self._grad_norm = Series("grad_norm")

    @property
    def is_open(self) -> bool:
        """An anomaly has begun and is not over."""
        return self._loss.is_open or self._grad_norm.is_open

    def add(self, step: int, loss: float | None, grad_norm: float | None) -> list[dict[str, Any]]:
        notices = [
            self._loss.add(step, loss) if loss is not None else None,
            self._grad_norm.add(step, grad_norm) if grad_norm is not None else None,
        ]
        return [notice for notice in notices if notice is not None]
