"""When the start of a requeued job is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests import builders as b
from tests.recover.test_undo import NoTickets
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.recovery import PoolSwapPlan
from understudy_controlplane.fleet.slurm import JobAddress, SlurmJob, SlurmView
from understudy_controlplane.recover.step import Failed, GangFacts, StepContext, Todo, Wait
from understudy_controlplane.recover.steps.gang import AWAIT_FIRST_STEP, AWAIT_PROCESSES
from understudy_controlplane.recover.steps.job import START_JOB

SECOND = int(b.NOW)
"""Second in which the gang was requeued."""


class Asked(VirtualSlurm):
    not_before = -1

    def start_job(self, job: JobAddress, not_before: int = 0) -> None:
        assert job == 7
        self.not_before = not_before


def gang(start_at: int | None, reason: str = "BeginTime") -> SlurmJob:
    return replace(
        b.slurm_job(7), submit_at=SECOND, restart_count=1, state="PENDING", nodes=(), reason=reason, start_at=start_at
    )


def context(job: SlurmJob, now: float, ahead: float = 0.0) -> StepContext:
    """`now` is slurmctld's."""
    plan = PoolSwapPlan(
        steps=(),
        nodes=("n1",),
        drain_reason="understudy: x",
        spares=("n2",),
        seats=("n2",),
        job=JobKey(b.CLUSTER, 7, SECOND - 100),
        user="news",
        submit_at=SECOND - 100,
        restart_count=0,
    )
    return StepContext(
        plan=plan,
        slurm=SlurmView(now - ahead, {}, {7: job}, {}, clock_ahead_seconds=ahead),
        records={},
        gang=lambda _: GangFacts(hook_was_used=False),
        silent=lambda _: [],
        still_silent=lambda _: [],
        config=b.config(),
        now=now - ahead,
        tickets=NoTickets(),
        send_orders=lambda _: None,
        worked_until=lambda: 0.0,
    )


@pytest.mark.parametrize("now", [SECOND - 0.01, SECOND + 0.01, SECOND + 0.99, SECOND + 1.5, SECOND + 60.0])
def test_whenever_it_is_asked_for_it_is_asked_for_after_the_second_of_the_requeue(now: float) -> None:
    """Slurm fails a job that starts in the second of its kill, and this machine's clock may be wrong."""
    slurm, delayed = Asked(["n1"]), context(gang(SECOND + 121), now)
    assert isinstance(START_JOB.observe(delayed), Todo)
    START_JOB.act(delayed, slurm)
    assert slurm.not_before == SECOND + 1


@pytest.mark.parametrize("ahead", [0.0, 30.0, -30.0])
def test_it_is_asked_for_again_when_that_second_has_begun(ahead: float) -> None:
    """The scheduler may have looked between the first call and that second, and found nothing to start."""
    assert isinstance(START_JOB.observe(context(gang(SECOND + 1), SECOND + 0.9, ahead)), Wait)
    again = START_JOB.observe(context(gang(None), SECOND + 1.1, ahead))
    assert isinstance(again, Todo)
    assert again.once_after == SECOND + 1 - ahead


def test_a_job_that_the_scheduler_has_looked_at_is_left_to_it() -> None:
    assert isinstance(START_JOB.observe(context(gang(None, "Resources"), SECOND + 5.0)), Wait)


@pytest.mark.parametrize("count", [1, 2])
def test_a_gang_whose_start_slurmctld_forgets_waits_for_no_step(count: int) -> None:
    """Its move ends, and the next one gives it seats. As another attempt it was requeued since."""
    pends = replace(gang(None, "Resources"), restart_count=count)
    waits = replace(context(pends, SECOND + 60), gang=lambda _: GangFacts(hook_was_used=True))
    for step in (AWAIT_PROCESSES, AWAIT_FIRST_STEP):
        assert isinstance(step.observe(waits), Failed if count == 1 else Wait)
