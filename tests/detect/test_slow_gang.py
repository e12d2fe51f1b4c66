"""A gang that is slow as a whole is found against its own best steps, and nothing is done about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from tests.resampled_steps import recorded
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.slow_gang import SLOWER_RATIO, slow_gang, slow_gangs
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import BLOCK_STEPS, BLOCKS_KEPT, Durations
from understudy_controlplane.live.step_buffer import StepBuffer
from understudy_wire.ranks import RankWindow, Training

FLOPS = 1.978e11  # a thousand tokens a second are 20 % of an H100
H100 = "NVIDIA H100 80GB HBM3"


def trained(buffer: StepBuffer, first: int, seconds: float, blocks: int, tokens: float | None = None) -> int:
    """Steps of both ranks, in reports of ten, with these tokens per second; returns the number of the next one."""
    training = None if tokens is None else Training(tokens_per_second=tokens, flops_per_token=FLOPS)
    for step in range(first, first + blocks * BLOCK_STEPS, 10):
        for rank in range(2):
            times = [seconds / 2] * 10, [seconds] * 10
            window = RankWindow(7, 0, rank, 2, 0, 1000, "", step, *times, training=training)
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


def test_a_gang_that_becomes_slower_by_little_over_days_is_found() -> None:
    """Its best steps stay what it is compared with."""
    buffer = StepBuffer(Attempt(0), 2)
    at, found_at = trained(buffer, 0, 1.0, 1), 0.0
    for slower in np.arange(1.0, 1.4, 0.01):
        at = trained(buffer, at, float(slower), 1)
        if not found_at and slow_gang(buffer.table(b.job().key), b.snapshot()) is not None:
            found_at = float(slower)
    assert 1.2 < found_at < 1.25


def test_a_restarted_gang_is_compared_with_what_it_did_before() -> None:
    before = StepBuffer(Attempt(0), 2)
    trained(before, 0, 1.0, 3)
    after = StepBuffer(Attempt(1), 2, before.durations)
    trained(after, 0, 1.4, BLOCKS_KEPT)
    one = slow_gang(after.table(b.job().key), b.snapshot())
    assert one is not None
    assert one.evidence.shown()["restart_count"] == 1


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([(1.0, 4, 1000.0), (2.0, 4, 1000.0)], ""),  # twice as many tokens in a step, as where the batch grows
        ([(2.0, 4, 1000.0), (1.0, 1, 1000.0), (2.0, 4, 1000.0)], ""),
        (
            [(1.0, 4, 1000.0), (2.0, 4, 1500.0), (3.0, 4, 1000.0)],
            "a step takes 3 s, and 2 s in its best 100 steps for as many tokens; it costs 0.667 rank hours in each "
            "hour; MFU is 20.0%, and was 30.0%",
        ),
        ([(1.0, 4, 1500.0), (1.0, 4, 1000.0)], "a step takes 1 s, and 0.667 s in its best 100 steps for as many"),
    ],
)
def test_where_tokens_are_reported_it_is_compared_for_each_of_them(
    phases: list[tuple[float, int, float]], words: str
) -> None:
    buffer, at = StepBuffer(Attempt(0), 2), 0
    for seconds, blocks, tokens in phases:
        at = trained(buffer, at, seconds, blocks, tokens)
    nodes = [b.node(name, gpus=(b.gpu(0, name=H100),)) for name in ("n1", "n2")]
    one = slow_gang(buffer.table(b.job().key), b.snapshot(*nodes))
    assert words in one.summary if one is not None and words else one is None and not words


@pytest.mark.parametrize("seconds", [0.0, 1e-6])
def test_steps_that_a_program_skips_are_nothing_to_compare_with(seconds: float) -> None:
    """It counts on to the step that it had reached before it trains. The agent reports whole microseconds."""
    buffer = StepBuffer(Attempt(0), 2)
    for step in range(0, 5 * BLOCK_STEPS, 10):
        window = RankWindow(7, 0, 0, 2, 0, 1000, "", step, [0.0] * 10, [seconds] * 9 + [1e-3])
        buffer.add(window, "n1", b.NOW + step)
    assert slow_gang(buffer.table(b.job().key), b.snapshot()) is None
    trained(buffer, 5 * BLOCK_STEPS, 1.0, 4)
    assert slow_gang(buffer.table(b.job().key), b.snapshot()) is None


def test_it_is_recorded_and_nothing_is_done() -> None:
    buffer = StepBuffer(Attempt(0), 2)
    trained(buffer, trained(buffer, 0, 1.0, 3), 2.0, 3)
    job = b.job()
    table = replace(buffer.table(job.key), advanced_at=b.NOW - 0.1)
    snapshot = b.changed(b.snapshot(b.node("n1"), b.node("n2"), jobs=(job,)), tables={job.key: table})
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


# -- against what the model should reach on these GPUs -----------------------------------------------------------------


def reporting(*, tokens: Sequence[float | None], spikes: int = 0, name: str = H100, ranks: int = 2) -> Snapshot:
    """A gang that reports these tokens per second in its blocks of steps; and few in so many reports of each block, as
    after an evaluation.
    """
    buffer = StepBuffer(Attempt(0), ranks)
    for block, rate in enumerate(tokens):
        for report in range(10):
            shown = rate if rate is None or report >= spikes else rate / 10
            for rank in range(ranks):
                step = block * BLOCK_STEPS + 10 * report
                now = Training(tokens_per_second=shown, flops_per_token=FLOPS)
                window = RankWindow(7, 0, rank, ranks, 0, 1000, "", step, [0.5] * 10, [1.0] * 10, training=now)
                buffer.add(window, f"n{rank + 1}", b.NOW - 1000 + step)
    nodes = [b.node(f"n{rank + 1}", gpus=(b.gpu(0, name=name),)) for rank in range(ranks)]
    job = b.job(comment="understudy mfu=0.4")
    return b.snapshot(*nodes, jobs=[job], tables={job.key: buffer.table(job.key)})


def found(snapshot: Snapshot, **policy: float) -> Finding | None:
    return next(iter(slow_gangs(snapshot, b.config(straggler=policy).straggler)), None)


def test_a_gang_that_was_never_faster_is_held_against_what_its_job_expects() -> None:
    one = found(reporting(tokens=[1000.0] * 3))
    assert one is not None
    assert (one.signal, one.rule, one.at) == (Signal.GANG_SLOW, "straggler.gang_mfu", b.NOW - 1000)
    assert "its MFU is 20.0%, and 40.0% is expected, since its first steps that are known" in one.summary
    assert "it costs 1 rank hours in each hour; its nodes show no reason" in one.summary


def test_a_gang_that_has_become_slow_says_since_when() -> None:
    one = found(reporting(tokens=[2000.0] * 4 + [1000.0] * 3))
    assert one is not None
    assert one.at == b.NOW - 1000 + 400
    assert "first steps" not in one.summary


def test_what_its_nodes_show_is_named() -> None:
    seen = reporting(tokens=[1000.0] * 3)
    hot = b.node("n2", gpus=(b.gpu(0, name=H100, clock_event_reasons=0x40),))
    one = found(replace(seen, nodes={**seen.nodes, "n2": hot}))
    assert one is not None and "its nodes show: 1 of its 2 nodes (n2) have throttled clocks" in one.summary


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (reporting(tokens=[1000.0] * 2), "too few steps"),
        (reporting(tokens=[1700.0] * 3), "a little below what is expected"),
        (reporting(tokens=[2000.0] * 3, spikes=4), "few tokens in a minute that has an evaluation in it"),
        (reporting(tokens=[1000.0, 1000.0, 2000.0]), "it has been as fast lately"),
        (reporting(tokens=[1000.0] * 3, name="Tesla T4"), "what its GPUs can do is not known"),
        (reporting(tokens=[None] * 3), "it reports no tokens"),
    ],
)
def test_innocent_gangs_are_not_found(seen: Snapshot, why: str) -> None:
    assert found(seen) is None, why


def test_a_gang_of_which_only_one_rank_reports_tokens_is_not_judged() -> None:
    seen = reporting(tokens=[1000.0] * 3, ranks=4)
    ((key, table),) = seen.progress.tables.items()
    alone = replace(table, training={0: table.training[0]})
    assert found(b.changed(seen, tables={key: alone})) is None
    all_one = replace(alone, replicas=np.zeros(4, np.int64))
    assert found(b.changed(seen, tables={key: all_one})) is not None, "unless it reports for all ranks of its replica"


def test_without_an_expectation_nothing_is_compared_and_the_site_can_have_one_for_all_jobs() -> None:
    seen = reporting(tokens=[1000.0] * 3)
    plain = b.job()
    seen = replace(seen, jobs={plain.key: plain})
    assert found(seen) is None
    assert found(seen, mfu_expected=0.2) is None
    assert found(seen, mfu_expected=0.3) is not None
