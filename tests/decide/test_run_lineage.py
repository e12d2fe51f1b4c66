"""A job continues earlier jobs of its run."""

from __future__ import annotations

from math import inf

import pytest

from tests import builders as b
from understudy_controlplane.decide.run_lineage import JOBS_MAX, Lineage, lineage
from understudy_controlplane.fleet.job import RunJob


def ran(number: int, began_at: float, ended_at: float = inf, state: str = "TIMEOUT", arguments: str = "") -> RunJob:
    return RunJob(number, b.job(job_id=number).key, began_at, ended_at, state, arguments)


CHAIN = [ran(1, 0, 1000), ran(2, 990, 2000), ran(3, 2500, 3000)]
BEFORE = tuple(CHAIN[::-1])


def test_a_job_continues_those_that_ended_before_it_began() -> None:
    for named in (True, False):
        assert lineage(ran(4, 4000), CHAIN, named) == Lineage(BEFORE)
        assert lineage(ran(4, inf), CHAIN, named) == Lineage(BEFORE), "it has not been seen running yet"
        assert lineage(ran(4, 4000), [], named) == Lineage()


def test_jobs_of_the_same_name_and_folder_that_run_together_are_different_trainings() -> None:
    """The jobs of a parameter study are such."""
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


def test_after_a_job_that_ended_well_the_next_of_its_name_begins_and_that_says_how_to_continue() -> None:
    finished = ran(3, 2500, 3000, "COMPLETED")
    found = lineage(ran(4, 4000), [*CHAIN[:2], finished], named=False)
    note = "job 3 of its name and folder ended well; UNDERSTUDY_RUN=3 would continue it"
    assert found == Lineage(note=note)
    assert lineage(ran(4, 4000), [*CHAIN[:2], finished], named=True).jobs == (finished, *BEFORE[1:])


@pytest.mark.parametrize("state", ["FAILED", "CANCELLED", "COMPLETED", "OUT_OF_MEMORY"])
def test_a_job_with_other_arguments_begins_where_the_one_before_was_not_interrupted(state: str) -> None:
    """The jobs of a study run one after another: none goes on from the weights of another."""
    other = ran(1, 0, 1000, state, arguments="lr 1")
    found = lineage(ran(2, 2000, arguments="lr 2"), [other], named=False)
    assert found == Lineage(
        note="job 1 of its name and folder ran with other arguments; UNDERSTUDY_RUN=1 would continue it"
    )
    assert lineage(ran(2, 2000, arguments="lr 2"), [other], named=True).jobs == (other,)


@pytest.mark.parametrize("state", ["TIMEOUT", "NODE_FAIL", "PREEMPTED", "RUNNING", ""])
def test_whether_other_arguments_continue_an_interrupted_job_only_the_user_knows(state: str) -> None:
    """More epochs, or another learning rate for what follows; or another experiment."""
    other = ran(1, 0, 1000, state, arguments="epochs 1")
    found = lineage(ran(2, 2000, arguments="epochs 2"), [other], named=False)
    assert (found.jobs, found.note) == ((), "")
    assert found.doubt == (
        "job 1 of its name and folder ran with other arguments, and was interrupted; set UNDERSTUDY_RUN to the id of "
        "the job that it continues, or to $SLURM_JOB_ID for a new training"
    )


def test_a_job_continues_those_with_its_arguments_whatever_ran_between_them_or_beside() -> None:
    first, other = ran(1, 0, 1000, arguments="a"), ran(2, 500, 1500, arguments="b")
    done = ran(3, 1600, 1700, "COMPLETED", arguments="b")
    assert lineage(ran(4, 2000, arguments="a"), [first, other, done], named=False) == Lineage((first,))


def test_jobs_whose_arguments_are_not_known_continue_as_before() -> None:
    """An older hook does not report them, and the prolog of the task asks before the program runs."""
    known, unknown = ran(1, 0, 1000, arguments="a"), ran(1, 0, 1000)
    assert lineage(ran(2, 2000), [known], named=False).jobs == (known,)
    assert lineage(ran(2, 2000, arguments="a"), [unknown], named=False).jobs == (unknown,)


def test_a_training_that_began_after_another_was_finished_continues_none_of_its_jobs() -> None:
    """The user has answered then; the finished one's checkpoints are further."""
    finished, since = ran(1, 0, 1000, "COMPLETED"), ran(2, 2000, 3000)
    assert lineage(ran(4, 4000), [finished, since], named=False) == Lineage((since,))
