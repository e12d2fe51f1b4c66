"""What follows from the end of a launch. Pure: no clock, no processes, no files.

Belongs here: the table of rows, and the choice of nodes. Must not: noticing that a launch is over (`watch.py`), or
doing anything about it (`launcher.py`).

A rank's failure alone condemns nobody: it is the program's until the same node has failed first in two launches running
while the others were well. Where the failure then follows the rank to the next node, the node is cleared again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

STEP_ENDED_EXIT_CODE = 137
"""Of a gang whose step was ended from outside, or which hung, launch after launch: no rank has one. As of a SIGKILL."""
EXIT_REQUEUE = 75
"""The job is not done, and could go on elsewhere or later."""
NO_PEERS_STATUS = frozenset({2, 126, 127})
"""A usage error, no right to run it, no such program: no rank ends like this because another one has."""
FAILED_ALIKE_MAX = 2


class Action(StrEnum):
    FINISH = "finish"
    RELAUNCH = "relaunch"
    SHRINK = "shrink"
    WAIT = "wait"
    POOL = "pool"
    FAIL = "fail"


class OutOfSpares(StrEnum):
    """What to do when a node has to be replaced and no spare is left in the allocation."""

    POOL = "pool"
    SHRINK = "shrink"
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the job's owner asked for."""

    nodes_min: int
    when_out_of_spares: OutOfSpares = OutOfSpares.POOL
    launches_without_progress_max: int = 3
    early_seconds: float = 30.0
    """A failure this soon after the start may be that of a program that cannot start at all."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that ended by itself, and not well. `status` is its exit code, or a signal's number below zero."""

    node: str
    node_rank: int
    rank: int
    status: int

    @property
    def exit_code(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    def __str__(self) -> str:
        how = f"exit code {self.status}" if self.status >= 0 else f"signal {-self.status}"
        return f"rank {self.rank} on {self.node} ended with {how}"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a launch ended."""

    launch: int
    seats: tuple[str, ...]
    """Its nodes, by node rank."""
    age_seconds: float
    progressed: bool
    """Beyond what any launch before it had reached."""
    failures: tuple[Failure, ...] = ()
    """In the order in which they were heard of."""
    running: int = 0
    """Ranks that still ran when the launch was ended."""
    hung_seconds: float = 0.0
    """Not 0: it was ended because there was no new step for so long."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Nodes that must not be used any more, and why: verdicts, nodes that are gone or stuck."""
    told: str = ""
    """Why the control plane had it ended, though no rank of it had: the gang hangs."""
    without: tuple[str, ...] = ()
    """Nodes that give their seat to a spare then, where there is one. They are not bad."""
    asked_to_end: str = ""
    """Why nothing is to be started any more: a signal, the end of the job's time."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is remembered from launch to launch."""

    without_progress: int = 0
    ever_progressed: bool = False
    first_failed: tuple[Failure, ...] = ()
    """The first failure of each launch since the last progress that ended of one, oldest first."""
    black_holes: tuple[tuple[str, int], ...] = ()
    """Nodes replaced for that reason, and the node rank they had."""
    failed_alike: int = 0
    """Launches of which all ranks failed alike at the very start, before any progress."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`seats` are the next launch's nodes by node rank; empty where nothing is started."""

    row: int
    action: Action
    reason: str
    ledger: Ledger
    seats: tuple[str, ...] = ()
    exit_code: int = 0
    blamed: Mapping[str, str] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()


ROWS: Mapping[int, str] = MappingProxyType(
    {
        10: "every rank ended well: the job is done",
        20: "the job is to end: nothing is started any more",
        30: "all ranks failed alike at the very start, before any progress: the program cannot start; nobody is blamed",
        35: "the same for the first time, and there is a spare: once more without the node that failed first, for the "
        "others may have failed of it",
        40: "nodes are bad and there are spares: a spare takes each one's place, the rank order stays",
        41: "nodes are bad, there are too few spares: go on smaller",
        42: "nodes are bad, there are too few spares: wait for a node to come back",
        43: "nodes are bad, there are too few spares: leave it to the control plane's requeue",
        44: "nodes are bad, there are too few spares: the job fails",
        50: "the budget is used up: launch after launch without progress",
        60: "the same node failed first again while others were well: a black hole; a spare takes its place",
        70: "a rank failed: start again on the same nodes",
        71: "somebody ended the gang's step in Slurm: start again on the same nodes",
        72: "the gang hung: start again on the same nodes; nobody is known to be behind, so nobody is blamed",
        75: "the control plane says that the gang hangs: start again, without the node it names where there is a spare",
    }
)


CAUSES: Mapping[int, str] = MappingProxyType(
    {
        **dict.fromkeys((10, 20), "done"),
        **dict.fromkeys((30, 35, 50, 70), "program"),
        **dict.fromkeys((40, 41, 42, 43, 44), "hardware"),
        60: "black_hole",
        71: "outside",
        **dict.fromkeys((72, 75), "hang"),
    }
)
"""For whose sake a launch was over, in the words of agents/understudy_agent/wire.py."""


def decide(  # noqa: PLR0911, C901 - a table: a return for each row
    ended: Ended, ledger: Ledger, spares: Sequence[str], rules: Rules
) -> Decision:
    """The first row that fits."""
    after = _enter(ended, ledger)
    first = ended.failures[0] if ended.failures else None
    if first is None and not ended.running:  # what became of its nodes after that is no matter
        return Decision(10, Action.FINISH, "every rank ended well", after)
    if ended.asked_to_end:
        return _finish_as_asked(ended, after)
    if first and all_failed_alike(ended, after, rules):
        after = replace(after, failed_alike=after.failed_alike + 1)
        if is_the_program(ended, after, spares, rules):
            return _cannot_start(ended, after)
        if spares:
            return _once_more(ended, after, spares)
    bad = {node: why for node, why in ended.bad.items() if node in ended.seats}
    if bad:
        return _replace(40, ended.seats, bad, after, spares, rules)
    if after.without_progress >= rules.launches_without_progress_max:
        return _give_up(ended, after)
    if ended.told:
        return _start_anew(ended, after, spares, rules)
    if first is None and ended.hung_seconds:
        reason = (
            f"no new step for {ended.hung_seconds:.1f} s; started again on the same nodes ({_budget(after, rules)})"
        )
        return Decision(72, Action.RELAUNCH, reason, after, seats=ended.seats)
    if first is None:
        reason = f"its step in Slurm was ended; started again on the same nodes ({_budget(after, rules)})"
        return Decision(71, Action.RELAUNCH, reason, after, seats=ended.seats)
    if is_black_hole(ended, after):
        why = f"its ranks failed first in {_count_of(first.node, after)} launches running while others were well"
        if spares:
            hole = replace(after, black_holes=(*after.black_holes, (first.node, first.node_rank)))
            return _replace(60, ended.seats, {first.node: why}, hole, spares, rules)
    reason = f"{first}; started again on the same nodes ({_budget(after, rules)})"
    return Decision(70, Action.RELAUNCH, reason, after, seats=ended.seats)


def inherit(ledger: Ledger, without_progress: int, best_step: int | None) -> Ledger:
    """What earlier allocations of the job have spent and reached counts here, until there is progress."""
    if ledger.ever_progressed:
        return ledger
    spent = ledger.without_progress + without_progress
    return replace(ledger, without_progress=spent, ever_progressed=best_step is not None)


def all_failed_alike(ended: Ended, ledger: Ledger, rules: Rules) -> bool:
    """All ranks, the same way, at once, and nothing was ever got done."""
    return (
        not ledger.ever_progressed
        and ended.age_seconds <= rules.early_seconds
        and not ended.bad
        and not ended.running
        and len({failure.status for failure in ended.failures}) == 1
    )


def is_the_program(ended: Ended, ledger: Ledger, spares: Sequence[str], rules: Rules) -> bool:
    """Whether ranks that failed alike did so each by itself, or of the first one's failure, as those of a gang do.

    How they follow each other in time is no proof: that is how long interpreters take to end, in both cases. That all
    fail again without the node that was first is one; without a spare it is not tried.
    """
    return (
        ledger.failed_alike >= FAILED_ALIKE_MAX
        or ended.failures[0].status in NO_PEERS_STATUS
        or ledger.without_progress >= rules.launches_without_progress_max
        or (ended.launch == 0 and not spares)
    )


def is_black_hole(ended: Ended, ledger: Ledger) -> bool:
    first = ended.failures[0]
    others_well = ended.running > 0 or any(one.node != first.node for one in ended.failures[1:])
    several = len(ended.seats) > 1 and others_well
    return several and _count_of(first.node, ledger) >= 2


def _enter(ended: Ended, ledger: Ledger) -> Ledger:
    """Progress gives the budget back. A launch that a bad node ended costs nothing of it: the spares bound that."""
    if ended.progressed:
        ledger = Ledger(ever_progressed=True)
    if ended.bad or not (ended.failures or ended.running):
        return ledger
    return replace(
        ledger,
        without_progress=ledger.without_progress + (0 if ended.progressed else 1),
        first_failed=(*ledger.first_failed, *ended.failures[:1]),
    )


def _count_of(node: str, ledger: Ledger) -> int:
    """In how many launches running, up to now, this node was the first to fail."""
    count = 0
    for failure in reversed(ledger.first_failed):
        if failure.node != node:
            break
        count += 1
    return count


def _finish_as_asked(ended: Ended, ledger: Ledger) -> Decision:
    """The ranks' own end has the program's exit code. A gang that lost a node, or was ended, is not done."""
    if ended.failures and not ended.bad:
        return Decision(20, Action.FINISH, ended.asked_to_end, ledger, exit_code=ended.failures[0].exit_code)
    lost = "; ".join(f"{node}: {why}" for node, why in ended.bad.items())
    reason = "; ".join(filter(None, (ended.asked_to_end, lost, "the ranks have not ended by themselves")))
    return Decision(20, Action.FINISH, reason, ledger, exit_code=EXIT_REQUEUE)


def _cannot_start(ended: Ended, ledger: Ledger) -> Decision:
    first = ended.failures[0]
    again = ", as in the launch before" if ledger.failed_alike > 1 else ""
    reason = (
        f"every rank failed alike within {ended.age_seconds:.0f} s ({first}){again}: the program cannot start; see its "
        "own output. No node is to blame, and it is not started again"
    )
    return Decision(30, Action.FINISH, reason, ledger, exit_code=first.exit_code)


def _once_more(ended: Ended, ledger: Ledger, spares: Sequence[str]) -> Decision:
    first = ended.failures[0]
    reason = (
        f"every rank failed alike within {ended.age_seconds:.0f} s ({first}): the program cannot start, see its own "
        f"output, or the others failed of {first.node}. Once more, {spares[0]} in its place; nobody is blamed"
    )
    seats = tuple(spares[0] if node == first.node else node for node in ended.seats)
    return Decision(35, Action.RELAUNCH, reason, ledger, seats=seats)


def _start_anew(ended: Ended, ledger: Ledger, spares: Sequence[str], rules: Rules) -> Decision:
    leaving = [node for node in ended.without if node in ended.seats]
    takes = dict(zip(leaving, [node for node in spares if node not in leaving], strict=False))
    words = ", ".join(f"{new} takes the place of {old}" for old, new in takes.items()) or "on the same nodes"
    reason = f"{ended.told}; started again, {words} ({_budget(ledger, rules)})"
    seats = tuple(takes.get(node, node) for node in ended.seats)
    return Decision(75, Action.RELAUNCH, reason, ledger, seats=seats)


def _give_up(ended: Ended, ledger: Ledger) -> Decision:
    count = ledger.without_progress
    first = ended.failures[0] if ended.failures else None
    if first is None:
        stood_still = f"no new step for {ended.hung_seconds:.1f} s" if ended.hung_seconds else ""
        why = ended.told or stood_still or "its step in Slurm was ended"
        reason = f"{count} launches without progress; the last: {why}. The job is not started again"
        return Decision(50, Action.FINISH, reason, ledger, exit_code=STEP_ENDED_EXIT_CODE)
    reason = f"{count} launches without progress; the last: {first}"
    cleared = tuple(
        node for node, node_rank in ledger.black_holes if node_rank == first.node_rank and node != first.node
    )
    if cleared:
        reason += f". The failure follows the rank, not the node: {', '.join(cleared)} did nothing wrong"
    reason += ". Look at that rank's output; the job is not started again"
    return Decision(50, Action.FINISH, reason, ledger, exit_code=first.exit_code, cleared=cleared)


def _replace(
    row: int, seats: tuple[str, ...], bad: Mapping[str, str], ledger: Ledger, spares: Sequence[str], rules: Rules
) -> Decision:
    why = "; ".join(f"{node}: {reason}" for node, reason in bad.items())
    usable = [node for node in spares if node not in bad]
    if len(usable) >= len(bad):
        takes = dict(zip(bad, usable, strict=False))
        words = ", ".join(f"{new} takes the place of {old}" for old, new in takes.items())
        chosen = tuple(takes.get(node, node) for node in seats)
        return Decision(row, Action.RELAUNCH, f"{why}; {words}", ledger, seats=chosen, blamed=bad)
    return _without_spares(seats, bad, ledger, usable, rules, why)


def _without_spares(
    seats: tuple[str, ...], bad: Mapping[str, str], ledger: Ledger, usable: Sequence[str], rules: Rules, why: str
) -> Decision:
    takes = dict(zip(bad, usable, strict=False))
    left = tuple(takes.get(node, node) for node in seats if node not in bad or node in takes)
    missing = f"{why}; {len(bad)} to replace, {len(usable)} spares left"
    match rules.when_out_of_spares:
        case OutOfSpares.SHRINK if len(left) >= max(1, rules.nodes_min):
            words = f"{missing}; going on with {len(left)} nodes"
            return Decision(41, Action.SHRINK, words, ledger, seats=left, blamed=bad)
        case OutOfSpares.WAIT:
            return Decision(42, Action.WAIT, f"{missing}; waiting for a node", ledger, seats=seats, blamed=bad)
        case OutOfSpares.POOL:
            return Decision(43, Action.POOL, f"{missing}; left to the control plane", ledger, blamed=bad)
        case _:
            below = (
                f", and fewer than {rules.nodes_min} nodes" if rules.when_out_of_spares is OutOfSpares.SHRINK else ""
            )
            return Decision(44, Action.FAIL, f"{missing}{below}; the job cannot go on", ledger, blamed=bad)


def _budget(ledger: Ledger, rules: Rules) -> str:
    if ledger.without_progress == 0:
        return "there was progress: the budget is whole"
    return f"{ledger.without_progress} of {rules.launches_without_progress_max} launches without progress"
