"""When a launch can go, and what stands in its way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy_launcher.launch_start import Next, SeatingSample, SeatingState, attempts_max, judge_seating, patience

SEATS = ("a", "b", "c")
EIGHT = dict.fromkeys(SEATS, 8)
ALL_THERE = SeatingSample(SEATS, age_seconds=0.5, gpus=EIGHT, answered=True)
B_ABSENT = replace(ALL_THERE, gpus={"a": 8, "c": 8}, absent=("b",))
SPARE_ABSENT = replace(ALL_THERE, absent=("spare",))
NO_SEATS = SeatingSample(SEATS, age_seconds=0.5, absent=SEATS)
XID = {"b": "Xid 79"}
NO_SEAT = {"b": "no seat there after 9.0 s"}


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (ALL_THERE, SeatingState(Next.GO)),
        (replace(ALL_THERE, bad=XID), SeatingState(Next.REPLACE, XID)),
        (B_ABSENT, SeatingState(Next.WAIT)),
        (replace(B_ABSENT, age_seconds=9.0), SeatingState(Next.REPLACE, NO_SEAT, ("b",))),
        (replace(B_ABSENT, age_seconds=9.0, bad=XID), SeatingState(Next.REPLACE, XID, ("b",))),
        (replace(B_ABSENT, absent=()), SeatingState(Next.AGAIN)),
        (SPARE_ABSENT, SeatingState(Next.WAIT)),
        (replace(SPARE_ABSENT, age_seconds=9.0), SeatingState(Next.AGAIN, barred=("spare",))),
        (replace(SPARE_ABSENT, srun_status=1), SeatingState(Next.AGAIN, barred=("spare",))),
        (replace(NO_SEATS, srun_status=1), SeatingState(Next.WAIT)),
        (replace(NO_SEATS, srun_status=1, age_seconds=2.1), SeatingState(Next.STEP_FAILED)),
        (replace(NO_SEATS, srun_status=1, age_seconds=2.1, bad=XID), SeatingState(Next.REPLACE, XID)),
    ],
    ids=[
        "all are there",
        "a node is bad",
        "a node has not answered",
        "for too long",
        "a bad one for too long",
        "a node has no part in the step: it was condemned at its start, and is not any more",
        "a spare has not answered",
        "a spare for too long",
        "srun gave up on a spare",
        "srun has just failed",
        "srun has failed",
        "srun has failed of a bad node",
    ],
)
def test_a_launch_goes_when_all_nodes_of_its_step_have_answered(sample: SeatingSample, expected: SeatingState) -> None:
    assert judge_seating(sample, patience_seconds=5, one_rank_a_gpu=True) == expected


def test_a_node_that_shows_fewer_gpus_than_most_is_replaced_where_their_number_counts() -> None:
    fewer = replace(ALL_THERE, gpus={**EIGHT, "b": 7})
    found = judge_seating(fewer, patience_seconds=5, one_rank_a_gpu=True)
    assert found.next is Next.REPLACE
    assert found.bad == {"b": "it shows 7 GPUs, most others 8; see --procs-per-node"}
    assert judge_seating(fewer, patience_seconds=5, one_rank_a_gpu=False) == SeatingState(Next.GO)


def test_nodes_are_given_the_time_that_they_needed_before() -> None:
    assert patience(60, None) == 60
    assert patience(60, 4.0) == 12
    assert patience(60, 0.1) == 3
    assert patience(60, 40.0) == 60


def test_a_gang_that_ran_is_not_given_up_as_soon_as_one_that_never_did() -> None:
    assert attempts_max(launch=0) < attempts_max(launch=1)
