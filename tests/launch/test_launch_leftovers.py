"""When nothing is left of a launch that is over, and which nodes do not go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy_launcher.launch_leftovers import EndingSample, EndingState, judge_ending
from understudy_launcher.launch_over import MANY_SLOW_SECONDS

SEATS = ("a", "b", "c", "d")
OVER = EndingSample(SEATS, over_seconds=0.1)
WAIT = EndingState(False)
DONE = EndingState(True)
STUCK = "its ranks outlived SIGKILL for 4 s"
LATE = replace(OVER, over_seconds=4.0)
MOST = dict.fromkeys("abc", 0.0)


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (OVER, DONE),
        (replace(OVER, holding={"b": 0.0}), WAIT),
        (replace(LATE, holding={"b": 0.0}), EndingState(True, {"b": STUCK}, stuck=frozenset("b"))),
        (replace(LATE, holding={"b": 0.0}, keep_seconds=5.0), WAIT),
        (replace(LATE, holding={"b": 3.9}), EndingState(True, {"b": STUCK}, ask_slurm=True)),
        (replace(OVER, holding={"b": 0.0}, bad={"b": "Xid 79"}), WAIT),
        (replace(LATE, holding={"b": 0.0}, bad={"b": "Xid 79"}), EndingState(True, {"b": "Xid 79"})),
        (replace(OVER, holding={"b": 0.6}, bad={"b": "it is silent"}), EndingState(True, {"b": "it is silent"})),
        (replace(OVER, unusable={"b": "down", "spare": "down"}), EndingState(True, {"b": "down"})),
        (replace(OVER, disconnected={"b", "spare"}), EndingState(True, {"b": "its seat disconnected"})),
    ],
    ids=[
        "nothing is left",
        "ranks are left",
        "for too long",
        "they may leave by themselves",
        "their seat is silent",
        "a condemned node that answers",
        "for too long there",
        "a condemned node that is gone",
        "a node that went bad meanwhile",
        "a node that was lost meanwhile",
    ],
)
def test_old_ranks_are_waited_for_as_long_as_that_helps(sample: EndingSample, expected: EndingState) -> None:
    assert judge_ending(sample, kill_seconds=3) == expected


def test_slurm_is_asked_to_kill_where_only_silent_seats_are_left() -> None:
    silent = replace(OVER, over_seconds=0.6, holding={"b": 0.6})
    assert judge_ending(silent, kill_seconds=3) == EndingState(False, ask_slurm=True)
    assert judge_ending(replace(silent, holding={"b": 0.6, "c": 0.1}), kill_seconds=3) == WAIT


def test_ranks_slow_to_die_on_most_nodes_are_no_nodes_fault_for_a_while() -> None:
    slow = replace(LATE, holding=MOST)
    assert judge_ending(slow, kill_seconds=3) == EndingState(False, slow=("a", "b", "c"))
    given_up = judge_ending(replace(slow, over_seconds=MANY_SLOW_SECONDS + 1, slow_seconds=0.0), kill_seconds=3)
    assert given_up.done
    assert given_up.bad.keys() == given_up.stuck == set(MOST)


def test_who_is_left_of_most_has_its_whole_time_again() -> None:
    last = replace(LATE, over_seconds=20.0, holding={"b": 0.0}, slow_seconds=2.9)
    assert judge_ending(last, kill_seconds=3) == WAIT
    assert judge_ending(replace(last, slow_seconds=3.1), kill_seconds=3).bad == {
        "b": "its ranks outlived SIGKILL for 20 s"
    }


def test_a_step_ended_from_outside_is_no_fault_of_a_node() -> None:
    lost = replace(
        OVER, step_lost=True, disconnected=frozenset("abc"), bad=dict.fromkeys("abc", "its seat disconnected")
    )
    assert judge_ending(lost, kill_seconds=3) == WAIT, "srun may still end"
    assert judge_ending(replace(lost, step_ended=True), kill_seconds=3) == DONE
    assert judge_ending(replace(lost, step_ended=True, unusable={"b": "down"}), 3).bad == {"b": "its seat disconnected"}
    assert judge_ending(replace(lost, over_seconds=2.1), kill_seconds=3).bad.keys() == {"a", "b", "c"}


def test_a_failed_rank_leaves_the_control_plane_time_for_a_verdict() -> None:
    failed = replace(OVER, verdict_may_follow=True)
    assert judge_ending(failed, kill_seconds=3) == WAIT
    assert judge_ending(replace(failed, over_seconds=0.6), kill_seconds=3) == DONE
    assert judge_ending(replace(failed, unusable={"b": "Xid 79"}), kill_seconds=3).done


def test_when_several_seats_disconnect_at_once_others_may_follow() -> None:
    """Seats of a step that Slurm ends do not end in the same instant: others may report first that nothing is left."""
    lost = replace(OVER, disconnected={"a", "c"}, disconnected_seconds=0.1, bad={"a": "its seat disconnected"})
    assert judge_ending(lost, kill_seconds=3) == WAIT
    both = dict.fromkeys("ac", "its seat disconnected")
    assert judge_ending(replace(lost, disconnected_seconds=0.3), kill_seconds=3) == EndingState(True, both)
    assert judge_ending(replace(lost, disconnected={"a"}), kill_seconds=3).done, "one dead node is not waited for"
