"""The phases of a recovery, and when each was reached."""

from __future__ import annotations

from understudy_controlplane.fleet.recovery import Recovery, StepName, StepStatus

PHASES_BEFORE = ("detected", "decided")

PHASE_STEPS = {
    "drained": StepName.DRAIN_NODES,
    "relaunched": StepName.ORDER_RESTART,
    "seats_held": StepName.BIND_JOB,
    "requeued": StepName.REQUEUE_JOB,
    "running": StepName.AWAIT_PROCESSES,
    "first_step": StepName.AWAIT_FIRST_STEP,
}
PHASES = (*PHASES_BEFORE, *PHASE_STEPS, "communicator")
"""`relaunched`: the launcher has reported that the next launch has begun. `seats_held`: the job is bound to its seats.
`running`: the last process of the gang has started. `communicator`: the last rank has joined its process groups."""


def phase_times(recovery: Recovery) -> dict[str, float]:
    """Phase → seconds since the epoch, of the phases reached."""
    times = {"detected": recovery.detected_at, "decided": recovery.decided_at}
    for phase, name in PHASE_STEPS.items():
        step = recovery.step(name)
        if step is not None and step.status is StepStatus.DONE and step.done_at is not None:
            if step.communicator_at is not None:
                times["communicator"] = step.communicator_at
            times[phase] = step.done_at
    if "relaunched" in times and "running" in times:  # processes kept warm, and those that go on, started before it
        times["running"] = max(times["running"], times["relaunched"])
    return times
