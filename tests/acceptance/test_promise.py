"""A cell of each kind of job of what `make promise` measures: the gang is back, whatever time that takes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.promise.bench import measure
from tests.promise.cells import Batch

pytestmark = [pytest.mark.cluster, pytest.mark.machines, pytest.mark.timeout(600)]


class PatientBatch(Batch):
    """All takes longer beside other clusters."""

    @property
    def moves_seconds(self) -> float:
        return 400.0

    @property
    def give_up_seconds(self) -> float:
        return self.moves_seconds


@pytest.mark.parametrize(
    ("fault", "jobs"),
    [
        ("node power off", ("plain srun", "understudy run")),
        pytest.param("node power off", ("hook", "hook with collectives"), marks=pytest.mark.long),
        pytest.param("slurmd dead", ("plain srun", "torchrun", "understudy run"), marks=pytest.mark.long),
    ],
)
def test_a_gang_is_back_on_a_spare_of_the_pool(fault: str, jobs: tuple[str, ...]) -> None:
    # Not pytest's own temporary directory: its path is long for sockets, and closed to users whose jobs run.
    directory = Path(tempfile.mkdtemp(prefix="understudy-"))
    directory.chmod(0o755)
    try:
        cells = measure(PatientBatch(30, fault, "spare"), jobs, directory / "site", print)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    assert {one.job: one.back_seconds is not None for one in cells} == dict.fromkeys(jobs, True), cells
