"""Memory of the control plane: what jobs, faults and recoveries leave in it goes again."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.growth import growing, sizes
from tests.simulate.growth import FAULTS, Beside, Churn
from tests.simulator.run import logs_into
from tests.simulator.scenario import Scenario, Settings
from tests.simulator.world import World
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.store.database import DatabaseInMemory

pytestmark = [pytest.mark.integration, pytest.mark.patient]
# The first test takes half a minute, and what grows does harm after weeks: `make long` runs it.

JOBS = 2 * len(FAULTS)
"""Each of them with a fault, and each fault twice."""

DAYS = 9.0
"""Longer than anything is kept in memory."""


@pytest.mark.long
def test_nothing_in_memory_grows_with_the_jobs_faults_and_recoveries_that_have_gone_by() -> None:
    world = World(Scenario(0, (), Settings(asks=True), quiet_seconds=3000.0), DatabaseInMemory())
    measured: list[Counter[str]] = []
    with logs_into(None):
        world.start()
        churn, beside = Churn(world), Beside(world)
        for _ in range(4):
            for _ in range(JOBS):
                churn.pass_jobs(1)
                beside.look()
            churn.pass_days(DAYS)
            beside.look()
            gc.collect()
            measured.append(sizes(beside, "control plane"))
    assert beside.core is not None
    assert beside.core is world.core, "it was not started again"
    assert len(beside.core.stores.recoveries.newest(1000)) > JOBS
    assert "control plane.core.launchers._gangs" in measured[0]
    assert "control plane.notifier._collector._xids_at" in measured[0]
    assert growing(measured, 2) == {}


def test_a_set_that_only_grows_is_named_by_its_path() -> None:
    directory = JobDirectory()
    measured = []
    for number in range(3):
        directory.show(range(5 * number, 5 * number + 5), 0.0)
        measured.append(sizes({"parts": [directory.show]}, "root"))
    assert growing(measured, 5) == {"root[][]._shown_at": [5, 10, 15]}
