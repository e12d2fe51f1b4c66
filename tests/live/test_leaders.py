from __future__ import annotations

from typing import Any

import pytest

from understudy_controlplane.decide import leadership
from understudy_controlplane.decide.leadership import SURE_SECONDS, WORDS_SECONDS
from understudy_controlplane.fleet.holder import Leader
from understudy_controlplane.live import leaders as live_leaders
from understudy_controlplane.live.leaders import Leaders
from understudy_wire.leader import HeardLeader

OWN, OTHER = HeardLeader("i", 10, "http://a"), HeardLeader("j", 3, "http://b")


def test_the_newest_report_of_a_node_replaces_those_before() -> None:
    leaders = Leaders(Leader("i", 10))
    for at in (0.0, SURE_SECONDS):
        assert leaders.note("n1", [OWN, OTHER], at) == ""
    assert leaders.other(SURE_SECONDS) is not None
    leaders.note("n1", [OWN], SURE_SECONDS)
    assert leaders.other(SURE_SECONDS) is None
    leaders.note("n1", [OWN, OTHER], SURE_SECONDS + 1)
    assert leaders.other(SURE_SECONDS + 2) is None, "it is named since a second"


def test_few_nodes_do_not_speak_for_many_that_are_silent() -> None:
    """Such as where most of the cluster cannot be reached, and one node lies."""
    leaders = Leaders(Leader("i", 10))
    for number in range(10):
        leaders.note(f"n{number}", [OWN], 0.0)
    for at in (200.0, 200.0 + SURE_SECONDS):
        leaders.note("n1", [OWN, OTHER], at)
    found = leaders.other(200.0 + SURE_SECONDS)
    assert found is not None
    assert not found.is_believed, "one of ten"


def test_the_answer_is_not_worked_out_for_each_report(monkeypatch: pytest.MonkeyPatch) -> None:
    leaders = Leaders(Leader("i", 10))
    for number in range(10):
        leaders.note(f"n{number}", [OWN, OTHER] if number == 1 else [OWN], 0.0)
    counted: list[float] = []

    def other_leader(*given: Any) -> Any:
        counted.append(given[-1])
        return leadership.other_leader(*given)

    monkeypatch.setattr(live_leaders, "other_leader", other_leader)
    for number in range(1000):
        leaders.note(f"n{number % 10}", [OWN, OTHER] if number % 10 == 1 else [OWN], 0.1)
        leaders.other(0.1)
    assert len(counted) == 1
    leaders.other(WORDS_SECONDS + 1)
    assert leaders.other(WORDS_SECONDS + 1) is None
    assert len(counted) == 2, "a node that is gone costs no more"


def test_a_node_that_reports_no_more_has_no_vote() -> None:
    leaders = Leaders(Leader("i", 10))
    leaders.note("n1", [OWN], 0.0)
    leaders.note("n2", [OWN, OTHER], 1.0)
    found = leaders.other(WORDS_SECONDS)
    assert found is not None
    assert not found.is_believed, "one of two"
    assert leaders.other(WORDS_SECONDS + 1) is None


def test_a_node_that_follows_another_control_plane_is_distinguished_from_one_that_only_names_it() -> None:
    leaders = Leaders(Leader("i", 10))
    assert leaders.note("n1", [OTHER, OWN], 0.0) == OTHER.url
    assert leaders.note("n1", [OWN, OTHER], 0.0) == ""
    assert leaders.note("n1", [HeardLeader("i", 9, "http://b"), OWN], 0.0) == "", "that one has lost the lead"
    assert leaders.note("n1", [], 0.0) == "", "it has heard of none yet"
