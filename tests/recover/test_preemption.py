"""What a recovery promises that relies on a preemption by Slurm, on a virtual cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.fleet.slurm import SlurmJob

pytestmark = [pytest.mark.integration, pytest.mark.patient]


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    """The gang has used all spares up."""
    rehearsal = Rehearsal(tmp_path, spares={"count": 3, "no_spare": "preempt"}, guards={"breaker_share_max": 1.0})
    rehearsal.fake.tiers |= {"low": 0}
    rehearsal.fake.preempt_mode = "REQUEUE"
    return rehearsal


def submit_low(rehearsal: Rehearsal) -> int:
    job_id = rehearsal.fake.submit("student", 1)
    rehearsal.fake.put_into(job_id, "low")
    rehearsal.run(5)
    assert job(rehearsal, job_id).nodes == ("n5",)
    return job_id


def job(rehearsal: Rehearsal, job_id: int) -> SlurmJob:
    return next(one for one in rehearsal.fake.jobs() if one.job_id == job_id)


def use_spares_up(rehearsal: Rehearsal) -> None:
    for count, name in enumerate(("n1", "n2", "n3"), start=1):
        rehearsal.fail(name)
        rehearsal.run_until(lambda count=count: rehearsal.gang_state() == ("RUNNING", count))  # type: ignore[misc]
    assert rehearsal.gang_nodes() == ["n4", "n6", "n7", "n8"], rehearsal.describe()


def test_slurm_preempts_the_job_and_the_gang_is_back_on_its_node(rehearsal: Rehearsal) -> None:
    low = submit_low(rehearsal)
    use_spares_up(rehearsal)
    rehearsal.fail("n4")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 4))
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_nodes() == ["n5", "n6", "n7", "n8"], rehearsal.describe()
    assert rehearsal.recoveries()[-1].status is RecoveryStatus.SUCCEEDED
    assert (job(rehearsal, low).state, job(rehearsal, low).restart_count) == ("PENDING", 1)
    assert rehearsal.reservation_names() <= {"understudy_spares"}


def test_a_job_that_is_exempt_goes_on_and_the_gang_moves_when_it_no_longer_is(rehearsal: Rehearsal) -> None:
    low = submit_low(rehearsal)
    use_spares_up(rehearsal)
    rehearsal.fake.exempt_seconds = 600
    rehearsal.fail("n4")
    rehearsal.run(30)
    assert job(rehearsal, low).state == "RUNNING"
    assert rehearsal.gang_state() == ("RUNNING", 3), "it stays where it is"
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 4), 900)
    assert job(rehearsal, low).state == "PENDING"


def test_where_slurm_does_not_preempt_after_all_nothing_ends_and_the_seats_are_released(rehearsal: Rehearsal) -> None:
    low = submit_low(rehearsal)
    use_spares_up(rehearsal)

    def changes_its_rules(effect: str) -> None:
        if effect == "requeue_job":
            rehearsal.fake.preempt_mode = "OFF"

    rehearsal.line.before = changes_its_rules
    rehearsal.fail("n4")
    rehearsal.run_until(lambda: rehearsal.recoveries()[-1].status is RecoveryStatus.FAILED, 2400)
    assert job(rehearsal, low).state == "RUNNING"
    assert rehearsal.gang_state() == ("PENDING", 4)
    assert rehearsal.reservation_names() <= {"understudy_spares"}
