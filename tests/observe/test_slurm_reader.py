"""What a reading of Slurm shows of its clock."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.bench.report_server import StillSlurm
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.clock import SystemClock
from understudy_controlplane.observe.slurm_reader import SlurmReader


class Clock:
    """The control plane's, so many seconds behind slurmctld's."""

    def __init__(self, slurm: VirtualSlurm) -> None:
        self._slurm = slurm
        self.behind = 0.0

    def now(self) -> float:
        return self._slurm.now - self.behind

    def monotonic(self) -> float:
        return self._slurm.now


class SlowSlurm(VirtualSlurm):
    seconds = 0.0
    error: Exception | None = None

    def config(self) -> Mapping[str, str]:
        if self.error is not None:
            raise self.error
        shown = super().config()
        self.now += self.seconds
        return shown


def sides() -> tuple[SlowSlurm, Clock, SlurmReader]:
    slurm = SlowSlurm(["n1"])
    clock = Clock(slurm)
    return slurm, clock, SlurmReader(slurm, "testbed", clock)


def ahead(reader: SlurmReader) -> float:
    view = reader.read()
    assert view is not None
    return view.clock_ahead_seconds


@pytest.mark.parametrize("behind", [-3600.0, -60.0, 60.0, 3600.0])
def test_how_far_the_clock_of_slurmctld_is_ahead(behind: float) -> None:
    _, clock, reader = sides()
    clock.behind = behind
    assert ahead(reader) == pytest.approx(behind, abs=0.6)


@pytest.mark.parametrize("behind", [-1.4, 0.0, 1.4])
def test_clocks_that_nearly_agree_count_as_one(behind: float) -> None:
    _, clock, reader = sides()
    clock.behind = behind
    assert ahead(reader) == 0.0


def test_a_slow_answer_shows_no_clock_and_what_was_known_stands() -> None:
    slurm, clock, reader = sides()
    clock.behind = 60.0
    assert ahead(reader) == pytest.approx(60.0, abs=0.6)
    slurm.seconds = 5.0
    assert ahead(reader) == pytest.approx(60.0, abs=0.6)
    clock.behind += 30.0
    reader.clock_was_set(-30.0)
    assert ahead(reader) == pytest.approx(90.0, abs=0.6)


def test_an_error_that_nothing_expects_is_why_slurm_could_not_be_read() -> None:
    """The leader gives up the lead by it. The tick fails, which logs where."""
    slurm, _, reader = sides()
    assert reader.read() is not None
    slurm.error = ValueError("no number")
    with pytest.raises(ValueError, match="no number"):
        reader.read()
    assert reader.reading.error == "an error of the control plane: ValueError('no number')"
    assert reader.reading.errors_total == 1
    slurm.error = None
    assert reader.read() is not None
    assert reader.reading.error == ""


def test_the_slurm_of_the_benchmarks_can_be_read() -> None:
    slurm = StillSlurm()
    view = SlurmReader(slurm, slurm.cluster_name(), SystemClock()).read()
    assert view is not None
    assert len(view.nodes) > 100
