"""Memory that wears out faster is recorded before the driver concludes anything. The series are synthetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.wear_trend import DAY_SECONDS, move_pays, wear_of, wear_trends
from understudy_controlplane.fleet.decision import Action
from understudy_controlplane.fleet.gpu import WearSample
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
YOUNG = [WearSample(b.NOW - 600, 0, 0), WearSample(b.NOW, 900, 0)]


@pytest.mark.parametrize(
    ("samples", "warns"),
    [(STEADY, False), (FASTER, True), (ROWS, True), (FEW, False), (YOUNG, False), (ROWS[:1], False)],
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


def snapshot(samples: list[WearSample]) -> Snapshot:
    job = b.job()
    table = replace(b.step_table([[1.0] * 100] * 4), durations=Durations(startup=60))
    return b.snapshot(
        b.node("n2", gpus=(b.gpu(3),)), jobs=[job], tables={job.key: table}, gpu_wear={("n2", "GPU-3"): samples}
    )


def test_it_is_recorded_with_what_an_operator_may_do_and_nothing_is_done() -> None:
    seen = snapshot(FASTER)
    (found,) = wear_trends(seen)
    assert "5240 corrected memory errors a day, 200 before" in found.summary, found.summary
    assert "understudy job move 7 --off n2 --at-checkpoint" in found.summary
    assert found.evidence.shown()["moves"] == "pays"
    config = b.config()
    (decision,) = [one for one in decide(seen, detect(seen, config), config) if one.subject == "n2"]
    assert (decision.row, decision.action, decision.to_state, decision.plan) == (61, Action.NOTHING, None, None)


@pytest.mark.parametrize(
    ("chance", "start", "redone", "pays"),
    [(0.1, 60.0, 900.0, True), (0.1, 600.0, 900.0, False), (0.5, 600.0, 900.0, True), (0.0, 1.0, 9000.0, False)],
)
def test_a_move_before_the_failure_pays_by_expected_cost(
    chance: float, start: float, redone: float, pays: bool
) -> None:
    assert move_pays(chance, start, redone) is pays


def test_counters_are_kept_for_a_week_of_gpus_that_have_errors() -> None:
    wear = GpuWear()
    for hour in range(24 * 10):
        gpus = [b.gpu(0), b.gpu(1, ecc_corrected=50 * hour), b.gpu(2, ecc_corrected=7)]
        wear.note({"n1": gpus}, b.NOW + hour * 3600.0)
    assert list(wear.grown) == [("n1", "GPU-1")]
    kept = wear.grown["n1", "GPU-1"]
    assert len(kept) == SAMPLES_MAX
    assert kept[-1].at - kept[0].at >= 7 * DAY_SECONDS - HOURS * 3600
    wear.note({"n1": [b.gpu(1, ecc_corrected=3)]}, b.NOW + 241 * 3600.0)
    assert not wear.grown, "the driver was loaded again"


def test_no_more_gpus_are_kept_than_the_limit() -> None:
    wear = GpuWear()
    for at, count in ((0.0, 1), (20_000.0, 500)):
        fleet = {f"n{number}": [b.gpu(0, ecc_corrected=count)] for number in range(GPUS_MAX + 10)}
        wear.note(fleet, b.NOW + at)
    assert len(wear.grown) <= GPUS_MAX
