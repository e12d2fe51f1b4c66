"""A recovery told in time: when each phase was reached, in milliseconds since the fault."""

from __future__ import annotations

from understudy_controlplane.fleet.recovery import Recovery, StepName, StepStatus

PHASE_STEPS = {
    "drained": StepName.DRAIN_NODES,
    "told": StepName.TELL_LAUNCHER,
    "seats_held": StepName.BIND_JOB,
    "requeued": StepName.REQUEUE_JOB,
    "running": StepName.AWAIT_PROCESSES,
    "first_step": StepName.AWAIT_FIRST_STEP,
}
"""The launcher is told when it has said that the next launch has begun. Seats are held when the job is bound to them;
the gang runs when the last of its processes was started."""


def phase_times(recovery: Recovery) -> dict[str, float]:
    """Phase → seconds since the epoch, of the phases reached."""
    times = {"detected": recovery.detected_at, "decided": recovery.decided_at}
    for phase, name in PHASE_STEPS.items():
        step = recovery.step(name)
        if step is not None and step.status is StepStatus.DONE and step.done_at is not None:
            times[phase] = step.done_at
    return times


def phases_ms(recovery: Recovery, fault_at: float) -> dict[str, int]:
    return {phase: round((at - fault_at) * 1000) for phase, at in phase_times(recovery).items()}
