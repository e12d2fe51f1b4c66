"""How long a step may take. Pure."""

from __future__ import annotations

from understudy_controlplane.config import Config
from understudy_controlplane.decide.peers import ROUNDS_SECONDS
from understudy_controlplane.fleet.recovery import Plan, StepName, ValidationPlan
from understudy_controlplane.recover.step import Observation, Todo, Wait
from understudy_controlplane.recover.steps.repair import NETWORK_SECONDS, START_SECONDS


def timeout_seconds(step: StepName, observation: Observation, plan: Plan, config: Config) -> float:
    own = _own_timeout(step, plan, config)
    if own is not None:
        return own
    takes_long = isinstance(observation, Wait) and observation.may_take_long
    patient = takes_long or step in (StepName.AWAIT_PROCESSES, StepName.AWAIT_FIRST_STEP)
    # A gang whose start Slurm refuses begins by itself on its seats, when the delay after its requeue is over.
    patient |= step in (StepName.EXCLUDE_NODES, StepName.START_JOB) and isinstance(observation, Todo)
    policy = config.recovery
    if patient:
        return max(policy.first_step_timeout_seconds, config.hang.first_step_seconds)
    return policy.step_timeout_seconds


def _own_timeout(step: StepName, plan: Plan, config: Config) -> float | None:
    """Timeout of steps that take as long as what they run."""
    match step:
        case StepName.REBOOT_NODE:
            return config.repair.reboot_timeout_seconds
        case StepName.RESET_GPU:
            return config.repair.reset_timeout_seconds + START_SECONDS
        case StepName.RUN_VALIDATION:
            hours = plan.hours if isinstance(plan, ValidationPlan) else 0.0
            return config.validation.timeout_seconds + hours * 3600 + START_SECONDS
        case StepName.TEST_NETWORK | StepName.AWAIT_PEERS:
            wait_seconds = config.validation.network_wait_minutes * 60 + ROUNDS_SECONDS
            return wait_seconds + NETWORK_SECONDS + START_SECONDS
        case StepName.ORDER_RESTART:
            return config.recovery.launcher_timeout_seconds
    return None
