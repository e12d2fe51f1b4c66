"""Finds accepted nodes, and how fast each is beside the others. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median

from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.node import IN_REPAIR, NodeState, NodeView
from understudy_controlplane.fleet.operator import Request, Verb
from understudy_controlplane.fleet.recovery import (
    Recovery,
    RecoveryStatus,
    RepairAttempt,
    StepName,
    StepStatus,
    ValidationPlan,
)
from understudy_wire.stages import LOWER_IS_BETTER, StageResult, StageStatus


class Acceptance(StrEnum):
    ACCEPTED = "accepted"
    FAILED = "failed"
    UNDER_WAY = "under_way"
    NOT_TESTED = "not_tested"


ACCEPTED_STATES = (NodeState.IN_SERVICE, NodeState.PROBATION)
NODES_MIN = 3
"""Fewer have no median."""

BINS = (("A", 0.98), ("B", 0.95))
"""Name of a bin, and the least share of the fleet's median that a node reaches in each of its stages. Others are C."""


def progress(under_way: Recovery | None, request: Request | None, now: float) -> str:
    """Progress of a validation or burn-in that runs, or that was requested; empty: there is none."""
    if under_way is not None and isinstance(under_way.plan, ValidationPlan):
        return _of_running(under_way, under_way.plan, now)
    if request is not None and request.verb in (Verb.BURN_IN, Verb.VALIDATE):
        return f"its {request.verb.value}, asked for by {request.by}, waits for the node to be idle and for its turn"
    return ""


def _of_running(under_way: Recovery, plan: ValidationPlan, now: float) -> str:
    what = "burn-in" if plan.hours else "validation"
    if (step := under_way.step(StepName.TEST_NETWORK)) and under_way.begun(StepName.TEST_NETWORK):
        tested = step.status is StepStatus.DONE
        return "its network was tested; others may need it as a peer" if tested else "its network is tested"
    step = under_way.step(StepName.RUN_VALIDATION)
    if step is None or step.intended_at is None:
        return f"its {what} begins"
    if step.status is StepStatus.DONE:
        return f"its {what} is over, and its network is tested when its peers are there"
    hours = max(0.0, now - step.intended_at) / HOUR_SECONDS
    return f"its {what} has run for {hours:.1f} h{f' of {plan.hours:g}' if plan.hours else ''}"


def acceptance(
    node: NodeView, results: Sequence[StageResult], last: RepairAttempt | None, under_way: str = ""
) -> tuple[Acceptance, str]:
    """`last`: its newest validation. `under_way`: its progress. The reason is empty for a node that is accepted."""
    if under_way or node.state in IN_REPAIR or (last is not None and last.status is RecoveryStatus.RUNNING):
        return Acceptance.UNDER_WAY, under_way or f"it is {node.state.value.replace('_', ' ')}"
    if last is None and not results:
        return Acceptance.NOT_TESTED, "it has not been validated"
    if last is not None and last.status is not RecoveryStatus.SUCCEEDED:
        found = Acceptance.NOT_TESTED if last.never_began else Acceptance.FAILED
        return found, last.outcome or f"its validation is {last.status.value}"
    failed = [one.words for one in results if one.status is StageStatus.FAILED]
    if failed:
        return Acceptance.FAILED, "; ".join(failed)
    if node.state not in ACCEPTED_STATES:
        return Acceptance.FAILED, f"it passed, and is {node.state.value.replace('_', ' ')} now"
    return Acceptance.ACCEPTED, ""


def bins(measured: Mapping[str, Sequence[StageResult]]) -> dict[str, str]:
    """Node → its bin, by the stage in which it is furthest behind the others. Nodes without a measurement are left
    out.
    """
    values: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for node, results in measured.items():
        for one in results:
            if one.value and one.stage not in LOWER_IS_BETTER:
                values[one.stage][node] = one.value
    worst: dict[str, float] = {}
    for of_stage in values.values():
        if len(of_stage) >= NODES_MIN:
            middle = median(of_stage.values())
            for node, value in of_stage.items():
                worst[node] = min(worst.get(node, float("inf")), value / middle)
    return {node: next((name for name, least in BINS if share >= least), "C") for node, share in worst.items()}
