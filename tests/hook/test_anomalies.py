"""NaN and jumps of loss and gradient norm: found by the hook, reported once, and again when it is over."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from understudy import Monitor
from understudy.anomalies import LEVEL_STEPS, NORMAL_STEPS, REPORTED_MAX, AnomalyWatch, Series
from understudy.outbox import Outbox
from understudy_wire.facts import Anomaly, AnomalyKind, CheckpointShard
from understudy_wire.ranks import JobNote


@pytest.fixture
def plane() -> Iterator[FakeControlPlane]:
    with FakeControlPlane() as plane:
        yield plane


@pytest.fixture(autouse=True)
def rank_of_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "4",
        "SLURMD_NODENAME": "agent",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE", "SLURM_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UNDERSTUDY_SOCKET", str(tmp_path / "%n.sock"))


def reported(values: list[float], name: str = "loss") -> list[tuple[str, int, int | None]]:
    series = Series(name)
    notices = [series.add(step, value) for step, value in enumerate(values)]
    return [(one["kind"], one["step"], one.get("until")) for one in notices if one is not None]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_no_number_is_reported_at_once_and_once(value: float) -> None:
    assert reported([2.0, 2.0, value, value, value]) == [("loss_nan", 2, None)]


def test_a_jump_to_five_times_what_is_usual_is_reported() -> None:
    assert reported([2.0] * 20 + [10.5] * 5) == [("loss_jump", 20, None)]
    assert reported([2.0] * 20 + [9.5] * 5) == []


def test_before_enough_was_seen_nothing_is_a_jump() -> None:
    assert reported([1.0] * 8 + [100.0] * 8) == []


def test_a_series_that_always_jumps_is_used_to_it() -> None:
    assert reported([1.0, 1.0, 1.0, 20.0] * 30) == [] or reported([1.0, 1.0, 1.0, 20.0] * 30)[0][1] < 16


def test_a_loss_that_falls_as_it_should_is_no_jump() -> None:
    rng = np.random.default_rng(1)
    falling = [10 * math.exp(-step / 300) * rng.lognormal(0, 0.3) + 0.01 for step in range(2000)]
    assert reported(falling) == []


def test_when_it_is_as_before_that_is_reported_with_the_first_good_step() -> None:
    values = [2.0] * 20 + [math.nan] * 3 + [2.0] * NORMAL_STEPS
    assert reported(values) == [("loss_nan", 20, None), ("loss_nan", 20, 23)]


def test_a_relapse_restarts_the_wait() -> None:
    values = [2.0] * 20 + [math.nan] + [2.0] * 5 + [math.nan] + [2.0] * NORMAL_STEPS
    assert reported(values) == [("loss_nan", 20, None), ("loss_nan", 20, 27)]


def test_reports_of_a_repeated_anomaly_are_limited() -> None:
    values = ([2.0] * NORMAL_STEPS + [math.nan]) * (REPORTED_MAX + 50)
    assert len([one for one in reported(values) if one[2] is None]) == REPORTED_MAX


def test_a_value_that_settles_at_a_new_level_is_over_as_if_it_never_was() -> None:
    settled = [0.2] * 100 + [1.4 + 0.05 * (step % 4) for step in range(LEVEL_STEPS)]
    assert reported(settled, "grad_norm") == [("grad_norm_jump", 100, None), ("grad_norm_jump", 100, 100)]
    later = len(settled) + 200
    assert reported([*settled, *[1.4] * 200, *[9.0] * 5], "grad_norm")[2:] == [("grad_norm_jump", later, None)]


def test_a_value_that_grows_or_jumps_about_is_no_level() -> None:
    grows = [2.0] * 20 + [15.0 * 1.02**step for step in range(300)]
    about = [2.0] * 20 + [11.0 if step % 3 else 400.0 for step in range(300)]
    for series in (grows, about):
        assert reported(series) == [("loss_jump", 20, None)]


def test_jumps_that_come_again_and_again_among_usual_values_are_over_and_usual_from_then_on() -> None:
    spiky = [0.2] * 100 + [3.0 if step % 15 == 0 else 0.2 for step in range(2000)]
    assert reported(spiky, "grad_norm") == [("grad_norm_jump", 100, None), ("grad_norm_jump", 100, 100)]
    higher = reported([*spiky, *[30.0] * 5], "grad_norm")
    assert higher[2:] == [("grad_norm_jump", len(spiky), None)], "what is higher than these is reported"


def test_jumps_that_grow_or_come_in_most_steps_go_on() -> None:
    grow = [0.2] * 100 + [3.0 * 1.01**step if step % 15 == 0 else 0.2 for step in range(1000)]
    most = [0.2] * 100 + [0.2 if step % 3 == 2 else 1.5 * 10 ** (step % 2) for step in range(1000)]
    for series in (grow, most):
        assert reported(series, "grad_norm") == [("grad_norm_jump", 100, None)]


def test_after_nan_a_new_level_is_good_from_where_it_began() -> None:
    values = [2.0] * 20 + [math.nan] * 5 + [30.0] * LEVEL_STEPS
    assert reported(values) == [("loss_nan", 20, None), ("loss_nan", 20, 25)]
    assert reported([2.0] * 20 + [math.nan] * 1000) == [("loss_nan", 20, None)]


def test_loss_and_gradient_norm_are_watched_apart() -> None:
    watch = AnomalyWatch()
    kinds = [one["kind"] for step in range(30) for one in watch.add(step, 1.0, math.nan if step == 25 else 0.5)]
    assert kinds == ["grad_norm_nan"]


def test_a_nan_reaches_the_control_plane_before_the_checkpoint_that_has_it(
    plane: FakeControlPlane, tmp_path: Path
) -> None:
    (tmp_path / "shard").write_bytes(b"weights")
    with running_agent(agent_config(tmp_path, plane.url)):
        monitor = Monitor()
        for number in monitor.steps(range(40, 50)):
            monitor.observe(loss=math.nan if number == 47 else 2.0, grad_norm=0.5)
        monitor.checkpoint_saved(50, tmp_path, "shard")
        monitor.close()
        plane.wait_for(lambda plane: any(isinstance(fact, CheckpointShard) for fact in plane.facts))
    facts = [fact for fact in plane.facts if isinstance(fact, Anomaly | CheckpointShard)]
    assert isinstance(facts[0], Anomaly)
    assert (facts[0].kind, facts[0].step, facts[0].rank, facts[0].value) == (AnomalyKind.LOSS_NAN, 47, 2, "nan")


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_writes_each_note_of_the_control_plane_once(
    plane: FakeControlPlane,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    rank: int,
) -> None:
    """A slow rank, NaN on another rank: with each answer again, as one may be lost."""
    for name, value in {"SLURM_JOB_ID": "7", "RANK": str(rank), "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    own = JobNote(7, 0, 0, os.getuid(), "nan 47", "loss is NaN on rank 1")
    plane.job_notes = [
        replace(own, user_id=os.getuid() + 1, text="of another user"),
        replace(own, launch=1, text="of another launch"),
        own,
        replace(own, text="the same, in other words"),
    ]
    with running_agent(agent_config(tmp_path, plane.url)):
        monitor = Monitor()
        for _ in monitor.steps(range(3)):
            pass
        before = len(plane.reports)
        plane.wait_for(lambda plane: len(plane.reports) >= before + 4)
        monitor.close()
    assert [one for one in caplog.messages if "NaN" in one or "other" in one] == (
        ["understudy: loss is NaN on rank 1"] if rank == 0 else []
    )


def test_what_is_no_number_is_ignored(plane: FakeControlPlane, tmp_path: Path) -> None:
    with running_agent(agent_config(tmp_path, plane.url)):
        monitor: Any = Monitor()
        for _ in monitor.steps(range(3)):
            monitor.observe(loss="a string")
            monitor.observe(loss=None)
            monitor.observe(loss=np.float32(1.5), grad_norm=3)
        monitor.close()
    assert not [fact for fact in plane.facts if isinstance(fact, Anomaly)]


def test_outside_of_slurm_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID")
    Monitor().observe(loss=math.nan)


@pytest.mark.timed
def test_it_costs_the_training_thread_about_a_microsecond(plane: FakeControlPlane, tmp_path: Path) -> None:
    with running_agent(agent_config(tmp_path, plane.url)):
        monitor = Monitor()
        costs = []
        with monitor.step(1):
            for _ in range(20):
                begun = time.perf_counter()
                for _ in range(200):
                    monitor.observe(2.5, 0.5)
                costs.append((time.perf_counter() - begun) / 200)
        monitor.close()
    assert statistics.median(costs) < 5e-6


def test_since_which_step_the_loss_is_nan_is_one_line_in_the_output_of_rank_0(caplog: pytest.LogCaptureFixture) -> None:
    for shows in (False, True):
        outbox = Outbox()
        outbox.shows = shows
        for step in range(60):
            outbox.values.append((step, math.nan if 20 <= step < 22 else 1.0, None, None, float(step)))
        outbox.check_values()
    assert [one.getMessage() for one in caplog.records] == [
        "understudy: loss is NaN since step 20: checkpoints from there on are suspect, and a restart passes them over",
        "understudy: loss is NaN since step 20, and is as before since step 22",
    ]
