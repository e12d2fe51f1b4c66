"""Only jobs that Slurm shows are in memory, and a job of long ago is still found."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest

from tests import builders as b
from understudy_controlplane.fleet.job import JobKey, KnownJob, job_shown
from understudy_controlplane.fleet.slurm import SlurmView
from understudy_controlplane.live.directory import FORGET_SECONDS, INVENTED_SECONDS, OVER_SECONDS, JobDirectory

STORED = {job_id: KnownJob(job_id * 10, JobKey(b.CLUSTER, job_id, 5), 0, 1000) for job_id in range(1, 100)}


class Database:
    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def look_up(self, job_ids: Collection[int]) -> Mapping[int, KnownJob]:
        self.asked.append(sorted(job_ids))
        return {job_id: STORED[job_id] for job_id in job_ids if job_id in STORED}


def test_a_job_is_looked_up_when_slurm_shows_it_and_not_again() -> None:
    database = Database()
    directory = JobDirectory(database.look_up)
    assert directory.get(7) is None
    directory.show([7, 8], b.NOW)
    directory.show([7, 8], b.NOW + 1)
    assert (directory.get(7), directory.row_of(8), database.asked) == (STORED[7], 80, [[7, 8]])


def test_a_job_that_slurm_does_not_show_any_more_leaves_the_memory_and_is_still_found() -> None:
    """A report of an agent that was cut off may come late."""
    database = Database()
    directory = JobDirectory(database.look_up)
    directory.show([7, 8], b.NOW)
    directory.show([8], b.NOW + FORGET_SECONDS - 1)
    assert directory.get(7) is STORED[7]
    directory.show([8], b.NOW + FORGET_SECONDS + 1)
    assert (directory.get(7), directory.get(8)) == (None, STORED[8])
    assert (directory.find(7), directory.find(8), directory.find(4711)) == (STORED[7], STORED[8], None)
    assert database.asked == [[7, 8], [7], [4711]]


def test_a_job_is_over_when_slurm_has_shown_it_as_ended_for_a_minute() -> None:
    directory = JobDirectory(Database().look_up)
    directory.show([7, 8], b.NOW, ended={7, 8})
    assert directory.over([7, 8, 9], b.NOW + OVER_SECONDS - 1) == []
    directory.show([8], b.NOW + 30, ended={8})  # Slurm has forgotten 7
    assert directory.over([7, 8, 9], b.NOW + OVER_SECONDS) == [STORED[7], STORED[8]]
    directory.show([8], b.NOW + 90)  # it was requeued by a person
    assert directory.over([7, 8], b.NOW + 100) == [STORED[7]]


def test_a_job_that_ended_while_slurm_was_not_read_is_not_over() -> None:
    directory = JobDirectory(Database().look_up)
    directory.show([7, 8], b.NOW)
    directory.show([8], b.NOW + OVER_SECONDS)
    assert directory.over([7], b.NOW + 2 * OVER_SECONDS) == []


def test_a_job_that_slurm_never_showed_is_invented_once_slurm_was_read_for_two_minutes() -> None:
    directory = JobDirectory(Database().look_up)
    directory.show([7], b.NOW)
    assert directory.invented([7, 8, 4711], b.NOW) == set()
    assert directory.invented([4711], b.NOW + 3600) == set(), "Slurm was not read since"
    directory.show([7], b.NOW + INVENTED_SECONDS - 1)
    assert directory.invented([4711], b.NOW + INVENTED_SECONDS) == set()
    directory.show([7], b.NOW + INVENTED_SECONDS)
    assert directory.invented([7, 8, 4711], b.NOW + INVENTED_SECONDS) == {4711}, "8 is in the database"
    directory.show([7, 4711], b.NOW + 500)
    directory.show([7], b.NOW + 501)
    assert directory.invented([4711], b.NOW + 502) == set(), "it has been there"


def test_a_new_job_stays_as_it_was_put() -> None:
    directory = JobDirectory(Database().look_up)
    new = KnownJob(1234, JobKey(b.CLUSTER, 7, 99), 0, 1000)
    directory.put(new)
    directory.show([7], b.NOW)
    assert directory.find(7) is new


def test_a_reading_is_gone_through_once_and_again_where_a_job_is_written_down_meanwhile() -> None:
    directory = JobDirectory()
    requeued = b.slurm_job(7, submit_at=9, restart_count=1)
    view = SlurmView(b.NOW, {}, {7: requeued}, {})
    (new,) = directory.jobs_in(view, b.CLUSTER, "understudy")
    assert new.key.submit_at == 9
    directory.put(KnownJob(70, JobKey(b.CLUSTER, 7, 5), 0, requeued.user_id))
    (known,) = directory.jobs_in(view, b.CLUSTER, "understudy")
    assert known.key.submit_at == 5
    (other,) = directory.jobs_in(view, b.CLUSTER, "another word")
    assert (known.managed, other.managed) == (True, False)
    assert directory.jobs_in(view, b.CLUSTER, "another word")[0] is other


def test_the_folders_that_a_comment_names_are_known_of_a_job_from_the_database_and_not_of_an_older_one() -> None:
    """Slurm gives job ids again: the older job keeps its own until the new one is written down."""
    directory = JobDirectory(Database().look_up)
    directory.show([7, 8], b.NOW)
    comment = "understudy checkpoints=/scratch/run"
    shown = [b.slurm_job(7, submit_at=5, comment=comment), b.slurm_job(8, submit_at=99, comment=comment)]
    view = SlurmView(b.NOW, {}, {job.job_id: job for job in shown}, {})
    jobs = directory.jobs_in(view, b.CLUSTER, "understudy")
    assert [known and known.checkpoint_folders for known in directory.known([7, 8])] == [("/scratch/run",), ()]
    assert all(one is other for one, other in zip(jobs, directory.jobs_in(view, b.CLUSTER, "understudy"), strict=True))


def test_a_round_that_failed_halfway_through_the_jobs_of_a_view_leaves_none_of_them_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = JobDirectory()
    view = SlurmView(b.NOW, {}, {job_id: b.slurm_job(job_id) for job_id in (7, 8, 9)}, {})

    def fails(slurm: Any, *others: Any) -> Any:
        if slurm.job_id == 8:
            raise MemoryError
        return job_shown(slurm, *others)

    monkeypatch.setattr("understudy_controlplane.live.directory.job_shown", fails)
    with pytest.raises(MemoryError):
        directory.jobs_in(view, b.CLUSTER, "understudy")
    monkeypatch.undo()
    assert [job.key.job_id for job in directory.jobs_in(view, b.CLUSTER, "understudy")] == [7, 8, 9]
