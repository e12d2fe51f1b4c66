"""What follows from the end of a launch: the table of rows, and when each applies. Pure: no clock, no processes, no
files.

A failed rank alone puts no blame on a node: the program is blamed until ranks on the same node have failed first in two
consecutive launches while other ranks ran well. On a spare that has just joined a gang which ran before, the first
failure is enough: a package or a mount may be missing there. Without another spare the control plane is asked for one,
once. If the failure then follows the rank to the next node, the first node is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from understudy_launcher import outcomes
from understudy_launcher.launch_result import (
    Case,
    Ended,
    Failure,
    History,
    OutOfSpares,
    Rules,
    add_ended,
    all_failed_alike,
    failed_first_count,
    is_newcomer,
)
from understudy_launcher.outcomes import Outcome

NO_PEERS_STATUS = frozenset({2, 126, 127})
"""A usage error, no permission to run the program, no such program: a peer's failure never causes these."""
FAILED_ALIKE_MAX = 2


class Action(StrEnum):
    FINISH = "finish"
    RELAUNCH = "relaunch"
    WAIT_FOR_NODE = "wait_for_node"
    WAIT_FOR_REQUEUE = "wait_for_requeue"
    FAIL = "fail"


class Cause(StrEnum):
    """Why a launch was over. The same values as `LaunchCause` in `understudy_wire/facts.py`."""

    DONE = "done"
    STOPPED = "stopped"
    HARDWARE = "hardware"
    BLACK_HOLE = "black_hole"
    PROGRAM = "program"
    HANG = "hang"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class Decision:
    """`seats` are the next launch's nodes by node rank; empty where nothing is started."""

    row: str
    action: Action
    reason: str
    history: History
    seats: tuple[str, ...] = ()
    exit_code: int = 0
    blamed: Mapping[str, str] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    cause: Cause = Cause.STOPPED


@dataclass(frozen=True, slots=True)
class Row:
    label: str
    meaning: str
    cause: Cause
    action: Action
    applies: Callable[[Case], bool]
    outcome: Callable[[Case], Outcome]


def decide(ended: Ended, history: History, spares: Sequence[str], rules: Rules) -> Decision:
    """The first row of the table that applies decides."""
    case = Case(ended, add_ended(ended, history, rules), tuple(spares), rules)
    row = next(row for row in TABLE if row.applies(case))
    outcome = row.outcome(case)
    after = case.history
    if outcome.black_hole is not None:
        after = replace(after, black_holes=(*after.black_holes, outcome.black_hole))
    return Decision(
        row=row.label,
        action=row.action,
        reason=outcome.reason,
        history=after,
        seats=outcome.seats,
        exit_code=outcome.exit_code,
        blamed=outcome.blamed,
        cleared=outcome.cleared,
        cause=row.cause,
    )


# -- which row applies -------------------------------------------------------------------------------------------------


def _is_done(case: Case) -> bool:
    """The state of its nodes after that does not matter."""
    return case.first is None and not case.ended.running


def _cannot_start(case: Case) -> bool:
    """True if each of the ranks that failed alike failed by itself, and not because the first one had failed.

    How they follow each other in time proves nothing: interpreters take that long to end in both cases. If all fail
    again without the node that was first, that is a proof; without a spare this is not tried.
    """
    ended, history = case.ended, case.history
    return all_failed_alike(ended, history, case.rules) and (
        history.failed_alike >= FAILED_ALIKE_MAX
        or ended.failures[0].status in NO_PEERS_STATUS
        or history.without_progress >= case.rules.launches_without_progress_max
        or (ended.launch == 0 and not case.spares)
    )


def _may_be_first_node(case: Case) -> bool:
    return all_failed_alike(case.ended, case.history, case.rules) and bool(case.spares)


def _can_replace(case: Case) -> bool:
    return bool(case.bad) and not case.bad_without_spares


def _can_shrink(case: Case) -> bool:
    enough = len(case.seats_left) >= max(1, case.rules.nodes_min)
    return case.bad_without_spares and case.rules.may_shrink and enough


def _may_wait(case: Case) -> bool:
    return case.bad_without_spares and case.rules.when_out_of_spares is OutOfSpares.WAIT


def _may_requeue(case: Case) -> bool:
    return case.bad_without_spares and case.rules.when_out_of_spares is OutOfSpares.POOL


def _budget_is_spent(case: Case) -> bool:
    return case.history.without_progress >= case.rules.launches_without_progress_max


def _is_black_hole(case: Case) -> bool:
    first = case.first
    if first is None or not case.spares:
        return False
    often = 1 if is_newcomer(first.node, case.ended, case.history) else 2
    return _others_ran_well(case.ended, first) and failed_first_count(first.node, case.history) >= often


def _fails_on_newcomer(case: Case) -> bool:
    """This happens once since the last progress: if the next node fails too, the cause is the program."""
    first, rules = case.first, case.rules
    asks = rules.when_out_of_spares is OutOfSpares.POOL and not rules.may_shrink and rules.pool_answers
    if first is None or case.spares or case.history.black_holes or not asks:
        return False
    return _others_ran_well(case.ended, first) and is_newcomer(first.node, case.ended, case.history)


def _others_ran_well(ended: Ended, first: Failure) -> bool:
    return len(ended.seats) > 1 and (ended.running > 0 or any(one.node != first.node for one in ended.failures[1:]))


TABLE = (
    Row("L10", "every rank ended well: the job is done", Cause.DONE, Action.FINISH, _is_done, outcomes.done),
    Row(
        "L20",
        "the job is stopping: nothing more is started",
        Cause.STOPPED,
        Action.FINISH,
        lambda case: bool(case.ended.stopping),
        outcomes.stop,
    ),
    Row(
        "L30",
        "all ranks failed alike at the very start, before any progress: the program cannot start; no node is blamed",
        *(Cause.PROGRAM, Action.FINISH, _cannot_start, outcomes.end_unstartable),
    ),
    Row(
        "L40",
        "the same for the first time, and there is a spare: start once more without the node that failed first, as its "
        "failure may have made the others fail",
        *(Cause.PROGRAM, Action.RELAUNCH, _may_be_first_node, outcomes.try_without_first_node),
    ),
    Row(
        "L50",
        "nodes are bad and there are enough spares: a spare replaces each; the rank order stays",
        *(Cause.HARDWARE, Action.RELAUNCH, _can_replace, lambda case: outcomes.with_spares(case, case.bad)),
    ),
    Row(
        "L60",
        "nodes are bad, there are too few spares: continue with fewer nodes",
        *(Cause.HARDWARE, Action.RELAUNCH, _can_shrink, outcomes.shrink),
    ),
    Row(
        "L70",
        "nodes are bad, there are too few spares: wait for a node to come back",
        *(Cause.HARDWARE, Action.WAIT_FOR_NODE, _may_wait, outcomes.wait),
    ),
    Row(
        "L80",
        "nodes are bad, there are too few spares: wait for the control plane to requeue the job",
        *(Cause.HARDWARE, Action.WAIT_FOR_REQUEUE, _may_requeue, outcomes.leave_to_requeue),
    ),
    Row(
        "L90",
        "nodes are bad, there are too few spares: the job fails",
        *(Cause.HARDWARE, Action.FAIL, lambda case: case.bad_without_spares, outcomes.fail),
    ),
    Row(
        "L100",
        "the budget is used up: launch after launch without progress",
        *(Cause.PROGRAM, Action.FINISH, _budget_is_spent, outcomes.give_up),
    ),
    Row(
        "L110",
        "the control plane reports that the gang hangs: restart, without the node it names where there is a spare",
        *(Cause.HANG, Action.RELAUNCH, lambda case: bool(case.ended.restart_reason), outcomes.restart_as_ordered),
    ),
    Row(
        "L120",
        "ranks on the same node failed first again while others ran well, or failed first on a node where the program "
        "never ran before, in a gang that did: a black hole; a spare replaces the node",
        *(Cause.BLACK_HOLE, Action.RELAUNCH, _is_black_hole, outcomes.replace_black_hole),
    ),
    Row(
        "L125",
        "ranks failed first on a node where the program never ran before, in a gang that did, and there is no spare: "
        "wait for the control plane to requeue the job without that node, then restart on the same nodes",
        *(Cause.BLACK_HOLE, Action.WAIT_FOR_REQUEUE, _fails_on_newcomer, outcomes.ask_pool),
    ),
    Row(
        "L130",
        "a rank failed: restart on the same nodes",
        *(
            Cause.PROGRAM,
            Action.RELAUNCH,
            lambda case: case.first is not None,
            outcomes.restart,
        ),
    ),
    Row(
        "L140",
        "the gang hung: restart on the same nodes; it is not known which node is behind, so none is blamed",
        *(
            Cause.HANG,
            Action.RELAUNCH,
            lambda case: case.ended.hung_seconds > 0,
            outcomes.restart,
        ),
    ),
    Row(
        "L150",
        "the gang's step was ended in Slurm from outside: restart on the same nodes",
        *(
            Cause.OUTSIDE,
            Action.RELAUNCH,
            lambda _: True,
            outcomes.restart,
        ),
    ),
)
"""Sorted: the first row that applies decides."""
