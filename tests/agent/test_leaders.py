from __future__ import annotations

import pytest

from understudy_agent.leaders import HEARD_SECONDS, Leaders
from understudy_wire.leader import HeardLeader, header_of, leader_of

A, B = "http://a:7117", "http://b:7117"


def heard(leaders: Leaders, url: str, installation: str, term: int, at: float = 0.0) -> str:
    return leaders.note(header_of(installation, term), url, at)


def test_of_one_installation_the_newest_term_is_followed() -> None:
    leaders = Leaders()
    assert heard(leaders, A, "i", 10) == ""
    assert heard(leaders, B, "i", 11) == ""
    assert "has taken the lead from it" in heard(leaders, A, "i", 10, 1.0)
    assert heard(leaders, B, "i", 11, 2.0) == ""
    assert leaders.term == 11


def test_an_older_term_is_followed_again_once_the_newer_one_is_gone() -> None:
    """Such as of a copy that was restored on a host whose clock was behind."""
    leaders = Leaders()
    heard(leaders, B, "i", 11)
    assert heard(leaders, A, "i", 10, HEARD_SECONDS - 0.1)
    assert heard(leaders, A, "i", 10, HEARD_SECONDS) == ""


def test_the_agent_stays_with_its_installation_while_that_answers_and_names_both() -> None:
    leaders = Leaders()
    heard(leaders, A, "i", 10)
    assert f"of another installation than the control plane at {A}" in heard(leaders, B, "j", 2**50, 1.0)
    assert leaders.answering(2.0) == [HeardLeader("i", 10, A), HeardLeader("j", 2**50, B)]
    assert heard(leaders, A, "i", 10, HEARD_SECONDS) == ""
    assert leaders.answering(HEARD_SECONDS + 2) == [HeardLeader("i", 10, A)]
    assert heard(leaders, B, "j", 5, 2 * HEARD_SECONDS) == "", "the first one is gone for a minute"


def test_one_that_does_not_answer_is_reported_and_followed_for_a_minute() -> None:
    leaders = Leaders()
    heard(leaders, A, "i", 10)
    leaders.note_silent(A)
    assert heard(leaders, B, "j", 5, 1.0), "the first one may be back"
    both = [HeardLeader("i", 10, A), HeardLeader("j", 5, B)]
    assert leaders.answering(1.0) == both, "else the other one would change Slurm in a short pause of this one"
    assert leaders.answering(HEARD_SECONDS) == both[1:]
    assert heard(leaders, A, "i", 10, 2.0) == ""


def test_an_installation_in_place_of_another_one_is_followed_at_once() -> None:
    """A control plane with a new database answers where the one before did."""
    leaders = Leaders()
    heard(leaders, A, "i", 10)
    assert heard(leaders, A, "j", 5, 1.0) == ""
    assert leaders.answering(1.0) == [HeardLeader("j", 5, A)]


def test_an_agent_that_was_given_other_addresses_forgets_those_before() -> None:
    leaders = Leaders()
    heard(leaders, A, "i", 10)
    leaders.keep([B])
    assert heard(leaders, B, "j", 5, 1.0) == ""
    assert leaders.answering(1.0) == [HeardLeader("j", 5, B)]


@pytest.mark.parametrize(
    "header", ["", "i", "i x", " 5", "i -1", f"i {2**60}", "i\x1b 5", f"{'i' * 300} 5", "i ٣ 4", "nginx/1.2"]
)
def test_what_no_control_plane_sends_changes_nothing(header: str) -> None:
    leaders = Leaders()
    heard(leaders, A, "i", 10)
    assert leaders.note(header, B, 1.0) == ""
    assert leader_of(header, B) is None
    assert leaders.answering(1.0) == [HeardLeader("i", 10, A)]
