"""Ages of what is recorded with the time of a clock that may be set. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class ClockSets:
    """When the clock was set, by a clock that is never set, and by how many seconds; negative: back."""

    sets: tuple[tuple[float, float], ...] = ()

    def with_set(self, monotonic: float, by_seconds: float, kept_seconds: float) -> ClockSets:
        kept = (one for one in self.sets if monotonic - one[0] < kept_seconds)
        return ClockSets((*kept, (monotonic, by_seconds)))

    def ago(self, seconds: float, now: float, monotonic: float) -> float:
        """What was recorded before this time is older than `seconds`. A clock that was set forward makes nothing older;
        one that was set back makes it younger at most, also once it is put right again.
        """
        within = [by for at, by in reversed(self.sets) if monotonic - at < seconds]
        return now - seconds - max(accumulate(within, initial=0.0))


NEVER_SET = ClockSets()
