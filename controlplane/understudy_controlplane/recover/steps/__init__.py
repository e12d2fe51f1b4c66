"""The steps, one small module for each thing that is acted on."""

from __future__ import annotations

from understudy_controlplane.fleet.recovery import StepName
from understudy_controlplane.recover.step import Step
from understudy_controlplane.recover.steps import credit, gang, job, launcher, nodes, pool, repair, seats, weight

STEPS: dict[StepName, Step] = {
    step.name: step
    for step in (
        nodes.DRAIN_NODES,
        nodes.DOWN_NODES,
        nodes.LIFT_DRAIN,
        launcher.ORDER_RESTART,
        pool.TAKE_SPARES,
        pool.RETURN_SPARES,
        pool.FILL_POOL,
        seats.HOLD_SEATS,
        seats.BIND_JOB,
        seats.RELEASE_SEATS,
        seats.DELETE_SEATS,
        job.REQUEUE_JOB,
        job.EXCLUDE_NODES,
        job.START_JOB,
        job.RELEASE_JOB,
        job.ALLOW_NODES,
        gang.AWAIT_PROCESSES,
        gang.AWAIT_FIRST_STEP,
        repair.HOLD_NODE,
        repair.RESUME_NODE,
        repair.RESET_GPU,
        repair.REBOOT_NODE,
        repair.RUN_VALIDATION,
        repair.TEST_NETWORK,
        repair.AWAIT_PEERS,
        repair.OPEN_TICKET,
        repair.RELEASE_NODE,
        credit.CREDIT_TIME,
        weight.RAISE_WEIGHT,
        weight.RESTORE_WEIGHT,
    )
}
