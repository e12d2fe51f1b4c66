"""What became of an incident, for its page. Of a long one that is much to read: it is read seldomer then."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Response

from understudy_controlplane.api.post_mortem import Story
from understudy_controlplane.clock import Clock

APART_FACTOR = 20.0
"""Two readings begin that many times as far apart as one takes."""
KEPT_MAX = 32


class Stories:
    def __init__(self, read: Callable[[int], Story | Response], clock: Clock) -> None:
        self._read_one, self._clock = read, clock
        self._read: dict[int, tuple[float, Story]] = {}  # incident → when it is read again, by the monotonic clock

    def of(self, incident: int) -> Story | Response:
        begun, known = self._clock.monotonic(), self._read.get(incident)
        if known is not None and begun < known[0]:
            return known[1]
        found = self._read_one(incident)
        if isinstance(found, Response):
            return found
        self._read.pop(incident, None)
        self._read[incident] = (begun + APART_FACTOR * (self._clock.monotonic() - begun), found)
        for oldest in [*self._read][:-KEPT_MAX]:
            self._read.pop(oldest, None)
        return found
