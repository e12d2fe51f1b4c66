"""How long each step has been waited for. Only time between two looks at the step counts."""

from __future__ import annotations

from collections.abc import Collection

LOOKS_APART_SECONDS_MAX = 60.0
"""More than this between two looks is not waiting: the process stood still, or a clock was set."""


class Patience:
    """In memory: a new process gives each step its whole time again."""

    def __init__(self) -> None:
        self._waited: dict[tuple[int, int, bool], float] = {}
        self._looked_at: dict[int, float] = {}

    def look(self, recovery: int, step: int, now: float, *, long: bool = False) -> float:
        """Seconds for which this step has been waited for, this look included. What may take long is counted apart: a
        step that waited for an epilog has its usual time afterwards.
        """
        before = self._looked_at.get(recovery)
        self._looked_at[recovery] = now
        waited = self._waited.setdefault((recovery, step, long), 0.0)
        if before is not None and 0.0 <= now - before <= LOOKS_APART_SECONDS_MAX:
            waited += now - before
            self._waited[recovery, step, long] = waited
        return waited

    def interrupt(self) -> None:
        """Nothing could be looked at: the time until the next look counts against no step."""
        self._looked_at.clear()

    def keep_only(self, recoveries: Collection[int]) -> None:
        self._looked_at = {key: at for key, at in self._looked_at.items() if key in recoveries}
        self._waited = {key: seconds for key, seconds in self._waited.items() if key[0] in recoveries}
