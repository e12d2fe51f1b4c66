"""Launchers: what each last said of its gang, and the word that stands for it.

Written by the door for launchers and by the loop. The word is made anew by the loop with every tick, from nodes and
recoveries in the database, so that a restart forgets none.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from understudy_controlplane.fleet.gang import Gang, Spent, Word

WAITING_MAX = 2000
"""Whoever comes above that is answered at once, and asks again."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    news: asyncio.Event

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self.loop.call_soon_threadsafe(self.news.set)


class Launchers:
    """Safe from any thread; `news` is for the event loop."""

    def __init__(self, gangs: Mapping[int, Gang] | None = None) -> None:
        """`gangs`: by job id, as the database knows them."""
        self._lock = threading.Lock()
        self._gangs: dict[int, Gang] = dict(gangs or {})
        self._words: dict[int, Word] = {}
        self._spent: dict[tuple[int, int], Spent] = {}
        self._waiters: dict[int, _Waiter] = {}

    def hear(self, job_id: int, gang: Gang) -> bool:
        """Returns whether it says something new. What an earlier attempt still says is not listened to."""
        with self._lock:
            before = self._gangs.get(job_id)
            if before is not None and before.attempt > gang.attempt:
                return False
            self._gangs[job_id] = gang
            return before is None or (before.attempt, before.seats, before.spares, before.phase) != (
                gang.attempt,
                gang.seats,
                gang.spares,
                gang.phase,
            )

    def gangs(self) -> dict[int, Gang]:
        with self._lock:
            return dict(self._gangs)

    def gang(self, job_id: int) -> Gang | None:
        with self._lock:
            return self._gangs.get(job_id)

    def forget_all_but(self, running: Mapping[int, int]) -> None:
        """`running`: job id → restart count, of the jobs that run now."""
        with self._lock:
            self._gangs = {
                job_id: gang
                for job_id, gang in self._gangs.items()
                if running.get(job_id, -1) <= gang.attempt.restart_count and job_id in running
            }
            self._spent = {key: spent for key, spent in self._spent.items() if key[0] in running}

    def spent(self, job_id: int, restart_count: int) -> Spent | None:
        with self._lock:
            return self._spent.get((job_id, restart_count))

    def note_spent(self, job_id: int, restart_count: int, spent: Spent) -> None:
        with self._lock:
            self._spent[job_id, restart_count] = spent

    def say(self, words: Mapping[int, Word]) -> None:
        """These words stand, by job id, and no others. Of a job that is not among them nothing is said: what its
        launcher was told before still stands.
        """
        with self._lock:
            changed = [job_id for job_id, word in words.items() if self._words.get(job_id) != word]
            self._words = dict(words)
            waiters = [self._waiters[job_id] for job_id in changed if job_id in self._waiters]
        for waiter in waiters:
            waiter.wake()

    def tell(self, job_id: int, word: Word) -> None:
        """More than stands already, at once: the next `say` says it as well."""
        with self._lock:
            before = self._words.get(job_id, Word())
            self._words[job_id] = Word({**before.bad, **word.bad}, word.anew or before.anew)
            waiter = self._waiters.get(job_id)
        if waiter is not None:
            waiter.wake()

    def word(self, job_id: int) -> Word | None:
        with self._lock:
            return self._words.get(job_id)

    async def news(self, job_id: int, known: str, seconds: float) -> Word | None:
        """The word, once it is another than the `known` one. None: there is none, or not within this time."""
        word = self.word(job_id)
        if word is not None and word.version != known:
            return word
        waiter = _Waiter(asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if len(self._waiters) >= WAITING_MAX:
                return None
            before = self._waiters.pop(job_id, None)
            self._waiters[job_id] = waiter
        if before is not None:
            before.wake()  # one launcher, one poll
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await waiter.news.wait()
        finally:
            with self._lock:
                if self._waiters.get(job_id) is waiter:
                    del self._waiters[job_id]
        word = self.word(job_id)
        return word if word is not None and word.version != known else None
