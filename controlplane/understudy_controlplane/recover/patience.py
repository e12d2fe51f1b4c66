"""How long each step has been waited for. Only time between two looks at the step counts."""

from __future__ import annotations

from collections.abc import Collection, Iterable

LOOKS_APART_SECONDS_MAX = 90.0
"""More than this between two looks is not waiting: the process stood still, or a clock was set."""

REST_SECONDS_MAX = 60.0
HURRIES_SECONDS = 0.5


def rest_seconds(waited_seconds: float, timeout_seconds: float, min_job_age_seconds: float = 0.0) -> float:
    """How long a step that waits is left alone. What it waits for is seen a twentieth later at most, and a test that
    runs for two days does not read Slurm ten times a second. It may wait for the end of a job, which Slurm forgets
    after `min_job_age_seconds`; 0: never.
    """
    seen_in_time = min_job_age_seconds / 3 or REST_SECONDS_MAX
    return min(waited_seconds / 20, timeout_seconds / 60, seen_in_time, REST_SECONDS_MAX)


class Patience:
    """Kept in memory: a new process gives each step its whole time again."""

    def __init__(self) -> None:
        self._waited: dict[tuple[int, int, bool], float] = {}
        self._looked_at: dict[int, float] = {}
        self._rests_until: dict[int, float] = {}

    def rest(self, recovery: int, until: float) -> None:
        """`until` is monotonic time."""
        self._rests_until[recovery] = until

    def rests(self, recovery: int, monotonic: float) -> bool:
        return monotonic < self._rests_until.get(recovery, 0.0)

    def hurries(self, recoveries: Iterable[int], monotonic: float) -> bool:
        """True if one of them has to be looked at soon."""
        return any(self._rests_until.get(one, 0.0) - monotonic < HURRIES_SECONDS for one in recoveries)

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
        self._rests_until.clear()

    def keep_only(self, recoveries: Collection[int]) -> None:
        self._looked_at = {key: at for key, at in self._looked_at.items() if key in recoveries}
        self._rests_until = {key: at for key, at in self._rests_until.items() if key in recoveries}
        self._waited = {key: seconds for key, seconds in self._waited.items() if key[0] in recoveries}
