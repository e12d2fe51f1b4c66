"""What a process that keeps a GPU means for its node: one that no signal ends makes it a suspect."""

from __future__ import annotations

from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.finding import Finding, HardwareDetail, Signal
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.xid_policy import Repair
from understudy_wire.hardware import Stuck, StuckProcess


def stuck(why: Stuck = Stuck.KILLED, seconds: float = 61.0, **changes: Any) -> StuckProcess:
    values: dict[str, Any] = {"pid": 4711, "user_id": 1000, "command": "python", "gpus": ["0000:02:00.0"]}
    return StuckProcess(why=why, seconds=seconds, **(values | changes))


def found(*processes: StuckProcess) -> list[Finding]:
    node = b.node("n3", gpus=(b.gpu(0), b.gpu(1)), processes=processes)
    return [one for one in detect(b.snapshot(node, jobs=[b.job()]), b.config()) if one.rule.startswith("processes.")]


def test_a_process_that_sigkill_does_not_end_makes_its_node_a_suspect_that_a_reboot_repairs() -> None:
    (one,) = found(stuck(where="nvidia_close", job_id=7))
    assert (one.node, one.signal, one.rule) == ("n3", Signal.HEALTH_SUSPECTED, "processes.unkillable")
    assert one.summary == (
        "process 4711 (python; user researcher, job 7) has GPU 1 open and does not end: it was killed or has exited, "
        "61 s ago (in nvidia_close)"
    )
    assert isinstance(one.detail, HardwareDetail) and one.detail.repair is Repair.REBOOT


def test_a_process_that_was_killed_a_moment_ago_means_nothing() -> None:
    assert found(stuck(seconds=45.0)) == []


@pytest.mark.parametrize("why", [Stuck.WAITING, Stuck.ZOMBIE])
def test_a_process_that_may_still_continue_is_recorded_and_no_more(why: Stuck) -> None:
    """A file server that is away holds processes of all nodes."""
    (one,) = found(stuck(why, 600.0, job_id=99, gpus=["nvidia5"]), stuck(why, 500.0))
    assert (one.signal, one.rule) == (Signal.RECORDED, "processes.waiting")
    assert "user id 1000, job 99" in one.summary and "GPU nvidia5 open" in one.summary
    assert one.summary.endswith(", and 1 more")


def left_on(*jobs: Job, **changes: Any) -> list[Finding]:
    node = b.node("n3", gpus=(b.gpu(0), b.gpu(1)), processes=(stuck(Stuck.LEFT, 180.0, **changes),))
    return [one for one in detect(b.snapshot(node, jobs=jobs), b.config()) if one.rule.startswith("processes.")]


def test_a_process_that_its_job_has_left_behind_makes_its_node_a_suspect_and_a_person_ends_it() -> None:
    (one,) = left_on(job_id=99)
    assert (one.node, one.signal, one.rule) == ("n3", Signal.HEALTH_SUSPECTED, "processes.left")
    assert one.summary == (
        "process 4711 (python; user id 1000, job 99) has GPU 1 open and lives on, though its job has been over here "
        "for 180 s; if no user needs it, end it on n3 (`kill -KILL 4711`), or reboot the node"
    )
    assert isinstance(one.detail, HardwareDetail) and one.detail.repair is Repair.MANUAL_REPAIR


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED"])
def test_no_process_of_a_job_that_slurm_still_shows_on_the_node_is_left_behind(state: str) -> None:
    job = b.job(nodes=("n3",), state=state)
    assert left_on(job, job_id=job.key.job_id) == []


def test_a_process_of_which_only_another_node_has_the_job_is_left_behind() -> None:
    job = b.job(nodes=("n4",))
    assert left_on(job, job_id=job.key.job_id)


def test_a_process_of_an_unknown_job_counts_only_where_slurm_shows_no_job() -> None:
    assert left_on(job_id=None)
    assert left_on(b.job(nodes=("n3",)), job_id=None) == []


@pytest.mark.parametrize("job_id", [None, 7])
def test_a_process_that_began_before_each_job_that_may_be_its_own_is_left_behind(job_id: int | None) -> None:
    """An earlier attempt of its job left it, or another job; under Slurm 26.05 the cgroup does not show which."""
    job = b.job(nodes=("n3",), job_id=7, start_at=int(b.NOW) - 1000)
    assert left_on(job, job_id=job_id, age_seconds=1100.0)
    assert left_on(job, job_id=job_id, age_seconds=1030.0), "of an attempt that lived for less than a minute"
    assert left_on(job, job_id=job_id, age_seconds=1009.0) == []
    assert left_on(job, job_id=job_id, age_seconds=900.0) == []
    assert left_on(job, job_id=job_id) == []
    earlier = b.job(nodes=("n3",), job_id=6, start_at=int(b.NOW) - 2000)
    assert bool(left_on(job, earlier, job_id=job_id, age_seconds=1100.0)) is (job_id == 7)


def outside_on(*jobs: Job, **changes: Any) -> list[Finding]:
    node = b.node("n3", gpus=(b.gpu(0), b.gpu(1)), processes=(stuck(Stuck.OUTSIDE, 180.0, **changes),))
    return [one for one in detect(b.snapshot(node, jobs=jobs), b.config()) if one.rule.startswith("processes.")]


def test_a_process_outside_of_jobs_is_recorded() -> None:
    (one,) = outside_on()
    assert (one.node, one.signal, one.rule) == ("n3", Signal.RECORDED, "processes.outside")
    assert one.summary == (
        "process 4711 (python; user id 1000) has GPU 1 open and is in no job of Slurm; no gang gets a spare there "
        "until it has ended"
    )


def test_a_process_that_may_be_of_a_job_there_is_not_outside_of_jobs() -> None:
    """Only the times show it where jobs have no cgroups: what a job has put into the background is younger."""
    job = b.job(nodes=("n3",), job_id=7, start_at=int(b.NOW) - 1000)
    assert outside_on(job, age_seconds=1050.0) == []
    assert outside_on(job) == []
    assert outside_on(job, age_seconds=1100.0)
    assert outside_on(b.job(nodes=("n4",)), age_seconds=10.0)


def test_what_a_later_agent_calls_stuck_in_another_way_is_no_finding() -> None:
    assert found(stuck(Stuck.UNKNOWN, 600.0)) == []
