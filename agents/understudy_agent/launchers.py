"""Launchers on this node: what they say of their gangs goes to the control plane, its word comes back.

Belongs here: one long poll for each connected launcher, and the steps that ranks here have finished. Must not: judging
whether a node is bad, or remembering a word for a launcher that has hung up.

A long poll, because the word must be there in milliseconds and the control plane never calls an agent. It is bounded:
so many launchers, one poll for each, so many seconds.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from understudy_agent.log import fields, log
from understudy_agent.rank_messages import Answer, ErrorAnswer, Hello, LauncherState, Progress, Standing, Word
from understudy_agent.uplink import RejectedError, UnreachableError
from understudy_agent.wire import WIRE_VERSION, LauncherReport, LauncherWord

LAUNCHERS_PER_NODE_MAX = 16
WAIT_SECONDS = 5.0
"""Of one poll; so often a launcher is heard of that has nothing new to say."""
TRY_AGAIN_SECONDS = 0.5
PROGRESS_SECONDS = 0.5

Ask = Callable[[LauncherReport], Awaitable[LauncherWord]]
"""Raises UnreachableError and RejectedError."""


class TooManyLaunchersError(Exception):
    """This node follows no more of them."""


class Launchers:
    """Everything of one event loop."""

    def __init__(self, cluster: str, node: str, ask: Ask) -> None:
        self.cluster = cluster
        self.node = node
        self.ask = ask
        self._lines: set[LauncherLine] = set()

    def open(self, user_id: int, answer: Callable[[Answer], None], hang_up: Callable[[], None]) -> LauncherLine:
        """Raises TooManyLaunchersError."""
        if len(self._lines) >= LAUNCHERS_PER_NODE_MAX:
            raise TooManyLaunchersError(f"{LAUNCHERS_PER_NODE_MAX} launchers are connected already")
        line = LauncherLine(self, user_id, answer, hang_up)
        self._lines.add(line)
        return line

    def close(self, line: LauncherLine) -> None:
        self._lines.discard(line)
        line.stop()

    def note_step(self, hello: Hello, user_id: int, step: int) -> None:
        """A rank on this node has finished this step. It is its own gang's only."""
        for line in self._lines:
            if line.speaks_for(hello, user_id):
                line.note_step(hello.launch, step)


class LauncherLine:
    """One launcher's way to the control plane and back."""

    def __init__(
        self, launchers: Launchers, user_id: int, answer: Callable[[Answer], None], hang_up: Callable[[], None]
    ) -> None:
        self._launchers = launchers
        self._user_id = user_id
        self._answer = answer
        self._hang_up = hang_up
        self._changed = asyncio.Event()
        self._step: tuple[int, int] = (-1, -1)
        self._step_told = (-1, -1)
        self._standing: Standing | None = None
        self._trouble = ""
        self._tasks: list[asyncio.Task[None]] = []
        self.state: LauncherState | None = None

    def take(self, state: LauncherState) -> None:
        """The launcher's newest word about its gang."""
        self.state = state
        self._changed.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._tell_progress())]

    def speaks_for(self, hello: Hello, user_id: int) -> bool:
        state = self.state
        return (
            state is not None
            and (state.job_id, state.restart_count) == (hello.job_id, hello.restart_count)
            and self._user_id in (0, user_id)
        )

    def note_step(self, launch: int, step: int) -> None:
        self._step = max(self._step, (launch, step))

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _follow(self) -> None:
        known = ""
        while True:
            self._changed.clear()
            begun = time.monotonic()
            word = await self._poll(known)
            if word is None:
                continue
            self._tell_standing(Standing(True, word.restore_step, word.restore_path))
            if not word.version and time.monotonic() - begun < TRY_AGAIN_SECONDS:
                await asyncio.sleep(TRY_AGAIN_SECONDS)  # it lets nobody wait just now
            if word.step is not None:
                self.note_step(word.launch, word.step)
            if word.version and word.version != known:
                known = word.version
                self._answer(Word(word.bad, word.anew, word.launches_without_progress, word.best_step))

    async def _poll(self, known: str) -> LauncherWord | None:
        """None: the launcher has said something new meanwhile, or nobody answers; to be asked again."""
        asking = asyncio.ensure_future(self._launchers.ask(self._report(known)))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({asking, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return None
            word = asking.result()
        except UnreachableError as error:
            self._note_trouble("launcher_unheard", error)
            known_before = self._standing or Standing(False)
            self._tell_standing(Standing(False, known_before.restore_step, known_before.restore_path))
            await asyncio.wait({changed}, timeout=TRY_AGAIN_SECONDS)
            await asyncio.sleep(TRY_AGAIN_SECONDS / 10)
            return None
        except RejectedError as error:
            self._note_trouble("launcher_refused", error)
            self._answer(ErrorAnswer(error=str(error)))
            self._hang_up()
            return None
        finally:
            asking.cancel()
            changed.cancel()
        self._trouble = ""
        return word

    def _report(self, known: str) -> LauncherReport:
        state = self.state
        assert state is not None
        return LauncherReport(
            version=WIRE_VERSION,
            cluster=self._launchers.cluster,
            node=self._launchers.node,
            job_id=state.job_id,
            restart_count=state.restart_count,
            user_id=self._user_id,
            launch=state.launch,
            phase=state.phase,
            seats=state.seats,
            spares=state.spares,
            lost=state.lost,
            nodes_min=state.nodes_min,
            known=known,
            wait_seconds=WAIT_SECONDS,
        )

    def _tell_standing(self, standing: Standing) -> None:
        if standing != self._standing:
            self._standing = standing
            self._answer(standing)

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._step > self._step_told:
                self._step_told = self._step
                self._answer(Progress(*self._step))

    def _note_trouble(self, event: str, error: Exception) -> None:
        if event != self._trouble:
            self._trouble = event
            job = self.state.job_id if self.state else 0
            log.warning(event, extra=fields(job=job, reason=error))
