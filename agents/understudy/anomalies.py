"""Loss and gradient norm that are NaN or jump.

They are reported with the step at which they began and, once values are as before, the first such step. The control
plane judges what they mean: the data, the program or a GPU that computes wrong results can be the cause.
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

REPORTED_MAX = 64
"""Anomalies of one value that are reported in the life of this process."""


class Series:
    """One value, watched step by step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: deque[float] = deque(maxlen=SEEN)
        self._open: dict[str, Any] | None = None
        self._normal_since = 0
        self._normal = 0
        self._reported = 0

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
                return {**self._open, "at": time.time()}
            return None
        if what:
            self._normal = 0
            return None
        self._normal_since = self._normal_since if self._normal else step
        self._normal += 1
        if self._normal < NORMAL_STEPS:
            return None
        over, self._open = self._open, None
        return {**over, "until": self._normal_since, "at": time.time()}

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
        return sorted(self._seen)[len(self._seen) // 2]


class AnomalyWatch:
    def __init__(self) -> None:
        self._loss = Series("loss")
        self._grad_norm = Series("grad_norm")

    def add(self, step: int, loss: float | None, grad_norm: float | None) -> list[dict[str, Any]]:
        notices = [
            self._loss.add(step, loss) if loss is not None else None,
            self._grad_norm.add(step, grad_norm) if grad_norm is not None else None,
        ]
        return [notice for notice in notices if notice is not None]
