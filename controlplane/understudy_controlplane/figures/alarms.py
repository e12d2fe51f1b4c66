"""Counts nodes that were taken out of service without need. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from understudy_controlplane.figures.outages import Outage
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.history import Transition
from understudy_controlplane.fleet.node import NodeState

AGAIN_SECONDS = 7 * DAY_SECONDS
"""A node that passes its validation and fails again within this time was faulty all the same."""

DOWN = frozenset(
    {
        NodeState.QUARANTINED,
        NodeState.REPAIRING,
        NodeState.MANUAL_REPAIR,
        NodeState.OPERATOR_HOLD,
        NodeState.FOREIGN_DRAIN,
    }
)
BACK = frozenset({NodeState.IN_SERVICE, NodeState.SUSPECT, NodeState.PROBATION, NodeState.RETIRED})
REPAIRED_IN = frozenset(
    {NodeState.REPAIRING, NodeState.MANUAL_REPAIR, NodeState.OPERATOR_HOLD, NodeState.FOREIGN_DRAIN}
)


@dataclass(frozen=True, slots=True)
class AlarmRow:
    rule: str
    quarantines: int
    disagreed: int  # an operator disagreed
    nothing_found: int  # it passed its validation without a repair, and did not fail again within a week

    @property
    def false_alarms(self) -> int:
        return self.disagreed + self.nothing_found


def by_node(transitions: Iterable[Transition]) -> dict[str, list[Transition]]:
    found: dict[str, list[Transition]] = {}
    for one in sorted(transitions, key=lambda one: one.at):
        found.setdefault(one.node, []).append(one)
    return found


def outages(transitions: Iterable[Transition], now: Mapping[str, tuple[NodeState, float]]) -> list[Outage]:
    """`now`: node → state, and since when: for nodes without a transition. Validation alone is no outage."""
    found: list[Outage] = []
    known = by_node(transitions)
    for node, of_node in known.items():
        begun = 0.0 if of_node[0].before in DOWN else None
        for one in of_node:
            if one.after in DOWN and begun is None:
                begun = one.at
            elif one.after in BACK and begun is not None:
                found.append(Outage(node, begun, one.at))
                begun = None
        if begun is not None:
            found.append(Outage(node, begun, None))
    found += [Outage(node, at, None) for node, (state, at) in now.items() if node not in known and state in DOWN]
    return found


def alarms(transitions: Iterable[Transition], verdicts: Mapping[int, bool]) -> list[AlarmRow]:
    """Alarms by rule, the most quarantines first. `verdicts`: decision → whether an operator agreed with it."""
    counts: dict[str, list[int]] = {}
    for of_node in by_node(transitions).values():
        for number, one in enumerate(of_node):
            if one.quarantines is None:
                continue
            of_rule = counts.setdefault(one.rule, [0, 0, 0])
            of_rule[0] += 1
            verdict = verdicts.get(one.quarantines)
            of_rule[1] += verdict is False
            of_rule[2] += verdict is None and _was_well(of_node[number + 1 :])
    rows = [AlarmRow(rule, *numbers) for rule, numbers in counts.items()]
    return sorted(rows, key=lambda row: (-row.quarantines, row.rule))


def _was_well(then: Sequence[Transition]) -> bool:
    """What became of a node after its quarantine."""
    back = next((number for number, one in enumerate(then) if one.after in BACK), None)
    if back is None or not any(one.after is NodeState.VALIDATING for one in then[:back]):
        return False
    repaired = any(one.after in REPAIRED_IN for one in then[:back])
    again = any(one.quarantines is not None and one.at - then[back].at <= AGAIN_SECONDS for one in then[back:])
    return not repaired and not again
