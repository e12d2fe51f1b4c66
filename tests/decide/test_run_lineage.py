"""Which earlier jobs of its run a job continues."""

from __future__ import annotations

from math import inf

from tests import builders as b
from understudy_controlplane.decide.run_lineage import JOBS_MAX, Lineage, lineage
from understudy_controlplane.fleet.job import RunJob


def ran(number: int, began_at: float, ended_at: float = inf, *, ended_well: bool = False) -> RunJob:
    return RunJob(number, b.job(job_id=number).key, began_at, ended_at, ended_well)


CHAIN = [ran(1, 0, 1000), ran(2, 990, 2000), ran(3, 2500, 3000)]
BEFORE = tuple(CHAIN[::-1])


def test_a_job_continues_those_that_ended_before_it_began() -> None:
    for named in (True, False):
        assert lineage(ran(4, 4000), CHAIN, named) == Lineage(BEFORE)
        assert lineage(ran(4, inf), CHAIN, named) == Lineage(BEFORE), "it has not been seen running yet"
        assert lineage(ran(4, 4000), [], named) == Lineage()


def test_jobs_of_the_same_name_and_folder_that_run_together_are_different_trainings() -> None:
    """As the jobs of a parameter study are."""
    beside = ran(5, 3500)
    assert lineage(ran(4, 4000), [*CHAIN, beside], named=False) == Lineage(BEFORE), "none continues a job that runs"
    together = [ran(1, 0, 1000), ran(2, 500, 2000)]
    assert lineage(together[1], together[:1], named=False) == Lineage()
    found = lineage(ran(3, 3000), together, named=False)
    assert found.jobs == ()
    assert found.doubt.startswith("jobs 1 and 2 of its name and folder ran at the same time; set UNDERSTUDY_RUN")


def test_a_user_who_names_the_run_decides_which_jobs_belong_to_it() -> None:
    together = [ran(1, 0, 1000), ran(2, 500)]
    assert lineage(ran(3, 3000), together, named=True) == Lineage((together[1], together[0]))


def test_of_a_long_chain_the_newest_jobs_count() -> None:
    long = [ran(number, number * 1000, number * 1000 + 900) for number in range(JOBS_MAX + 20)]
    for named in (True, False):
        found = lineage(ran(999, inf), long, named)
        assert found.jobs == tuple(long[:19:-1])
        assert found.doubt.startswith("its run has more than 100 jobs"), "older ones may have saved something"


def test_after_a_job_that_ended_well_only_the_user_knows_whether_it_is_continued() -> None:
    finished = ran(3, 2500, 3000, ended_well=True)
    found = lineage(ran(4, 4000), [*CHAIN[:2], finished], named=False)
    assert found.jobs == ()
    assert found.doubt.startswith("job 3 of its name and folder ended well; set UNDERSTUDY_RUN")
    assert lineage(ran(4, 4000), [*CHAIN[:2], finished], named=True).jobs == (finished, *BEFORE[1:])


def test_a_training_that_began_after_another_was_finished_continues_none_of_its_jobs() -> None:
    """The user has answered then; the finished one's checkpoints are further."""
    finished, since = ran(1, 0, 1000, ended_well=True), ran(2, 2000, 3000)
    assert lineage(ran(4, 4000), [finished, since], named=False) == Lineage((since,))
