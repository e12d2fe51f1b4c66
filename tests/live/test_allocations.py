"""Jobs were on a node, also when Slurm shows them no longer."""

from __future__ import annotations

import pytest

from tests import builders as b
from understudy_controlplane.fleet.job import JobThere
from understudy_controlplane.live.allocations import KEPT_SECONDS, MARGIN_SECONDS, Allocations

FIRST, SECOND = JobThere(7, 500, "researcher"), JobThere(8, 500, "researcher")


@pytest.fixture
def allocations() -> Allocations:
    """Nothing runs at 1000; job 7 is seen first at 1001 on n1 and n2, and is gone at 1101, when job 8 is on n1."""
    known = Allocations()
    known.note([], 1000.0)
    known.note([b.job(job_id=7, nodes=("n1", "n2"))], 1001.0)
    known.note([b.job(job_id=7, nodes=("n1", "n2"))], 1100.0)
    known.note([b.job(job_id=8, nodes=("n1",)), b.job(job_id=9, nodes=("n1",), state="PENDING")], 1101.0)
    return known


def test_a_job_is_on_its_nodes_from_start_to_end(allocations: Allocations) -> None:
    assert allocations.on("n2", 1050.0) == [FIRST]
    assert allocations.on("n1", 1050.0) == [FIRST]
    assert allocations.on("n3", 1050.0) == []
    assert allocations.on("n2", 1200.0) == []
    assert allocations.on("n1", 1200.0) == [SECOND]


def test_what_comes_in_between_two_jobs_is_of_both(allocations: Allocations) -> None:
    assert allocations.on("n1", 1101.0 + MARGIN_SECONDS / 2) == [FIRST, SECOND]


def test_what_was_before_the_first_job_is_of_none(allocations: Allocations) -> None:
    assert allocations.on("n1", 900.0) == []


def test_an_ended_job_is_forgotten_after_a_while(allocations: Allocations) -> None:
    allocations.note([b.job(job_id=8, nodes=("n1",))], 1102.0 + KEPT_SECONDS)
    assert allocations.on("n2", 1050.0) == []


def test_a_job_that_runs_at_the_first_reading_started_after_its_submission() -> None:
    known = Allocations()
    known.note([b.job(job_id=7, submit_at=900)], 1000.0)
    assert known.on("n1", 950.0) != []
    assert known.on("n1", 890.0) == []


def test_a_requeued_job_that_comes_back_elsewhere_was_on_both() -> None:
    known = Allocations()
    known.note([], 1000.0)
    known.note([b.job(job_id=7, nodes=("n1",))], 1001.0)
    known.note([b.job(job_id=7, nodes=("n2",), restart_count=1)], 1100.0)
    assert known.on("n1", 1050.0) == [FIRST]
    assert known.on("n1", 1200.0) == []
    assert known.on("n2", 1200.0) == [FIRST]
