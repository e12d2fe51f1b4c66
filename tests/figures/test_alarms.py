"""Quarantines without need, and times when nodes were out of service."""

from __future__ import annotations

from understudy_controlplane.figures.alarms import AlarmRow, alarms, outages
from understudy_controlplane.figures.outages import Outage
from understudy_controlplane.fleet.history import Transition
from understudy_controlplane.fleet.node import NodeState

S = NodeState
DAY = 86_400.0


def story(node: str, *changes: tuple[float, NodeState], rule: str = "xid.79") -> list[Transition]:
    """Each change to quarantined is a decision with the number of its time."""
    found, before = [], S.IN_SERVICE
    for at, after in changes:
        number = int(at) if after is S.QUARANTINED else None
        found.append(Transition(at, node, before, after, rule, number))
        before = after
    return found


WELL = ((10.0, S.QUARANTINED), (20.0, S.VALIDATING), (30.0, S.PROBATION))
REPAIRED = ((10.0, S.QUARANTINED), (15.0, S.REPAIRING), (20.0, S.VALIDATING), (30.0, S.PROBATION))


def test_a_node_that_was_well_without_a_repair_was_a_false_alarm() -> None:
    rows = alarms([*story("n1", *WELL), *story("n2", *REPAIRED)], {})
    assert rows == [AlarmRow("xid.79", 2, 0, 1)]
    assert rows[0].false_alarms == 1


def test_a_node_that_fails_again_within_a_week_was_none() -> None:
    soon, late = (30.0 + 6 * DAY, S.QUARANTINED), (30.0 + 8 * DAY, S.QUARANTINED)
    assert alarms(story("n1", *WELL, soon), {}) == [AlarmRow("xid.79", 2, 0, 0)]
    assert alarms(story("n1", *WELL, late), {}) == [AlarmRow("xid.79", 2, 0, 1)]


def test_what_people_answered_counts_before_that() -> None:
    transitions = [*story("n1", *WELL, rule="a"), *story("n2", *REPAIRED[:2], rule="b")]
    assert alarms(transitions, {10: True}) == [AlarmRow("a", 1, 0, 0), AlarmRow("b", 1, 0, 0)]
    assert alarms(transitions, {10: False}) == [AlarmRow("a", 1, 1, 0), AlarmRow("b", 1, 1, 0)]


def test_a_node_that_is_not_back_yet_is_not_judged() -> None:
    assert alarms(story("n1", *WELL[:2]), {}) == [AlarmRow("xid.79", 1, 0, 0)]
    released = ((10.0, S.QUARANTINED), (30.0, S.IN_SERVICE))
    assert alarms(story("n1", *released), {}) == [AlarmRow("xid.79", 1, 0, 0)]


def test_an_outage_lasts_from_the_quarantine_to_the_return() -> None:
    now = {"n1": (S.PROBATION, 30.0), "n2": (S.QUARANTINED, 5.0), "n3": (S.IN_SERVICE, 0.0), "n4": (S.RETIRED, 1.0)}
    assert outages(story("n1", *REPAIRED), now) == [Outage("n1", 10.0, 30.0), Outage("n2", 5.0, None)]


def test_a_validation_of_a_node_in_service_is_no_outage_and_one_from_before_is() -> None:
    spare = story("n1", (10.0, S.VALIDATING), (20.0, S.IN_SERVICE))
    before = [Transition(10.0, "n2", S.MANUAL_REPAIR, S.VALIDATING), Transition(20.0, "n2", S.VALIDATING, S.PROBATION)]
    assert outages([*spare, *before], {}) == [Outage("n2", 0.0, 20.0)]
