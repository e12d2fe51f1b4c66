"""The table: what follows from the end of a launch."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests import REPOSITORY
from understudy_launcher.decide import TABLE, Action, Cause, Decision, decide
from understudy_launcher.launch import DISCONNECTED
from understudy_launcher.launch_result import Ended, Failure, History, OutOfSpares, Rules, add_earlier_allocations
from understudy_wire.facts import LaunchCause

SEATS = ("a", "b", "c", "d")
RULES = Rules(nodes_min=4)
DEAD = {"b": "its seat disconnected"}


def failed(node: str, status: int = 1) -> Failure:
    rank = SEATS.index(node) if node in SEATS else 1
    return Failure(node, rank, rank, status)


def ended(**changes: object) -> Ended:
    """One rank a node; b's failed after an hour, the others were well."""
    usual = Ended(0, SEATS, 3600.0, progressed=False, failures=(failed("b"),), running=3)
    return replace(usual, **changes)  # type: ignore[arg-type]


ALIKE = tuple(failed(node, 2) for node in SEATS)

LIKE_A_PEER = tuple(failed(node, 1) for node in reversed(SEATS))

CASES: list[tuple[str, Ended, list[str], Rules, str, Action, tuple[str, ...], int]] = [
    ("done", ended(failures=(), running=0), ["e"], RULES, "L10", Action.FINISH, (), 0),
    ("stopping", ended(stopping="warned"), ["e"], RULES, "L20", Action.FINISH, (), 1),
    ("stopping, and a node is lost", ended(failures=(), running=3, stopping="warned", bad=DEAD), ["e"], RULES,
     "L20", Action.FINISH, (), 75),
    ("stopping, and ranks failed because a node was lost", ended(stopping="warned", bad=DEAD), ["e"], RULES, "L20",
     Action.FINISH, (), 75),
    ("stopping, and the step was ended", ended(failures=(), running=4, stopping="warned"), [], RULES, "L20",
     Action.FINISH, (), 75),
    ("done, on a node that is bad", ended(failures=(), running=0, bad=DEAD), ["e"], RULES, "L10", Action.FINISH, (),
     0),
    ("done after a warning", ended(failures=(), running=0, stopping="warned"), [], RULES, "L10", Action.FINISH, (),
     0),
    ("cannot start", ended(failures=ALIKE, running=0, age_seconds=2), ["e"], RULES, "L30", Action.FINISH, (), 2),
    ("alike, as because of a peer", ended(failures=LIKE_A_PEER, running=0, age_seconds=2), ["e"], RULES, "L40",
     Action.RELAUNCH, ("a", "b", "c", "e"), 0),
    ("alike, and no spare to try it with", ended(failures=LIKE_A_PEER, running=0, age_seconds=2), [], RULES, "L30",
     Action.FINISH, (), 1),
    ("alike, in a later launch, and no spare to try it with", ended(launch=1, failures=LIKE_A_PEER, running=0,
     age_seconds=2), [], RULES, "L130", Action.RELAUNCH, SEATS, 0),
    ("alike, and one launch is all that is allowed", ended(failures=LIKE_A_PEER, running=0, age_seconds=2), ["e"],
     replace(RULES, launches_without_progress_max=1), "L30", Action.FINISH, (), 1),
    ("alike, but late", ended(failures=ALIKE, running=0), ["e"], RULES, "L130", Action.RELAUNCH, SEATS, 0),
    ("one is not alike", ended(failures=ALIKE[:3], running=1, age_seconds=2), [], RULES, "L130", Action.RELAUNCH,
     SEATS, 0),
    ("alike, but a node is dead", ended(failures=ALIKE, running=0, age_seconds=2, bad=DEAD), ["e"], RULES, "L50",
     Action.RELAUNCH, ("a", "e", "c", "d"), 0),
    ("a dead node", ended(bad=DEAD), ["e", "f"], RULES, "L50", Action.RELAUNCH, ("a", "e", "c", "d"), 0),
    ("the first node", ended(bad={"a": "Xid 79"}), ["e"], RULES, "L50", Action.RELAUNCH, ("e", "b", "c", "d"), 0),
    ("two nodes", ended(bad={"a": "x", "d": "y"}), ["e", "f"], RULES, "L50", Action.RELAUNCH, ("e", "b", "c", "f"),
     0),
    ("pool", ended(bad=DEAD), [], RULES, "L80", Action.WAIT_FOR_REQUEUE, (), 0),
    ("fail", ended(bad=DEAD), [], replace(RULES, when_out_of_spares=OutOfSpares.FAIL), "L90", Action.FAIL, (), 0),
    ("wait", ended(bad=DEAD), [], replace(RULES, when_out_of_spares=OutOfSpares.WAIT), "L70", Action.WAIT_FOR_NODE,
     SEATS, 0),
    ("shrink", ended(bad=DEAD), [], Rules(3, OutOfSpares.SHRINK), "L60", Action.RELAUNCH, ("a", "c", "d"), 0),
    ("shrink by one of two", ended(bad={"a": "x", "c": "y"}), ["e"], Rules(3, OutOfSpares.SHRINK), "L60",
     Action.RELAUNCH, ("e", "b", "d"), 0),
    ("the site shrinks", ended(bad=DEAD), [], Rules(3, site_shrinks=True), "L60", Action.RELAUNCH, ("a", "c", "d"), 0),
    ("the site shrinks, the job does not", ended(bad=DEAD), [], replace(RULES, site_shrinks=True), "L80",
     Action.WAIT_FOR_REQUEUE, (), 0),
    ("the site shrinks, the job waits", ended(bad=DEAD), [], Rules(3, OutOfSpares.WAIT, site_shrinks=True), "L70",
     Action.WAIT_FOR_NODE, SEATS, 0),
    ("too small", ended(bad=DEAD), [], Rules(4, OutOfSpares.SHRINK), "L90", Action.FAIL, (), 0),
    ("restart ordered", ended(failures=(), running=4, restart_reason="it hangs"), ["e"], RULES, "L110",
     Action.RELAUNCH, SEATS, 0),
    ("restart ordered, without a node", ended(failures=(), running=4, restart_reason="it hangs", without=("c",)),
     ["e"], RULES, "L110", Action.RELAUNCH, ("a", "b", "e", "d"), 0),
    ("restart ordered, and no spare", ended(failures=(), running=4, restart_reason="it hangs", without=("c",)), [],
     RULES, "L110", Action.RELAUNCH, SEATS, 0),
    ("restart ordered, and a node is bad as well", ended(failures=(), running=4, restart_reason="it hangs",
     without=("c",), bad=DEAD), ["e", "f"], RULES, "L50", Action.RELAUNCH, ("a", "e", "c", "d"), 0),
    ("hung", ended(failures=(), running=4, hung_seconds=60), ["e"], RULES, "L140", Action.RELAUNCH, SEATS, 0),
    ("hung, and ranks on a node do not end", ended(failures=(), running=4, hung_seconds=60, bad=DEAD), ["e"], RULES,
     "L50", Action.RELAUNCH, ("a", "e", "c", "d"), 0),
    ("a rank failed", ended(), [], RULES, "L130", Action.RELAUNCH, SEATS, 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "spares", "rules", "row", "then"),
    [(*line[1:5], line[5:]) for line in CASES],
    ids=[line[0] for line in CASES],
)
def test_the_table(
    end: Ended, spares: list[str], rules: Rules, row: str, then: tuple[Action, tuple[str, ...], int]
) -> None:
    decision = decide(end, History(), spares, rules)
    assert (decision.row, (decision.action, decision.seats, decision.exit_code)) == (row, then)
    assert decision.reason


def launches(*ends: Ended, spares: tuple[str, ...] = ("e", "f"), rules: Rules = RULES) -> list[Decision]:
    """One after the other, on the seats that the decision before gave."""
    history, found = History(), []
    seats: tuple[str, ...] = SEATS
    for launch, end in enumerate(ends):
        decision = decide(
            replace(end, launch=launch, seats=seats), history, [s for s in spares if s not in seats], rules
        )
        history, seats = decision.history, decision.seats
        found.append(decision)
    return found


def rows(*ends: Ended) -> list[str]:
    return [decision.row for decision in launches(*ends)]


RAN = ended(progressed=True, failures=(), running=4, bad=DEAD)
"""The gang makes progress, then loses b, and e takes its place."""
FAILS_ON_E = ended(failures=(Failure("e", 1, 1, 1),))


def test_a_spare_on_which_the_program_fails_at_its_first_launch_is_replaced_at_once() -> None:
    """A package is missing there: three launches on it would end the job."""
    decision = launches(RAN, FAILS_ON_E)[-1]
    assert (decision.row, decision.seats, decision.cause) == ("L120", ("a", "f", "c", "d"), Cause.BLACK_HOLE)
    assert "may be missing there (rank 1 on e ended with exit code 1)" in decision.blamed["e"]


def test_a_failure_that_follows_the_rank_to_the_next_spare_clears_the_first_one() -> None:
    on_f = ended(failures=(Failure("f", 1, 1, 1),))
    *_, last = launches(RAN, FAILS_ON_E, on_f, on_f)
    assert (last.row, last.cleared) == ("L100", ("e",))


def test_without_another_spare_the_end_of_the_job_names_the_node_on_which_the_program_never_ran() -> None:
    *_, last = launches(RAN, FAILS_ON_E, FAILS_ON_E, FAILS_ON_E, spares=("e",))
    assert last.row == "L100"
    assert "On e the program has never run before" in last.reason


WITH_POOL = replace(RULES, pool_answers=True)


def test_without_another_spare_the_control_plane_is_asked_once_and_no_node_is_taken_for_bad() -> None:
    _, asks, again, last = launches(RAN, FAILS_ON_E, FAILS_ON_E, FAILS_ON_E, spares=("e",), rules=WITH_POOL)
    assert (asks.row, asks.action, asks.cause) == ("L125", Action.WAIT_FOR_REQUEUE, Cause.BLACK_HOLE)
    assert (asks.seats, dict(asks.blamed)) == (("a", "e", "c", "d"), {}), "it may start there again"
    assert "may be missing there (rank 1 on e ended with exit code 1)" in asks.reason
    assert (again.row, last.row) == ("L130", "L100")


@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        replace(WITH_POOL, when_out_of_spares=OutOfSpares.FAIL),
        replace(WITH_POOL, when_out_of_spares=OutOfSpares.WAIT),
        replace(WITH_POOL, site_shrinks=True),
    ],
    ids=["no control plane answers", "fail", "wait", "the pool has no node for it"],
)
def test_where_the_pool_can_give_none_the_gang_starts_again_at_once(rules: Rules) -> None:
    assert launches(RAN, FAILS_ON_E, spares=("e",), rules=rules)[-1].row == "L130"


def test_after_a_newcomer_was_replaced_the_pool_is_not_asked_for_the_next_one() -> None:
    """The failure goes with the program."""
    *_, replaced = launches(RAN, FAILS_ON_E, rules=WITH_POOL)
    on_f = ended(seats=replaced.seats, failures=(Failure("f", 1, 1, 1),))
    assert (replaced.row, decide(on_f, replaced.history, [], WITH_POOL).row) == ("L120", "L130")


def test_a_node_that_came_with_a_requeue_is_a_newcomer_too() -> None:
    history = add_earlier_allocations(History(), 0, 40, ["a", "c", "d"])
    assert decide(ended(), history, [], WITH_POOL).row == "L125"
    assert decide(ended(failures=(failed("c"),)), history, [], WITH_POOL).row == "L130", "it ran there before"
    unknown = add_earlier_allocations(History(), 0, 40)
    assert decide(ended(), unknown, [], WITH_POOL).row == "L130"


def test_a_newcomer_is_not_suspected_where_no_other_rank_was_well() -> None:
    history = add_earlier_allocations(History(), 0, 40, ["a", "c", "d"])
    assert decide(ended(running=0), history, [], WITH_POOL).row == "L130"


def test_a_spare_on_which_steps_were_repeated_is_no_newcomer() -> None:
    """It ran for long, without a step beyond those before: a failure there is the program's."""
    assert rows(RAN, replace(FAILS_ON_E, stepped=True))[-1] == "L130"


def test_a_node_that_has_run_the_program_is_no_newcomer() -> None:
    assert rows(RAN, ended(failures=(failed("a"),)))[-1] == "L130"


def test_three_launches_without_progress_end_the_job() -> None:
    last = launches(ended(failures=(failed("a"),)), ended(failures=(failed("c"),)), ended(failures=(failed("d", -9),)))[
        -1
    ]
    assert (last.row, last.exit_code) == ("L100", 137)
    assert "3 launches without progress" in last.reason
    assert not last.blamed


def test_progress_gives_the_budget_back() -> None:
    a, c, d = (ended(failures=(failed(node),)) for node in "acd")
    assert rows(a, c, replace(d, progressed=True), a, c, d) == ["L130", "L130", "L130", "L130", "L130", "L100"]


def test_bad_nodes_cost_nothing_of_the_budget() -> None:
    a, c, d = (ended(failures=(failed(node),)) for node in "acd")
    assert rows(a, c, ended(bad={"b": "dead"}), d) == ["L130", "L130", "L50", "L100"]


def test_a_node_that_fails_first_again_while_others_are_well_is_replaced() -> None:
    first, second = launches(ended(age_seconds=1), ended(age_seconds=1))
    assert first.row == "L130"
    assert (second.row, second.seats, list(second.blamed)) == ("L120", ("a", "e", "c", "d"), ["b"])


def test_it_is_cleared_where_the_failure_follows_the_rank() -> None:
    last = launches(ended(), ended(), ended(failures=(Failure("e", 1, 1, 1),)))[-1]
    assert (last.row, last.cleared) == ("L100", ("b",))
    assert "follows the rank, not the node" in last.reason


def test_two_nodes_in_turn_are_no_black_hole() -> None:
    assert rows(ended(), ended(failures=(failed("c"),)))[-1] == "L130"


def test_progress_between_two_failures_of_a_node_blames_no_node() -> None:
    assert rows(ended(), ended(progressed=True), ended())[-1] == "L120", "two in a row, since the progress"
    assert rows(ended(), ended(progressed=True))[-1] == "L130"


def test_a_black_hole_without_a_spare_is_tried_again() -> None:
    decisions = launches(ended(), ended(), spares=())
    assert [decision.row for decision in decisions] == ["L130", "L130"]


def test_a_gang_of_one_node_has_no_black_hole() -> None:
    alone = Ended(0, ("a",), 3600, progressed=False, failures=(failed("a"),), running=0)
    history = decide(alone, History(), ["e"], Rules(1)).history
    assert decide(replace(alone, launch=1), history, ["e"], Rules(1)).row == "L130"


def test_a_program_that_once_got_somewhere_can_start() -> None:
    early = ended(failures=ALIKE, running=0, age_seconds=2)
    assert rows(ended(progressed=True), early)[-1] == "L130"


def test_all_alike_again_without_the_node_that_was_first_is_the_program() -> None:
    first = ended(failures=LIKE_A_PEER, running=0, age_seconds=2)
    again = replace(first, failures=tuple(failed(node, 1) for node in ("a", "b", "c", "e")))
    one, two = launches(first, again)
    assert (one.row, one.seats, dict(one.blamed)) == ("L40", ("a", "b", "c", "e"), {})
    assert (two.row, two.exit_code) == ("L30", 1)


def test_a_bad_program_costs_no_more_after_a_node_was_lost() -> None:
    alike = ended(failures=LIKE_A_PEER, running=0, age_seconds=2)
    assert rows(ended(bad=DEAD), alike, alike) == ["L50", "L40", "L30"]


def test_a_step_ended_in_slurm_is_started_again_within_the_budget() -> None:
    gone = ended(failures=())
    assert rows(gone, gone, gone) == ["L150", "L150", "L100"]


def test_a_gang_that_hangs_again_and_again_ends_the_job() -> None:
    hung = ended(failures=(), running=4, hung_seconds=60.0)
    last = launches(hung, hung, hung)[-1]
    assert (last.row, last.exit_code, dict(last.blamed)) == ("L100", 137, {})
    assert "no new step for 60.0 s" in last.reason


@pytest.mark.parametrize("spares", [2, 1400])
@pytest.mark.parametrize("rule", OutOfSpares)
def test_a_large_gang_that_loses_many_nodes_at_once_is_decided_about_at_once(rule: OutOfSpares, spares: int) -> None:
    """A row of racks, of 12,500 nodes. Anything that looks through all nodes for each of them takes minutes."""
    seats = tuple(f"n{number}" for number in range(12_500))
    lost = ended(seats=seats, failures=(), running=12_500, bad=dict.fromkeys(seats[-1400:], "silent"))
    began = time.process_time()
    decided = decide(
        lost, History(), [f"s{number}" for number in range(spares)], replace(RULES, when_out_of_spares=rule)
    )
    assert time.process_time() - began < 2
    assert len(decided.blamed) == 1400


def test_every_row_is_reached() -> None:
    reached = {decide(line[1], History(), line[2], line[3]).row for line in CASES}
    reached.add(decide(ended(failures=()), History(), [], RULES).row)
    reached |= set(rows(ended(), ended(), ended(failures=(Failure("e", 1, 1, 1),))))
    reached |= {one.row for one in launches(RAN, FAILS_ON_E, spares=("e",), rules=WITH_POOL)}
    assert reached == {row.label for row in TABLE}


def test_the_table_is_sorted_by_its_labels() -> None:
    numbers = [int(row.label.removeprefix("L")) for row in TABLE]
    assert all(row.label.startswith("L") for row in TABLE)
    assert numbers == sorted(set(numbers))


def test_what_earlier_allocations_spent_counts_until_there_is_progress() -> None:
    history = add_earlier_allocations(History(), 2, None)
    assert decide(ended(), history, ["e"], RULES).row == "L100"
    assert decide(ended(progressed=True), history, ["e"], RULES).row == "L130"
    progressed = History(ever_progressed=True)
    assert add_earlier_allocations(progressed, 2, 40) == progressed
    cannot = ended(failures=ALIKE, running=0, age_seconds=2)
    assert decide(cannot, History(), [], RULES).row == "L30"
    assert decide(cannot, add_earlier_allocations(History(), 0, 40), [], RULES).row == "L130", "it could start before"


def test_the_agent_knows_every_cause() -> None:
    assert {row.cause for row in TABLE} == set(Cause)
    assert {cause.value for cause in Cause} == {cause.value for cause in LaunchCause}


@pytest.mark.parametrize(
    ("places", "spares", "seats"),
    [
        ({"b": "f"}, ["e", "f"], ("a", "f", "c", "d")),
        ({"b": "g"}, ["e", "f"], ("a", "e", "c", "d")),
        ({"c": "e"}, ["e", "f"], ("a", "e", "c", "d")),
    ],
)
def test_the_control_planes_choice_of_a_spare_counts_where_that_spare_is_there(
    places: dict[str, str], spares: list[str], seats: tuple[str, ...]
) -> None:
    assert decide(ended(bad=DEAD, places=places), History(), spares, RULES).seats == seats


def test_a_spare_chosen_for_one_node_is_not_taken_for_another() -> None:
    two = ended(bad={"a": "dead", "b": "dead"}, places={"b": "e"})
    assert decide(two, History(), ["e", "f"], RULES).seats == ("f", "e", "c", "d")


def test_a_restart_as_ordered_takes_the_chosen_spare_as_well() -> None:
    hung = ended(failures=(), running=4, restart_reason="it hangs", without=("b",), places={"b": "f"})
    assert decide(hung, History(), ["e", "f"], RULES).seats == ("a", "f", "c", "d")


def test_the_page_for_researchers_shows_lines_as_they_are_written() -> None:
    page = (REPOSITORY / "docs/researchers.md").read_text()
    failure = (Failure("n3", 1, 4, 1),)
    gone, stuck = {"n7": DISCONNECTED}, {"n2": "its ranks outlived SIGKILL for 3 s"}
    reasons = [
        decide(ended(seats=("n7",), bad=gone), History(), ("n9",), RULES).reason,
        decide(ended(launch=1, seats=("n2", "n3"), failures=failure), History(), (), RULES).reason,
        decide(ended(launch=2, seats=("n2", "n3"), failures=(), bad=stuck), History(), (), RULES).reason,
    ]
    for number, reason in enumerate(reasons):
        assert f"\nlaunch {number}: {reason}\n" in page
