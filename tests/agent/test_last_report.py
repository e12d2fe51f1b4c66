"""The last report of a launcher that has left its agent: how it left decides whether its job runs again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from understudy_agent.launchers import Launchers
from understudy_agent.uplink import RejectedError, UnreachableError
from understudy_agent.wire import LauncherAnswer, LauncherPhase, LauncherReport, LauncherState

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
