"""Values that a training should not have: NaN, and jumps of loss or gradient norm.

Told as facts, with the step they began and, where things became as before, the first step of that. What they mean is
not judged here: a fault in the data or the program makes them as well as a GPU that computes wrong.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

JUMP_RATIO = 5.0
"""Times the median of what was seen before, and twice the largest of it."""

SEEN = 64
SEEN_MIN = 16
CALM_STEPS = 20
"""So many values as usual, one after the other, end it."""

TOLD_MAX = 64
"""In the life of this process: one that begins again and again is known by then."""


class Series:
    """One value, watched step by step."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: deque[float] = deque(maxlen=SEEN)
        self._open: dict[str, Any] | None = None
        self._calm_since = 0
        self._calm = 0
        self._told = 0

    def see(self, step: int, value: float) -> dict[str, Any] | None:
        """A notice, when something begins or is over."""
        what = self._what(value)
        if self._open is None:
            if not what:
                self._seen.append(value)
            elif self._told < TOLD_MAX:
                self._told += 1
                usual = self._usual()
                self._open = {
                    "type": "anomaly",
                    "kind": f"{self._name}_{what}",
                    "step": step,
                    "value": repr(value)[:32],
                    "usual": usual if usual is not None else 0.0,
                }
                self._calm = 0
                return {**self._open, "at": time.time()}
            return None
        if what:
            self._calm = 0
            return None
        self._calm_since = self._calm_since if self._calm else step
        self._calm += 1
        if self._calm < CALM_STEPS:
            return None
        over, self._open = self._open, None
        return {**over, "until": self._calm_since, "at": time.time()}

    def _what(self, value: float) -> str:
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

    def see(self, step: int, loss: float | None, grad_norm: float | None) -> list[dict[str, Any]]:
        notices = [
            self._loss.see(step, loss) if loss is not None else None,
            self._grad_norm.see(step, grad_norm) if grad_norm is not None else None,
        ]
        return [notice for notice in notices if notice is not None]
