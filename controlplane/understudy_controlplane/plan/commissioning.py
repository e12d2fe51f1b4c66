"""Which nodes are accepted, and how fast each is beside the others. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median

from understudy_agent.stages import LOWER_IS_BETTER, StageResult, StageStatus
from understudy_controlplane.fleet.node import IN_REPAIR, NodeState, NodeView
from understudy_controlplane.fleet.recovery import RecoveryStatus, RepairAttempt


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


def acceptance(node: NodeView, results: Sequence[StageResult], last: RepairAttempt | None) -> tuple[Acceptance, str]:
    """`last`: its newest validation. The reason is empty for a node that is accepted."""
    if node.state in IN_REPAIR or (last is not None and last.status is RecoveryStatus.RUNNING):
        return Acceptance.UNDER_WAY, f"it is {node.state.value.replace('_', ' ')}"
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
