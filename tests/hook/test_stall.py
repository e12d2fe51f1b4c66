"""Places where the training thread stands when no step ends."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import cast

import pytest

from understudy import link
from understudy.stall import STACK_CHARACTERS_MAX, STALL_SECONDS, StallWatch
from understudy_agent.rank_messages import Hello, StackSeen, Steps
from understudy_agent.step_windows import WindowBuffer
from understudy_launcher import reports
from understudy_launcher.launch import Launch


def wait_for_others(watch: StallWatch, inside: threading.Event, over: threading.Event) -> None:
    watch.progressed()
    inside.set()
    over.wait()


def test_the_stack_of_the_training_thread_is_shown_once_in_each_stall() -> None:
    watch, inside, over = StallWatch(), threading.Event(), threading.Event()
    training = threading.Thread(target=wait_for_others, args=(watch, inside, over))
    training.start()
    inside.wait()
    now = time.monotonic()
    assert watch.stack(now + STALL_SECONDS - 10) == ""
    stack = watch.stack(now + STALL_SECONDS + 10)
    assert "test_stall.py" in stack and "wait_for_others" in stack
    assert stack.index("wait") < stack.index("wait_for_others"), "the innermost frame first"
    assert len(stack) <= STACK_CHARACTERS_MAX
    assert watch.stack(now + 2 * STALL_SECONDS) == ""
    over.set()
    training.join()
    watch.progressed()
    assert watch.stack(time.monotonic() + STALL_SECONDS + 10) != "", "another stall"


def test_it_is_shown_at_once_when_the_control_plane_asks_and_again_if_it_was_shown_before() -> None:
    watch = StallWatch()
    now = watch.since
    watch.ask()
    assert "test_stall.py" in watch.stack(now + 1)
    watch.ask()
    assert watch.stack(now + 2) == "", "once in each stall"
    watch.progressed()
    assert watch.stack(watch.since + 1) == "", "it goes on"
    assert watch.stack(watch.since + STALL_SECONDS + 1) != ""
    watch.ask()
    assert watch.stack(watch.since + STALL_SECONDS + 2) != "", "what it does now"


def test_the_agent_passes_it_on_until_the_rank_goes_on() -> None:
    windows = WindowBuffer()
    hello = Hello(job_id=7, restart_count=0, rank=0, world_size=1)
    windows.place(hello, StackSeen("nccl.py:1 wait"), 1000)
    assert [window.stack for window in windows.take()] == ["nccl.py:1 wait"]
    windows.add(hello, Steps(0, [0.1], [0.1]), 1000)
    assert [window.stack for window in windows.take()] == [""]


def test_a_user_keeps_stacks_and_output_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """One variable does it, which hook and launcher obey alike."""
    assert link.SHARE_OUTPUT == reports.SHARE_OUTPUT == "UNDERSTUDY_SHARE_OUTPUT"
    sent: list[object] = []
    monkeypatch.setattr(link, "_send", lambda _connection, message: sent.append(message))
    stalled = SimpleNamespace(
        _outbox=SimpleNamespace(stall=SimpleNamespace(stack=lambda _now: "a.py:1 f")), _unknown=()
    )
    line = SimpleNamespace(job_id=7, restart_count=0, announce=sent.append)
    for value, count in (("0", 0), ("1", 2)):
        monkeypatch.setenv("UNDERSTUDY_SHARE_OUTPUT", value)
        link.Link._send_stack(cast("link.Link", stalled), cast("socket.socket", None))
        launcher = cast("reports.Reports", SimpleNamespace(_line=line))
        reports.Reports._announce_evidence(launcher, cast("Launch", SimpleNamespace(number=0)), "crash", "why", "text")
        assert len(sent) == count
