"""A gang that is slow as a whole is found against its own best steps, and nothing is done about it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from tests.resampled_steps import recorded
from understudy_agent.wire import RankWindow
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.slow_gang import SLOWER_RATIO, slow_gang
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.steps import BLOCK_STEPS, BLOCKS_KEPT, Durations
from understudy_controlplane.live.step_buffer import StepBuffer


def trained(buffer: StepBuffer, first: int, seconds: float, blocks: int) -> int:
    """Steps of both ranks, in reports of ten; returns the number of the next one."""
    for step in range(first, first + blocks * BLOCK_STEPS, 10):
        for rank in range(2):
            window = RankWindow(7, 0, rank, 2, 0, 1000, "", step, [seconds / 2] * 10, [seconds] * 10)
            buffer.add(window, f"n{rank + 1}", b.NOW + step)
    return first + blocks * BLOCK_STEPS


@pytest.mark.parametrize(("slower", "blocks", "found"), [(1.5, 3, True), (1.5, 2, False), (1.1, 9, False)])
def test_it_is_found_after_three_hundred_slow_steps(slower: float, blocks: int, found: bool) -> None:
    buffer = StepBuffer(Attempt(0), 2)
    begin = trained(buffer, 0, 1.0, 4)
    assert slow_gang(buffer.table(b.job().key), b.snapshot()) is None
    trained(buffer, begin, slower, blocks)
    one = slow_gang(buffer.table(b.job().key), b.snapshot())
    assert (one is not None) is found
    if one is not None:
        assert one.at == b.NOW + begin
        assert one.nodes == ("n1", "n2")
        assert (
            "a step takes 1.5 s, and 1 s in its best 100 steps; it costs 0.667 rank hours in each hour" in one.summary
        )


def test_a_restarted_gang_is_compared_with_what_it_did_before() -> None:
    before = StepBuffer(Attempt(0), 2)
    trained(before, 0, 1.0, 3)
    after = StepBuffer(Attempt(1), 2, before.durations)
    trained(after, 0, 1.4, BLOCKS_KEPT)
    one = slow_gang(after.table(b.job().key), b.snapshot())
    assert one is not None
    assert one.evidence.shown()["restart_count"] == 1


def test_it_is_recorded_and_nothing_is_done() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    trained(buffer, trained(buffer, 0, 1.0, 3), 2.0, 3)
    job = b.job()
    table = replace(buffer.table(job.key), advanced_at=b.NOW - 0.1)
    snapshot = replace(b.snapshot(b.node("n1"), b.node("n2"), jobs=(job,)), tables={job.key: table})
    config = b.config()
    [decision] = [one for one in decide(snapshot, detect(snapshot, config), config) if one.row == 108]
    assert (decision.action, decision.plan) == (Action.NOTHING, None)
    assert slow_gang(replace(table, durations=Durations()), snapshot) is None, "nothing is known of it"


def test_real_steps_whose_work_varies_are_no_slow_gang() -> None:
    """A year of such blocks, at nine seconds a step."""
    rng = np.random.default_rng(1)
    steps = recorded().max(axis=(0, 1))  # the gang waits for its slowest rank
    blocks = np.median(rng.choice(steps, (36_000, BLOCK_STEPS)), axis=1)
    best = np.minimum.accumulate(blocks)
    slow = np.lib.stride_tricks.sliding_window_view(blocks, BLOCKS_KEPT).min(axis=1)
    assert (slow / best[BLOCKS_KEPT - 1 :]).max() < 1.1 < SLOWER_RATIO
