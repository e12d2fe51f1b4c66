"""When a control plane takes the lead, and when it may change something in Slurm."""

from __future__ import annotations

import pytest

from understudy_controlplane.decide.leadership import (
    CALL_SECONDS,
    LEASE_SECONDS,
    MISSED_SECONDS,
    RENEWAL_SECONDS,
    SURE_SECONDS,
    Lead,
    Lease,
    Sighting,
    StandBy,
    Word,
    is_other,
    look,
    other_leader,
    stance,
)
from understudy_controlplane.fleet.holder import Holder, Leader
from understudy_wire.leader import HeardLeader

A = Holder(term=7, renewed_at=1000.0, url="a:7117")


def test_a_leader_that_renews_is_left_alone() -> None:
    seen = look(None, A, 10.0)
    for i in range(1, 100):
        now = 10.0 + i * RENEWAL_SECONDS
        seen = look(seen, Holder(7, 1000.0 + i * RENEWAL_SECONDS, "a:7117"), now)
        assert stance(seen, now, session_ended=False) == StandBy()


def test_one_that_renews_no_more_is_replaced_when_its_lease_is_over() -> None:
    """The time that the leader wrote is compared with itself only."""
    seen = look(look(None, A, 10.0), A, 11.5)
    assert seen == Sighting(A, 10.0)
    assert stance(seen, 11.99, session_ended=False) == StandBy()
    assert stance(seen, 12.0, session_ended=False) == Lead(10.0 + LEASE_SECONDS + CALL_SECONDS)


def test_one_whose_session_ended_is_replaced_once_it_misses_renewals_and_may_still_have_called_slurm() -> None:
    """One that lost its session alone renews through another, as does a standby that has just taken the lead."""
    assert stance(Sighting(A, 10.0), 10.0 + MISSED_SECONDS - 0.1, session_ended=True) == StandBy()
    assert stance(Sighting(A, 10.0), 10.0 + MISSED_SECONDS, session_ended=True) == Lead(14.0)


@pytest.mark.parametrize("holder", [None, Holder(7, None, "a:7117")])
def test_nothing_is_waited_for_where_the_lead_was_given_up_or_there_was_none(holder: Holder | None) -> None:
    assert stance(Sighting(holder, 10.0), 10.3, session_ended=True) == Lead(10.3)
    assert stance(Sighting(holder, 10.0), 10.3, session_ended=False) == StandBy()


def test_the_last_call_of_a_frozen_leader_is_over_before_the_first_of_the_next() -> None:
    """Whenever the standby sees the last renewal, and however its clock stands."""
    begun = 5000.0
    for delay in (0.0, 0.3, 1.9):
        last_call_ends = begun + LEASE_SECONDS + CALL_SECONDS
        found = stance(Sighting(A, begun + delay), begun + delay + LEASE_SECONDS, session_ended=False)
        assert isinstance(found, Lead)
        assert found.calls_from >= last_call_ends


def test_a_leader_acts_within_its_lease_alone() -> None:
    lease = Lease(term=7, renewed_at=10.0, calls_from=0.0)
    assert lease.objection(11.9) == ""
    assert "has not confirmed for 2.0 s" in lease.objection(12.0)
    assert "just now" in Lease(8, 10.0, calls_from=12.5).objection(11.0)


def test_nodes_are_refused_once_the_next_leader_may_have_begun() -> None:
    lease = Lease(term=7, renewed_at=10.0, calls_from=0.0)
    assert not lease.is_cut_off(10.0 + LEASE_SECONDS + CALL_SECONDS - 0.1)
    assert lease.is_cut_off(10.0 + LEASE_SECONDS + CALL_SECONDS)
    assert Lease(0, float("-inf"), 0.0).is_cut_off(10.0)


def test_a_process_that_was_frozen_knows_by_its_first_look_at_the_clock() -> None:
    lease = Lease(term=7, renewed_at=10.0, calls_from=0.0)
    assert not lease.is_valid(10.0 + 3600)


OWN = Leader("i", 10)
OTHER, NEWER = HeardLeader("j", 3, "http://b"), HeardLeader("i", 11, "http://b")


def test_an_older_term_of_this_installation_has_lost_the_lead_and_any_other_installation_is_another_leader() -> None:
    older, same = HeardLeader("i", 9, "http://b"), HeardLeader("i", 10, "http://a")
    assert [is_other(one, OWN) for one in (older, same, NEWER, OTHER)] == [False, False, True, True]
    assert not is_other(OTHER, Leader()), "a control plane that names itself to no agent cannot compare"


@pytest.mark.parametrize(
    ("naming", "agents", "is_believed"), [(1, 1, True), (1, 2, False), (50, 100, False), (51, 100, True)]
)
def test_more_than_half_of_the_agents_have_to_agree(naming: int, agents: int, is_believed: bool) -> None:
    found = other_leader([Word(f"n{i:03}", OTHER, 0.0) for i in range(naming)], agents, OWN, SURE_SECONDS)
    assert found is not None
    assert found.is_believed is is_believed
    assert (
        f"http://b also leads here, with a database of its own, as {naming} of {agents} agents report (n000"
        in found.words
    )


def test_no_more_than_three_of_the_nodes_that_report_it_are_named() -> None:
    found = other_leader([Word(f"n{i}", OTHER, 0.0) for i in (5, 3, 4, 1)], 9, OWN, SURE_SECONDS)
    assert found is not None
    assert "as 4 of 9 agents report (n1, n3, n4 and 1 more): " in found.words


def test_agents_that_name_the_control_plane_that_this_one_replaced_are_not_believed_at_once() -> None:
    assert other_leader([Word("n1", OTHER, 100.0)], 1, OWN, 100.0 + SURE_SECONDS - 0.1) is None


def test_a_newer_term_of_this_installation_is_named_with_it() -> None:
    found = other_leader([Word("n1", NEWER, 0.0)], 1, OWN, SURE_SECONDS)
    assert found is not None
    assert "has taken the lead of this installation, with term 11" in found.words


def test_a_text_that_is_no_address_is_not_shown_to_people() -> None:
    word = Word("n1", HeardLeader("j", 3, "ignore this and run `rm -rf /`"), 0.0)
    found = other_leader([word], 1, Leader("i", 10), SURE_SECONDS)
    assert found is not None
    assert "rm -rf" not in found.words
