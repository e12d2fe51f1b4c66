"""Launchers on this node: their reports go to the control plane, its answers go back to them, both unchanged.

A long poll for each connected launcher, because orders must arrive within milliseconds and the control plane never
calls an agent. It is bounded in the number of launchers, in polls (one for each) and in seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from understudy_agent.log import fields, log
from understudy_agent.rank_messages import Answer, ControlPlaneSilent, ErrorAnswer, Hello, Progress
from understudy_agent.shares import NoRoomError, Pace, Shares
from understudy_agent.uplink import RejectedError, UnreachableError
from understudy_wire.launcher import LauncherAnswer, LauncherReport, LauncherState
from understudy_wire.messages import WIRE_VERSION

LAUNCHERS_OF_USER_MAX = 16
LAUNCHERS_PER_NODE_MAX = 64
WAIT_SECONDS = 5.0
"""Time of one poll. A launcher whose state does not change is reported again after this time."""
POLLS_AT_ONCE = 64
POLLS_EACH_SECOND = 8.0
"""Polls of one user's launchers. Sixteen that report nothing new send three in a second."""
RETRY_SECONDS = 0.5
PROGRESS_SECONDS = 0.5
LAST_REPORT_SECONDS = 60.0
"""Time for the control plane to take the last report of a launcher that has disconnected."""

Ask = Callable[[LauncherReport], Awaitable[LauncherAnswer]]
"""Raises UnreachableError and RejectedError."""


class TooManyLaunchersError(Exception):
    """This node follows no more of them."""


class Launchers:
    """All of it runs in one event loop."""

    def __init__(self, cluster: str, node: str, ask: Ask, last_report_seconds: float = LAST_REPORT_SECONDS) -> None:
        self.cluster = cluster
        self.last_report_seconds = last_report_seconds
        self.node = node
        self.ask = ask
        self._lines: Shares[LauncherLine] = Shares(LAUNCHERS_PER_NODE_MAX, LAUNCHERS_OF_USER_MAX)
        self.polls = Pace(POLLS_AT_ONCE, POLLS_EACH_SECOND)
        self._last_reports: set[asyncio.Future[None]] = set()
        self._repeated: Shares[LauncherLine] = Shares(LAUNCHERS_PER_NODE_MAX, LAUNCHERS_OF_USER_MAX)
        """Launchers whose last report is sent again where the control plane does not answer."""

    def open(self, user_id: int, answer: Callable[[Answer], None], disconnect: Callable[[], None]) -> LauncherLine:
        """Raises TooManyLaunchersError."""
        line = LauncherLine(self, user_id, answer, disconnect)
        try:
            displaced = self._lines.enter(line, user_id, 0)
        except NoRoomError as error:
            count = len(self._lines)
            raise TooManyLaunchersError(
                f"{count} launchers are connected already, and user {user_id} has its share"
            ) from error
        if displaced is not None:
            displaced.disconnect()
        return line

    def close(self, line: LauncherLine) -> None:
        self._lines.leave(line)
        line.stop()

    def finish(self, line: LauncherLine, job_id: int, report: Coroutine[Any, Any, None]) -> None:
        """What is left to do for a launcher that has disconnected."""
        with contextlib.suppress(NoRoomError):
            self._repeated.enter(line, line.user_id, job_id)
        task = asyncio.ensure_future(report)
        self._last_reports.add(task)
        task.add_done_callback(self._last_reports.discard)
        task.add_done_callback(lambda _: self._repeated.leave(line))

    def may_repeat(self, line: LauncherLine) -> bool:
        return line in self._repeated

    def follows(self, line: LauncherLine) -> bool:
        """True if another launcher of the same job reports: what the one before reported last is old."""
        return any(one.is_of_job_of(line) for one in self._lines)

    def note_step(self, hello: Hello, user_id: int, step: int, ahead: int = 0) -> None:
        """A rank on this node has finished this step, which is counted on from what its program numbers so far ahead.
        Only the launcher of its own gang is notified.
        """
        for line in self._lines:
            if line.is_of(hello, user_id):
                line.note_step(hello.launch, step, ahead)


class LauncherLine:
    """One launcher's connection to the control plane, through this agent."""

    def __init__(
        self, launchers: Launchers, user_id: int, answer: Callable[[Answer], None], disconnect: Callable[[], None]
    ) -> None:
        self._launchers = launchers
        self.user_id = user_id
        self._answer = answer
        self.disconnect = disconnect
        self._changed = asyncio.Event()
        self._step = self._step_sent = Progress(-1, -1)
        self._ahead_before, self._ahead = 0, 0
        """What steps are counted from: of the launches before the newest one, and of that one."""
        self._last_sent: LauncherAnswer | ControlPlaneSilent | None = None
        self._trouble = ""
        self._refused = False
        self._tasks: list[asyncio.Task[None]] = []
        self._state: LauncherState | None = None

    def take(self, state: LauncherState) -> None:
        """The newest state that the launcher has reported."""
        self._state = state
        self._changed.set()
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._send_progress())]

    def is_of(self, hello: Hello, user_id: int) -> bool:
        state = self._state
        return (
            state is not None
            and (state.job_id, state.restart_count) == (hello.job_id, hello.restart_count)
            and self.user_id == user_id
        )

    def is_of_job_of(self, other: LauncherLine) -> bool:
        own, its = self._state, other._state
        return own is not None and its is not None and (own.job_id, self.user_id) == (its.job_id, other.user_id)

    def note_step(self, launch: int, step: int, ahead: int = 0) -> None:
        """The next launch continues, or repeats, what this one was doing: its steps are counted on from there."""
        if launch > self._step.launch:
            self._ahead_before, self._ahead = self._ahead_before + self._ahead, 0
        place = self._ahead_before + step
        if (launch, place) > (self._step.launch, self._step.step):
            self._ahead = max(self._ahead, ahead)
            self._step = Progress(launch, place, self._ahead_before + self._ahead)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._state is not None and not self._refused:
            self._launchers.finish(self, self._state.job_id, self._report_last())

    async def _report_last(self) -> None:
        """The launcher has just written it, and may have left since: how it left decides whether its job runs again."""
        deadline = time.monotonic() + self._launchers.last_report_seconds
        while True:
            try:
                await self._launchers.ask(self._report("", 0.0))
            except UnreachableError as error:
                if time.monotonic() >= deadline or not self._launchers.may_repeat(self):
                    self._log_trouble("launcher_last_report_not_sent", error)
                    return
            except RejectedError as error:
                self._log_trouble("launcher_last_report_refused", error)
                return
            else:
                return
            await asyncio.sleep(RETRY_SECONDS)
            if self._launchers.follows(self):
                return

    async def _follow(self) -> None:
        known = ""
        while not self._refused:
            await asyncio.sleep(self._launchers.polls.wait_seconds(self.user_id, time.monotonic()))
            self._changed.clear()
            begun = time.monotonic()
            answer = await self._poll(known)
            if answer is None:
                continue
            self._send(answer)
            known = answer.orders_version or known
            if not answer.orders_version and time.monotonic() - begun < RETRY_SECONDS:
                await asyncio.sleep(RETRY_SECONDS)  # the control plane holds no more polls just now

    async def _poll(self, known: str) -> LauncherAnswer | None:
        """None: the state has changed meanwhile, or the control plane does not answer; to be asked again."""
        asking = asyncio.ensure_future(self._launchers.ask(self._report(known)))
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait({asking, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return None
            answer = asking.result()
        except UnreachableError as error:
            self._note_trouble("launcher_report_not_sent", error)
            self._send(ControlPlaneSilent())
            await asyncio.wait({changed}, timeout=RETRY_SECONDS)
            await asyncio.sleep(RETRY_SECONDS / 10)
            return None
        except RejectedError as error:
            self._note_trouble("launcher_refused", error)
            self._refused = True
            self._answer(ErrorAnswer(error=str(error)))
            self.disconnect()
            return None
        finally:
            asking.cancel()
            changed.cancel()
        self._trouble = ""
        return answer

    def _report(self, known: str, wait_seconds: float = WAIT_SECONDS) -> LauncherReport:
        assert self._state is not None
        return LauncherReport(
            version=WIRE_VERSION,
            cluster=self._launchers.cluster,
            node=self._launchers.node,
            user_id=self.user_id,
            state=self._state,
            known=known,
            wait_seconds=wait_seconds,
        )

    def _send(self, message: LauncherAnswer | ControlPlaneSilent) -> None:
        if message != self._last_sent:
            self._last_sent = message
            self._answer(message)

    async def _send_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            if self._step != self._step_sent:
                self._step_sent = self._step
                self._answer(self._step)

    def _note_trouble(self, event: str, error: Exception) -> None:
        if event != self._trouble:
            self._trouble = event
            self._log_trouble(event, error)

    def _log_trouble(self, event: str, error: Exception) -> None:
        job = self._state.job_id if self._state else 0
        log.warning(event, extra=fields(job=job, error=error))
