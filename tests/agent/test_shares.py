"""Room in shares: a user or job that comes late has one too."""

from __future__ import annotations

import pytest

from understudy_agent.shares import Arrivals, NoRoomError, Pace, Shares


def test_a_late_user_gets_a_share_of_a_full_room() -> None:
    room: Shares[str] = Shares(8, 8)
    for number in range(8):
        assert room.enter(f"a{number}", 1, 7) is None
    displaced = []
    for number in range(4):
        displaced.append(room.enter(f"b{number}", 2, 8))
    assert displaced == ["a7", "a6", "a5", "a4"], "the newest ones go"
    with pytest.raises(NoRoomError):
        room.enter("b4", 2, 8)
    assert len(room) == 8


def test_many_users_leave_each_a_share() -> None:
    room: Shares[int] = Shares(12, 6)
    for user in range(1, 7):
        for number in range(6):
            try:
                room.enter(user * 10 + number, user, 1)
            except NoRoomError:
                break
    assert sorted(member // 10 for member in room) == [user for user in range(1, 7) for _ in range(2)]


def test_a_late_job_of_a_user_gets_a_share_of_what_the_user_has() -> None:
    room: Shares[str] = Shares(100, 4)
    for number in range(4):
        room.enter(f"a{number}", 1, 7)
    assert room.enter("b0", 1, 8) == "a3"
    assert room.enter("other", 2, 9) is None
    with pytest.raises(NoRoomError):
        room.enter("a9", 1, 7)


def test_who_leaves_and_who_enters_again_takes_no_further_room() -> None:
    room: Shares[str] = Shares(2, 2)
    for _ in range(3):
        assert room.enter("a", 1, 7) is None
    room.leave("a")
    room.leave("a")
    assert len(room) == 0


def test_a_user_may_come_in_a_burst_and_then_at_a_pace_and_delays_no_other() -> None:
    pace = Pace(burst=3, each_second=2.0)
    assert [pace.admits(1, 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert pace.admits(2, 10.0)
    assert [pace.admits(1, 11.0) for _ in range(3)] == [True, True, False]
    assert [pace.admits(1, 99.0) for _ in range(4)] == [True, True, True, False]
    for user in range(5000):
        assert pace.admits(user, 100.0)


def test_of_arrivals_the_oldest_of_the_same_user_go_first() -> None:
    room: Arrivals[str] = Arrivals(4, 3)
    assert [room.enter(name, 1) for name in ("a", "b", "c", "d")] == [None, None, None, "a"]
    assert [room.enter(name, 2) for name in ("x", "y")] == [None, "b"], "the user that has most makes room"


def test_who_comes_too_often_waits_and_all_that_come_have_their_turn() -> None:
    pace = Pace(burst=2, each_second=4.0)
    assert [pace.wait_seconds(1, 10.0) for _ in range(5)] == [0.0, 0.0, 0.25, 0.5, 0.75]
    assert pace.wait_seconds(2, 10.0) == 0.0
    assert pace.wait_seconds(1, 11.0) == 0.0
