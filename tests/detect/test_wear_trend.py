"""Memory that wears out faster is recorded before the driver concludes anything, and where the site wants it the node
leaves service before it fails. The series are synthetic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.wear_trend import UNPLANNED_SECONDS, GangCost, wear_of, wear_trends, worn_nodes
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.gpu import WearSample
from understudy_controlplane.fleet.node import NodeRecord, NodeState
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.fleet.steps import Durations
from understudy_controlplane.observe.gpu_wear import GPUS_MAX, SAMPLES_MAX, GpuWear

HOURS = 5.0


def series(
    corrected: Callable[[float], float], remapped: Callable[[float], float], days: float = 7
) -> list[WearSample]:
    """One sample every five hours; both are functions of the day, which is 0 now."""
    moments = np.arange(-days, 1e-9, HOURS / 24)
    return [WearSample(b.NOW + day * DAY_SECONDS, round(corrected(day)), round(remapped(day))) for day in moments]


STEADY = series(lambda day: 5000 * (day + 7), lambda _: 1)
FASTER = series(lambda day: 200 * (day + 7) + max(0.0, day + 1) * 6000, lambda _: 0)
ROWS = series(lambda _: 0, lambda day: 3 * (day > -3))
FEW = series(lambda day: 30 * (day + 7) + max(0.0, day + 1) * 400, lambda _: 0)
ONE_ROW = series(lambda _: 0, lambda day: 1.0 * (day > -3))
SPENT = [replace(one, banks_spent=1) for one in ONE_ROW]
"""The row that was remapped was its bank's last."""

SPENT_LONG_AGO = [replace(one, remapped=5, banks_spent=1) for one in ONE_ROW]
YOUNG = [WearSample(b.NOW - 600, 0, 0), WearSample(b.NOW, 900, 0)]


@pytest.mark.parametrize(
    ("samples", "warns"),
    [
        (STEADY, False),
        (FASTER, True),
        (ROWS, True),
        (FEW, False),
        (YOUNG, False),
        (ROWS[:1], False),
        (ONE_ROW, False),
        (SPENT, True),
        (SPENT_LONG_AGO, False),
    ],
)
def test_what_grows_faster_is_a_warning_and_what_is_many_but_steady_is_none(
    samples: list[WearSample], warns: bool
) -> None:
    assert bool(wear_of(samples, b.NOW).chance) is warns


def test_healthy_gpus_warn_of_nothing() -> None:
    """Ten thousand, whose corrected errors come by chance at a rate of each GPU's own, from none to 2,000 a day."""
    rng = np.random.default_rng(1)
    warned = 0
    for rate in rng.uniform(0, 2000, 10_000):
        counts = np.cumsum(rng.poisson(rate * HOURS / 24, 34))
        samples = [WearSample(b.NOW - (33 - i) * HOURS * 3600, int(count), 0) for i, count in enumerate(counts)]
        warned += wear_of(samples, b.NOW).chance > 0
    assert warned == 0


def snapshot(samples: list[WearSample], saved: float | None = None, every: float = 0.0, start: float = 60) -> Snapshot:
    """A gang on the node, whose newest checkpoint was complete so many seconds ago."""
    job = b.job()
    table = replace(b.step_table([[1.0] * 100] * 4), durations=Durations(startup=start))
    return b.snapshot(
        b.node("n2", gpus=(b.gpu(3),)),
        *(b.node(f"n{number}") for number in (5, 6)),
        jobs=[job],
        tables={job.key: table},
        gpu_wear={("n2", "GPU-3"): samples},
        checkpointed_at={} if saved is None else {job.key: b.NOW - saved},
        checkpoint_gaps={job.key: every} if every else {},
    )


def test_by_default_it_is_recorded_with_what_an_operator_may_do_and_nothing_is_done() -> None:
    seen = snapshot(FASTER, saved=5)
    config = b.config()
    (found,) = wear_trends(seen, config.hardware)
    assert "5240 corrected memory errors a day, 200 before" in found.summary, found.summary
    assert "understudy job move 7 --off n2 --at-checkpoint" in found.summary
    assert found.evidence.shown()["moves_after_checkpoint"] == "pays"
    (decision,) = [one for one in decide(seen, detect(seen, config), config) if one.subject == "n2"]
    assert (decision.row, decision.action, decision.to_state, decision.plan) == (61, Action.NOTHING, None, None)


LEAVES = b.config(hardware={"leave_worn": True})


@pytest.mark.parametrize(
    ("saved", "every", "start", "leaves"),
    [
        (5, 3600, 60, True),
        (5, 0, 60, True),
        (600, 3600, 60, False),  # the steps since then would be done again
        (5, 3600, 600, False),
        (5, 36_000, 600, True),  # where checkpoints are rare a failure costs more
        (None, 0, 60, False),  # no checkpoint is known
        (5, 3600, 0, False),  # nor what a start takes
    ],
)
def test_with_the_setting_the_node_is_left_right_after_a_checkpoint_where_that_costs_less(
    saved: float | None, every: float, start: float, leaves: bool
) -> None:
    seen = snapshot(FASTER, saved, every, start)
    decisions = [one for one in decide(seen, detect(seen, LEAVES), LEAVES) if one.subject == "n2"]
    shown = [(one.row, one.action, one.to_state) for one in decisions]
    if leaves:
        assert shown == [(132, Action.QUARANTINE, NodeState.QUARANTINED)]
        assert isinstance(decisions[0].plan, PoolSwapPlan), "its gang moves"
    else:
        assert shown == [(61, Action.NOTHING, None)]
        assert "leaves service after a checkpoint of its gang" in decisions[0].reason


def test_with_the_setting_an_idle_node_leaves_at_once_and_waits_for_a_person() -> None:
    seen = b.snapshot(b.node("n2", gpus=(b.gpu(3),)), gpu_wear={("n2", "GPU-3"): ROWS})
    (found,) = wear_trends(seen, LEAVES.hardware)
    assert (found.signal, found.evidence.shown()["repair"]) == (Signal.WORN, "manual_repair")
    (decision,) = decide(seen, detect(seen, LEAVES), LEAVES)
    assert (decision.row, decision.action) == (132, Action.QUARANTINE)


def test_a_bank_without_a_row_left_is_named() -> None:
    (found,) = wear_trends(snapshot(SPENT, saved=5), b.config().hardware)
    assert "1 memory rows remapped within a week, 1 memory banks without a row left" in found.summary
    assert found.evidence.shown()["chance_within_a_day"] == 0.2


def test_only_nodes_whose_memory_wears_are_asked_for_checkpoints() -> None:
    assert worn_nodes({("n1", "a"): STEADY, ("n1", "b"): FEW, ("n2", "c"): FASTER}, b.NOW) == {"n2"}


@pytest.mark.parametrize(
    ("chance", "start", "since", "every", "pays"),
    [
        (0.1, 60.0, 0.0, 1800.0, True),
        (0.1, 600.0, 0.0, 1800.0, False),
        (0.5, 600.0, 0.0, 1800.0, True),
        (0.5, 600.0, 600.0, 1800.0, False),
        (0.0, 1.0, 0.0, 9000.0, False),
    ],
)
def test_a_move_before_the_failure_pays_by_expected_cost(
    chance: float, start: float, since: float, every: float, pays: bool
) -> None:
    assert GangCost(start, since, every).move_pays(chance) is pays


@pytest.mark.parametrize("true_share", [0.0, 0.1, 1.0])
def test_what_the_setting_costs_and_saves_on_synthetic_series(true_share: float) -> None:
    """Gangs whose GPU warns, with starts of 20 to 300 s and checkpoints each 10 to 120 minutes. The GPU fails within a
    day as often as assumed, a tenth as often, or never.
    """
    rng = np.random.default_rng(1)
    count, chance = 20_000, wear_of(FASTER, b.NOW).chance
    starts, gaps = rng.uniform(20, 300, count), rng.uniform(600, 7200, count)
    moves = np.array(
        [GangCost(start, 0.0, gap).move_pays(chance) for start, gap in zip(starts, gaps, strict=True)], np.bool_
    )
    fails = rng.random(count) < chance * true_share
    failure = fails * (starts + rng.uniform(0, gaps) + UNPLANNED_SECONDS)
    stayed, left = failure.mean(), np.where(moves, starts, failure).mean()
    print(f"{moves.mean():.0%} move; seconds for each warning: {stayed:.0f} staying, {left:.0f} leaving")
    if true_share == 1.0:
        assert left < 0.85 * stayed, "right about the chance: it saves"
    assert left <= stayed + starts[moves].sum() / count, "wrong about it: it costs no more than the starts of the moves"


def test_what_a_person_or_a_validation_has_answered_for_takes_the_node_out_no_second_time() -> None:
    """Its counters stay. What they grow by after its return counts."""
    seen, config = snapshot(ROWS, saved=5), b.config(hardware={"leave_worn": True})
    assert [one.signal for one in wear_trends(seen, config.hardware)] == [Signal.WORN]
    record = NodeRecord("n2", cleared_at=b.NOW - 2 * DAY_SECONDS)
    back = replace(seen, nodes={**seen.nodes, "n2": replace(seen.nodes["n2"], record=record)})
    assert not list(wear_trends(back, config.hardware))
    grown = [*ROWS, WearSample(b.NOW, 0, 5)]
    (found,) = wear_trends(b.changed(back, gpu_wear={("n2", "GPU-3"): grown}), config.hardware)
    assert "2 memory rows remapped" in found.summary


def test_counters_are_kept_for_a_week_of_gpus_that_have_errors() -> None:
    wear = GpuWear()
    for hour in range(24 * 10):
        gpus = [b.gpu(0), b.gpu(1, ecc_corrected=50 * hour, memory_banks_spent=1), b.gpu(2, ecc_corrected=7)]
        wear.note({"n1": gpus}, b.NOW + hour * 3600.0)
    assert list(wear.grown) == [("n1", "GPU-1")]
    kept = wear.grown["n1", "GPU-1"]
    assert len(kept) == SAMPLES_MAX
    assert kept[-1].banks_spent == 1
    assert kept[-1].at - kept[0].at >= 7 * DAY_SECONDS - HOURS * 3600
    wear.note({"n1": [b.gpu(1, ecc_corrected=3)]}, b.NOW + 241 * 3600.0)
    assert not wear.grown, "the driver was loaded again"


def warns_after_hours(counts: Sequence[int | None], every: float = 3600.0) -> list[int]:
    """The hours in which a GPU warns that shows these counts of corrected errors. None: its node does not report."""
    wear, warned = GpuWear(), []
    for hour, count in enumerate(counts):
        wear.note({} if count is None else {"n1": [b.gpu(0, ecc_corrected=count)]}, b.NOW + hour * every)
        samples = wear.grown.get(("n1", "GPU-0"))
        warned += [hour] if samples and wear_of(samples, b.NOW + hour * every).faster else []
    return warned


def test_a_gpu_that_always_has_many_errors_warns_neither_after_a_start_of_the_control_plane_nor_of_its_driver() -> None:
    steady = [200 * hour for hour in range(72)]
    assert warns_after_hours([100_000 + count for count in steady]) == [], "the control plane has started"
    wear = GpuWear()
    wear.note({"n1": [b.gpu(0, ecc_corrected=100_000)]}, b.NOW)
    wear.note({"n1": [b.gpu(0, ecc_corrected=100_050)]}, b.NOW + 20_000)
    assert not wear.grown, "what it had before is no growth"
    assert warns_after_hours([*steady, *steady]) == [], "the driver was loaded again"
    assert warns_after_hours([0] * 24 + [None] * 72 + [50_000 + count for count in steady]) == [], "it came back"


def test_a_gpu_that_never_had_errors_warns_on_the_day_on_which_they_begin() -> None:
    (first, *_) = warns_after_hours([0] * 48 + [200 * hour for hour in range(72)])
    assert 48 < first <= 60


def test_retired_pages_count_where_a_gpu_has_no_rows_to_remap() -> None:
    wear = GpuWear()
    for hour in range(48):
        wear.note({"n1": [b.gpu(0, retired_pages=hour // 12)]}, b.NOW + hour * 3600.0)
    assert [sample.remapped for sample in wear.grown["n1", "GPU-0"]][-1] == 3


def test_no_more_gpus_are_kept_than_the_limit() -> None:
    wear = GpuWear()
    for at, count in ((0.0, 1), (20_000.0, 500)):
        fleet = {f"n{number}": [b.gpu(0, ecc_corrected=count)] for number in range(GPUS_MAX + 10)}
        wear.note(fleet, b.NOW + at)
    assert len(wear.grown) <= GPUS_MAX
