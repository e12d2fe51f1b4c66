"""What would have shortened an incident."""

from __future__ import annotations

from understudy_controlplane.figures.hindsight import Course, hindsight
from understudy_controlplane.fleet.recovery import RecoveryKind

POOL, INSIDE = RecoveryKind.POOL_SWAP, RecoveryKind.ALLOCATION_SWAP


def parts(*courses: Course) -> list[str]:
    return [one.part for one in hindsight(courses)]


def test_the_longest_part_comes_first_and_short_ones_are_left_out() -> None:
    course = Course(POOL, detect=2.0, swap=10.0, start=30.0, communicator=50.0, restore=60.0, recompute=200.0)
    assert parts(course) == ["steps done again", "until its first step", "until its process groups were joined"]
    assert parts(Course(POOL, detect=0.5, swap=0.6)) == []
    assert parts() == []


def test_a_swap_from_the_pool_names_spares_of_the_allocation() -> None:
    (pool,), (inside,) = hindsight([Course(POOL, swap=10.0)]), hindsight([Course(INSIDE, swap=10.0)])
    assert "understudy run" in pool.what
    assert "launcher" in inside.what


def test_waiting_for_people_and_guards_is_named() -> None:
    course = Course(POOL, swap=5.0, approval=600.0, held_by={"fleet_budget": 300.0}, tries={"requeue_job": 3})
    assert parts(course) == ["until a person approved it", "held back by fleet budget"]
    assert parts(Course(POOL, swap=5.0, tries={"requeue_job": 3})) == [
        "until the gang had its nodes",
        "requeue_job took 3 tries",
    ]


def test_several_gangs_are_judged_together() -> None:
    assert parts(Course(POOL, detect=20.0), Course(POOL, detect=30.0, start=3.0)) == ["until it was found"] * 2
