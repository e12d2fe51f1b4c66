"""What the gang has reached and what it has spent, over all its launches, and what earlier allocations of the job had
used up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from understudy_launcher.event_log import Events
from understudy_launcher.launch import Launch
from understudy_launcher.launch_result import History, add_earlier_allocations
from understudy_launcher.progress import Progress
from understudy_wire.places import Place

PROGRESS_SECONDS = 0.5


class Budget:
    """Progress is a step beyond every one before it, unless the launch ends as the one before did."""

    def __init__(
        self,
        progress: Progress,
        launches_without_progress_max: int,
        events: Events,
        count_from: Callable[[], int] = lambda: 0,
    ) -> None:
        """`count_from`: what has to be taken off the newest step for the number that the program gave it."""
        self._progress = progress
        self._count_from = count_from
        self._ended_at = Place()
        """The launch before this one. A launcher that was killed has forgotten it."""
        self._maximum = launches_without_progress_max
        self._events = events
        self.best_step: int | None = None
        self._looked_at = 0.0
        self.took_over = False
        self.history = History()

    def begin(self, launch: Launch, now: float) -> None:
        """Its ranks are about to start: a step that is seen now is of an earlier launch."""
        reached = self._progress.step(0.0)
        launch.note_step(reached, now)
        if launch.number == 0 and reached is not None:  # what an earlier job left in the file
            self.best_step = max(reached, self.best_step or 0)

    def look(self, launch: Launch, now: float) -> None:
        if now - self._looked_at >= PROGRESS_SECONDS:
            self.look_at_once(launch, now)

    def look_at_once(self, launch: Launch, now: float) -> None:
        self._looked_at = now
        step = self._progress.step(launch.age(now))
        launch.note_step(step, now)
        if self._progress.hangs:
            launch.unread_at = now
        if step is None or (self.best_step is not None and step <= self.best_step):
            return
        self.best_step = step
        launch.progressed = True

    def close(self, launch: Launch, now: float) -> None:
        """It is over."""
        self.look_at_once(launch, now)
        if launch.newest_step is None:
            return
        place = Place(launch.newest_step, self._count_from())
        launch.progressed = launch.progressed and not place.repeats(self._ended_at)
        self._ended_at = place

    def resume(self, history: History, best_step: int | None, took_over: bool) -> None:
        self.history, self.best_step, self.took_over = history, best_step, took_over

    def take_over(self, earlier: int, best: int | None, ran_on: Collection[str] = ()) -> None:
        """Adds what earlier allocations of the job have used up of its budget. Once, however often it is called.
        `ran_on`: nodes of this one on which it finished steps in those; none: that is not known.
        """
        if self.took_over:
            return
        self.took_over = True
        self._events.note("orders_received", launches_without_progress=earlier, best_step=best)
        if self.history.ever_progressed:
            return
        self.history = add_earlier_allocations(self.history, earlier, best, ran_on)
        if best is not None:
            self.best_step = max(best, self.best_step or 0)
            self._ended_at = max(self._ended_at, Place(best))  # which this allocation counts from 0
        if earlier:
            message = (
                f"before its requeue this job had {earlier} of {self._maximum} launches without progress; they count"
            )
            self._events.report("taken_over", message, launches_without_progress=earlier, best_step=best)
