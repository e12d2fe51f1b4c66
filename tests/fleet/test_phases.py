"""When a recovery reached what."""

from __future__ import annotations

from tests import builders as b
from tests.demo.timeline import COLOURS
from understudy_controlplane.fleet.phases import PHASES, phase_times
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
)


def test_processes_that_started_before_the_fault_run_since_the_launch_that_they_go_on_in() -> None:
    done_at = {StepName.ORDER_RESTART: 10.4, StepName.AWAIT_PROCESSES: 1.0, StepName.AWAIT_FIRST_STEP: 11.5}
    steps = tuple(
        RecoveryStep(position, name, StepStatus.DONE, done_at=at, communicator_at=11.0 if at == 11.5 else None)
        for position, (name, at) in enumerate(done_at.items())
    )
    plan = AllocationSwapPlan(
        steps=tuple(done_at), drain_reason="x", nodes=("n1",), submit_at=5, job=b.job().key, restart_count=0, launch=0
    )
    times = phase_times(Recovery(1, plan, RecoveryStatus.SUCCEEDED, 10.2, steps, 10.0, 10.1))
    assert [*times.items()] == [
        ("detected", 10.1),
        ("decided", 10.2),
        ("relaunched", 10.4),
        ("running", 10.4),
        ("communicator", 11.0),
        ("first_step", 11.5),
    ]


def test_the_demo_draws_each_phase() -> None:
    assert set(COLOURS) == set(PHASES)
