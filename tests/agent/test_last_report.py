"""The last report of a launcher that has left its agent: how it left decides whether its job runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from understudy_agent.launchers import LAUNCHERS_OF_USER_MAX, Launchers
from understudy_agent.uplink import RejectedError, UnreachableError
from understudy_wire.launcher import LauncherAnswer, LauncherPhase, LauncherReport, LauncherState

STATE = LauncherState(7, 0, 0, LauncherPhase.LEAVING, ("n1",), ended_well=True)
AWAY = UnreachableError("connection refused")


def asked(answers: Iterable[Exception | LauncherAnswer], seconds: float) -> list[LauncherReport]:
    """What a control plane got that answers so."""
    reports: list[LauncherReport] = []
    waiting = iter(answers)

    async def ask(report: LauncherReport) -> LauncherAnswer:
        reports.append(report)
        answer = next(waiting, AWAY)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def leave() -> None:
        launchers = Launchers("testbed", "n1", ask, seconds)
        line = launchers.open(0, lambda _: None, lambda: None)
        line.take(STATE)
        launchers.close(line)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)

    asyncio.run(leave())
    return reports


def left_to_repeat(monkeypatch: pytest.MonkeyPatch, launchers_left: int, expected: int, followed: bool = False) -> int:
    """How many last reports an agent goes on to send, after launchers of one job have left, to a control plane that is
    away. It waits for the expected number.
    """
    monkeypatch.setattr("understudy_agent.launchers.RETRY_SECONDS", 0.01)
    left = 0

    async def ask(_report: LauncherReport) -> LauncherAnswer:
        raise AWAY

    async def leave() -> None:
        nonlocal left
        launchers = Launchers("testbed", "n1", ask)
        before = asyncio.all_tasks()
        for _ in range(launchers_left):
            line = launchers.open(0, lambda _: None, lambda: None)
            line.take(STATE)
            launchers.close(line)
        if followed:
            launchers.open(0, lambda _: None, lambda: None)._state = STATE
        for _ in range(500):
            await asyncio.sleep(0.01)
            left = len(asyncio.all_tasks() - before)
            if left <= expected:
                break
        for task in asyncio.all_tasks() - before:
            task.cancel()

    asyncio.run(leave())
    return left


def test_a_user_whose_launchers_come_and_go_has_no_more_last_reports_sent_again_than_launchers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert left_to_repeat(monkeypatch, 200, LAUNCHERS_OF_USER_MAX) == LAUNCHERS_OF_USER_MAX


def test_it_is_not_sent_again_once_another_launcher_of_the_job_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is old, and would replace what is new."""
    assert left_to_repeat(monkeypatch, 1, 0, followed=True) == 0


def test_it_is_sent_again_until_the_control_plane_has_it(caplog: pytest.LogCaptureFixture) -> None:
    reports = asked([AWAY, LauncherAnswer()], seconds=60.0)
    assert [one.state for one in reports] == [STATE, STATE]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("answer", "event"),
    [(AWAY, "launcher_last_report_not_sent"), (RejectedError("no such job"), "launcher_last_report_refused")],
)
def test_a_report_that_was_given_up_is_in_the_log(
    answer: Exception, event: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked([answer], seconds=0.0)
    assert caplog.messages == [event]
