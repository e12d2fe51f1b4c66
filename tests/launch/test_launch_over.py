"""When a launch is over, and for whose sake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy_launcher.launch_over import (
    HOOK_STEP_SEEN_SECONDS,
    MANY_SILENT_SECONDS,
    LaunchEnd,
    RunningSample,
    launch_end,
)
from understudy_launcher.launch_result import Failure

SEATS = ("a", "b", "c", "d")
WELL = RunningSample(SEATS, ranks=4, ended_well=0, failures=(), age_seconds=3600)
FAILURE = Failure("b", 1, 1, 1)
OTHER = Failure("c", 2, 2, 1)
ALL = tuple(Failure(node, rank, rank, 2) for rank, node in enumerate(SEATS))


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (WELL, None),
        (replace(WELL, ended_well=3), None),
        (replace(WELL, ended_well=4), LaunchEnd({})),
        (replace(WELL, condemned={"b": "Xid 79"}), LaunchEnd({"b": "Xid 79"})),
        (replace(WELL, condemned={"e": "a spare"}), None),
        (replace(WELL, failures=(FAILURE,)), None),
        (replace(WELL, failures=(FAILURE,), first_failure_age_seconds=0.3), LaunchEnd({})),
        (replace(WELL, failures=(FAILURE,), first_failure_age_seconds=0.3, age_seconds=5), None),
        (
            replace(WELL, failures=(FAILURE,), first_failure_age_seconds=0.3, age_seconds=5, progressed=True),
            LaunchEnd({}),
        ),
        (replace(WELL, failures=(FAILURE,), first_failure_age_seconds=2.1, age_seconds=5), LaunchEnd({})),
        (replace(WELL, failures=ALL, age_seconds=1), LaunchEnd({})),
        (replace(WELL, failures=(FAILURE,), condemned={"c": "gone"}), LaunchEnd({"c": "gone"})),
        (replace(WELL, failures=(FAILURE, OTHER), ended_well=2), None),
        (replace(WELL, failures=(FAILURE, OTHER), ended_well=2, first_failure_age_seconds=0.3), LaunchEnd({})),
    ],
)
def test_when_a_launch_is_over(sample: RunningSample, expected: LaunchEnd | None) -> None:
    assert launch_end(sample, silence_seconds=3) == expected


STILL = replace(WELL, progressed=True, stalled_seconds=6.0)


@pytest.mark.parametrize(
    ("sample", "hang_seconds", "expected"),
    [
        (STILL, 5, LaunchEnd({}, hung_seconds=6.0)),
        (STILL, 7, None),
        (STILL, 0, None),
        (replace(STILL, failures=(FAILURE,)), 5, None),
        (replace(STILL, condemned={"c": "gone"}), 5, LaunchEnd({"c": "gone"})),
        (replace(STILL, silent_seconds=dict.fromkeys("abc", 5.0)), 5, None),
    ],
    ids=["hung", "slow", "not asked for", "a rank has failed", "a node is bad", "the network is cut"],
)
def test_a_launch_without_new_steps_is_over_where_that_was_asked_for(
    sample: RunningSample, hang_seconds: float, expected: LaunchEnd | None
) -> None:
    assert launch_end(sample, silence_seconds=3, hang_seconds=hang_seconds) == expected


def test_a_silent_node_is_gone() -> None:
    found = launch_end(replace(WELL, silent_seconds={"a": 0.1, "b": 3.2}), silence_seconds=3)
    assert found == LaunchEnd({"b": "no message from its seat for 3.2 s"})


@pytest.mark.parametrize(
    ("silent_seconds", "step_age_seconds", "gone"),
    [(8.0, 0.5, False), (8.0, 3.5, True), (3.2, 2.5, True), (1000.0, 0.5, False), (8.0, None, True)],
    ids=["steps go on", "they have stopped", "the last one came before", "for long", "no steps are reported"],
)
def test_a_silent_node_is_not_gone_while_the_gang_makes_steps(
    silent_seconds: float, step_age_seconds: float | None, gone: bool
) -> None:
    """A synchronous gang makes none without it: only the management network is away."""
    sample = replace(WELL, silent_seconds={"b": silent_seconds}, step_age_seconds=step_age_seconds)
    assert (launch_end(sample, silence_seconds=3) is not None) is gone


@pytest.mark.parametrize(
    ("silent_seconds", "step_age_seconds", "gone"),
    [(61.0, 20.0, False), (61.0, 40.0, True), (10.0, 1.0, True)],
    ids=["made since it fell silent", "nothing was heard since", "perhaps made before it fell silent"],
)
def test_steps_that_the_hook_reports_are_known_later(
    silent_seconds: float, step_age_seconds: float, gone: bool
) -> None:
    sample = replace(
        WELL,
        silent_seconds={"b": silent_seconds},
        step_age_seconds=step_age_seconds,
        step_seen_seconds=HOOK_STEP_SEEN_SECONDS,
    )
    assert (launch_end(sample, silence_seconds=3) is not None) is gone


@pytest.mark.parametrize(
    ("silent", "seconds", "replaceable", "gone"),
    [
        ("ab", 10.0, 2, True),
        ("ab", 10.0, 1, False),
        ("ab", MANY_SILENT_SECONDS + 1, 1, True),
        ("a", 10.0, 0, False),
        ("a", MANY_SILENT_SECONDS + 1, 0, True),
    ],
)
def test_silence_alone_does_not_cost_the_allocation_at_once(
    silent: str, seconds: float, replaceable: int, gone: bool
) -> None:
    """32 of 1,024 seats were silent for 3 s, the job had 8 spares: it was requeued, although its ranks went on."""
    sample = replace(
        WELL, seats=tuple("abcdefgh"), silent_seconds=dict.fromkeys(silent, seconds), replaceable=replaceable
    )
    assert (launch_end(sample, silence_seconds=3) is not None) is gone


RACKS = {"a": ["rack 1", "hall"], "b": ["rack 1", "hall"], "c": ["rack 2", "hall"], "d": ["rack 3", "hall"]}


@pytest.mark.parametrize(
    ("silent", "gone"),
    [("ab", False), ("a", True), ("ac", True), ("c", True)],
    ids=["all of a rack", "one of a rack", "of two racks", "the only one of its rack"],
)
def test_nodes_of_one_domain_that_fall_silent_together_are_its_network(silent: str, gone: bool) -> None:
    sample = replace(WELL, silent_seconds=dict.fromkeys(silent, 10.0), replaceable=4, domains=RACKS)
    assert (launch_end(sample, silence_seconds=3) is not None) is gone
    late = replace(sample, silent_seconds=dict.fromkeys(silent, MANY_SILENT_SECONDS + 1))
    assert launch_end(late, silence_seconds=3) is not None


def test_another_witness_condemns_a_silent_node_at_once() -> None:
    sample = replace(
        WELL, silent_seconds=dict.fromkeys("ab", 10.0), replaceable=0, condemned={"a": "Slurm shows it as DOWN"}
    )
    assert launch_end(sample, silence_seconds=3) == LaunchEnd({"a": "Slurm shows it as DOWN"})


def test_most_of_the_gang_silent_is_the_network_for_a_while() -> None:
    silent = replace(WELL, silent_seconds=dict.fromkeys("abc", 10.0))
    assert launch_end(silent, silence_seconds=3) is None
    late = replace(WELL, silent_seconds=dict.fromkeys("abc", MANY_SILENT_SECONDS + 1))
    assert launch_end(late, silence_seconds=3) is not None


def test_the_only_node_of_a_gang_can_fall_silent() -> None:
    alone = RunningSample(("a",), 1, 0, (), 3600, silent_seconds={"a": 4.0})
    assert launch_end(alone, silence_seconds=3) == LaunchEnd({"a": "no message from its seat for 4.0 s"})
