"""The steps, one small module for each thing that is acted on."""

from __future__ import annotations

from controlplane.fleet.recovery import StepName
from controlplane.recover.step import Step
from controlplane.recover.steps import gang, job, nodes, pool, seats

STEPS: dict[StepName, Step] = {
    step.name: step
    for step in (
        nodes.DRAIN_NODES,
        nodes.DOWN_NODES,
        pool.TAKE_SPARES,
        pool.FILL_POOL,
        seats.HOLD_SEATS,
        seats.BIND_JOB,
        seats.RELEASE_SEATS,
        job.REQUEUE_JOB,
        job.START_JOB,
        job.RELEASE_JOB,
        gang.AWAIT_PROCESSES,
        gang.AWAIT_FIRST_STEP,
    )
}
