"""What each row of the table in `decide.py` leads to: the next launch's nodes, the exit code, and the reason. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from understudy_launcher.launch_result import (
    Case,
    OutOfSpares,
    failed_first_count,
    is_newcomer,
    replacements,
    seats_after,
)
from understudy_launcher.node_list import by_reason, counted

STEP_ENDED_EXIT_CODE = 137
"""Exit code when the gang's step was ended from outside, or the gang hung, launch after launch: no rank has an exit
code then. It is that of a SIGKILL.
"""
NEW_THERE = "the program has never run before, and on the others it has: a package, file or mount may be missing there"
EXIT_REQUEUE = 75
"""The job is not done, and could continue elsewhere or later."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a row adds to its action."""

    reason: str
    seats: tuple[str, ...] = ()
    exit_code: int = 0
    blamed: Mapping[str, str] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    black_hole: tuple[str, int] | None = None


def done(_case: Case) -> Outcome:
    return Outcome("every rank ended well")


def stop(case: Case) -> Outcome:
    """If the ranks ended by themselves, the exit code is the program's. A gang that lost a node, or was ended, is not
    done.
    """
    ended = case.ended
    if ended.failures and not ended.bad:
        return Outcome(ended.stopping, exit_code=ended.failures[0].exit_code)
    reason = "; ".join(filter(None, (ended.stopping, by_reason(ended.bad), "the ranks have not ended by themselves")))
    return Outcome(reason, exit_code=EXIT_REQUEUE)


def end_unstartable(case: Case) -> Outcome:
    first = case.ended.failures[0]
    again = ", as in the launch before" if case.history.failed_alike > 1 else ""
    reason = (
        f"every rank failed alike within {case.ended.age_seconds:.0f} s ({first}){again}: the program cannot start; "
        "see its own output. No node is to blame, and the program is not started again"
    )
    return Outcome(reason, exit_code=first.exit_code)


def try_without_first_node(case: Case) -> Outcome:
    first, spare = case.ended.failures[0], case.spares[0]
    reason = (
        f"every rank failed alike within {case.ended.age_seconds:.0f} s ({first}): either the program cannot start "
        f"(see its own output), or the failure on {first.node} made the others fail. Started once more with {spare} "
        f"instead of {first.node}; no node is blamed"
    )
    return Outcome(reason, tuple(spare if node == first.node else node for node in case.ended.seats))


def replace_black_hole(case: Case) -> Outcome:
    first = case.ended.failures[0]
    count = failed_first_count(first.node, case.history)
    why = f"its ranks failed first in {count} consecutive launches while others ran well"
    if is_newcomer(first.node, case.ended, case.history):
        why = f"{NEW_THERE} ({first})"
    outcome = with_spares(case, {first.node: why})
    return replace(outcome, black_hole=(first.node, first.node_rank))


def ask_pool(case: Case) -> Outcome:
    first = case.ended.failures[0]
    reason = f"{first.node}: {NEW_THERE} ({first}); no spare is left, and the control plane may have another node"
    return Outcome(reason, case.ended.seats, black_hole=(first.node, first.node_rank))


def with_spares(case: Case, bad: Mapping[str, str]) -> Outcome:
    replaced = replacements(list(bad), case.spares, case.ended.places)
    seats = seats_after(case.ended.seats, (), replaced)
    return Outcome(f"{by_reason(bad)}; {_replacements(replaced)}", seats, blamed=bad)


def shrink(case: Case) -> Outcome:
    reason = f"{_missing(case)}; continuing with {counted(len(case.seats_left), 'node')}"
    return Outcome(reason, case.seats_left, blamed=case.bad)


def wait(case: Case) -> Outcome:
    return Outcome(f"{_missing(case)}; waiting for a node", case.ended.seats, blamed=case.bad)


def leave_to_requeue(case: Case) -> Outcome:
    return Outcome(f"{_missing(case)}; the control plane may requeue the job", blamed=case.bad)


def fail(case: Case) -> Outcome:
    shrink = case.rules.when_out_of_spares is OutOfSpares.SHRINK
    below = f", and fewer than {counted(case.rules.nodes_min, 'node')}" if shrink else ""
    return Outcome(f"{_missing(case)}{below}; the job cannot continue", blamed=case.bad)


def give_up(case: Case) -> Outcome:
    ended, history, first = case.ended, case.history, case.first
    spent = f"{counted(history.without_progress, 'launch', 'launches')} without progress; the last: {_why_over(case)}"
    if first is None:
        return Outcome(f"{spent}. The job is not started again", exit_code=STEP_ENDED_EXIT_CODE)
    reason = spent
    cleared = tuple(
        node for node, node_rank in history.black_holes if node_rank == first.node_rank and node != first.node
    )
    if not cleared and is_newcomer(first.node, ended, history):
        reason += f". On {first.node} {NEW_THERE}"
    if cleared:
        reason += f". The failure follows the rank, not the node: {', '.join(cleared)} did nothing wrong"
    reason += ". Look at that rank's output; the job is not started again"
    return Outcome(reason, exit_code=first.exit_code, cleared=cleared)


def restart_as_ordered(case: Case) -> Outcome:
    ended = case.ended
    leaving = [node for node in ended.without if node in ended.seats]
    replaced = replacements(leaving, case.spares, case.ended.places)
    reason = f"{ended.restart_reason}; started again, {_replacements(replaced)} ({_budget(case)})"
    return Outcome(reason, seats_after(ended.seats, (), replaced))


def restart(case: Case) -> Outcome:
    reason = f"{_why_over(case)}; started again on the same nodes ({_budget(case)})"
    return Outcome(reason, case.ended.seats)


def _why_over(case: Case) -> str:
    if case.first is not None:
        return str(case.first)
    no_step = f"no new step for {case.ended.hung_seconds:.1f} s" if case.ended.hung_seconds else ""
    return case.ended.restart_reason or no_step or "its step in Slurm was ended"


def _replacements(replaced: Mapping[str, str]) -> str:
    return ", ".join(f"{new} replaces {old}" for old, new in replaced.items()) or "on the same nodes"


def _missing(case: Case) -> str:
    return f"{by_reason(case.bad)}; {len(case.bad)} to replace, {counted(len(case.spares_for_bad), 'spare')} left"


def _budget(case: Case) -> str:
    if case.history.without_progress == 0:
        return "there was progress: the budget starts again"
    return f"{case.history.without_progress} of {case.rules.launches_without_progress_max} launches without progress"
