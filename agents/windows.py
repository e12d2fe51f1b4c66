"""The step times that ranks told since the last report to the control plane. Soft: the oldest go first."""

from __future__ import annotations

from agents.rank_messages import Hello, Steps
from agents.wire import RANKS_PER_NODE_MAX, STEPS_PER_WINDOW_MAX, RankWindow

SECONDS_DIGITS = 6  # microseconds; the rest is noise and half of the report's size


class WindowBuffer:
    def __init__(self, ranks_max: int = RANKS_PER_NODE_MAX) -> None:
        self._ranks_max = ranks_max
        self._windows: dict[tuple[int, int, int, int, int], RankWindow] = {}
        """By job, restart count, launch, rank and user."""

    def add(self, hello: Hello, steps: Steps, user_id: int) -> None:
        key = (hello.job_id, hello.restart_count, hello.launch, hello.rank, user_id)
        own = [round(seconds, SECONDS_DIGITS) for seconds in steps.self_seconds]
        wall = [round(seconds, SECONDS_DIGITS) for seconds in steps.wall_seconds]
        first = steps.first_step
        before = self._windows.pop(key, None)
        # A window has no gaps: after one (or a step back) the newer steps are what counts.
        if before is not None and before.first_step + len(before.self_seconds) == first:
            own, wall, first = before.self_seconds + own, before.wall_seconds + wall, before.first_step
        surplus = max(0, len(own) - STEPS_PER_WINDOW_MAX)
        if len(self._windows) >= self._ranks_max:
            del self._windows[next(iter(self._windows))]
        self._windows[key] = RankWindow(
            job_id=hello.job_id,
            restart_count=hello.restart_count,
            rank=hello.rank,
            world_size=hello.world_size,
            gpu_index=hello.gpu_index,
            launch=hello.launch,
            user_id=user_id,
            role=hello.role,
            first_step=first + surplus,
            self_seconds=own[surplus:],
            wall_seconds=wall[surplus:],
        )

    def take(self) -> list[RankWindow]:
        windows = list(self._windows.values())
        self._windows.clear()
        return windows
