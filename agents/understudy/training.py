"""What the training reports of itself: the newest loss and gradient norm, and tokens per second."""

from __future__ import annotations

import math
from typing import Any

SECONDS_MIN = 1.0
"""Least time between two reports, and for a rate."""

VALUE_MAX = 1e30


class TrainingNumbers:
    """The link's thread uses it: the training itself only appends what it observes."""

    def __init__(self) -> None:
        self.flops_per_token: float | None = None
        self.compute: tuple[int, float, float | None] | None = None
        """The step after which the GPU was tested last, and how long that and an all-reduce took. Of the training's
        thread.
        """
        self.test_after: int | None = None
        """A step after which the GPU is to be tested. Of the link's thread; the training's reads it."""
        self._compute_sent: tuple[int, float, float | None] | None = None
        self._newest: dict[str, Any] = {}
        self._tokens = 0.0
        self._since: float | None = None
        self._until = 0.0
        self._changed = False
        self._reported_at = -math.inf

    def add(self, step: int, loss: float | None, grad_norm: float | None, tokens: float | None, at: float) -> None:
        """Tokens of the first step count for no rate: when it began is not known. `at`: when they were counted."""
        self._newest["step"] = step
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if value is not None:
                self._newest[name] = value if abs(value) <= VALUE_MAX else None  # NaN is reported as an anomaly
        if tokens is not None and 0 <= tokens <= VALUE_MAX:
            if self._since is None:
                self._since = at
            else:
                self._tokens += tokens
            self._until = at
        self._changed = True

    def due(self, now: float) -> dict[str, Any] | None:
        """A message, where there is something new."""
        compute = self.compute
        new = self._changed or compute != self._compute_sent
        if not new or now - self._reported_at < SECONDS_MIN:
            return None
        if compute is not None:
            self._compute_sent = compute
            for name, value in zip(("compute_step", "compute_seconds", "all_reduce_seconds"), compute):
                self._newest[name] = value
        if self._since is not None and self._until - self._since >= SECONDS_MIN:
            self._newest["tokens_per_second"] = self._tokens / (self._until - self._since)
            self._tokens, self._since = 0.0, self._until
        self._changed, self._reported_at = False, now
        flops = {} if self.flops_per_token is None else {"flops_per_token": self.flops_per_token}
        return {"type": "training", **self._newest, **flops}
