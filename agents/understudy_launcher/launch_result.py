"""How a launch ended, and what is remembered of the launches before it: the values by which the table in `decide.py`
chooses a row. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property


class OutOfSpares(StrEnum):
    """What to do when a node has to be replaced and no spare is left in the allocation."""

    POOL = "pool"
    SHRINK = "shrink"
    WAIT = "wait"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Rules:
    """The job owner's options."""

    nodes_min: int
    when_out_of_spares: OutOfSpares = OutOfSpares.POOL
    launches_without_progress_max: int = 3
    early_seconds: float = 30.0
    """A failure within this time after the start may be that of a program that cannot start at all."""
    site_shrinks: bool = False
    """The control plane has no other node for the gang now, and the site lets it shrink then, to `nodes_min`."""
    pool_answers: bool = False
    """A control plane has sent orders and is heard: it may requeue the job onto another node."""

    @property
    def may_shrink(self) -> bool:
        chosen = self.when_out_of_spares
        return chosen is OutOfSpares.SHRINK or (chosen is OutOfSpares.POOL and self.site_shrinks)


@dataclass(frozen=True, slots=True)
class Failure:
    """A rank that ended by itself with an error. `status` is its exit code, or a signal's number below zero."""

    node: str
    node_rank: int
    rank: int
    status: int
    torchrun: bool = False
    """The torchrun of the node, which started its ranks."""

    @property
    def exit_code(self) -> int:
        return self.status if self.status >= 0 else 128 - self.status

    def __str__(self) -> str:
        how = f"exit code {self.status}" if self.status >= 0 else f"signal {-self.status}"
        which = "torchrun" if self.torchrun else f"rank {self.rank}"
        return f"{which} on {self.node} ended with {how}"


@dataclass(frozen=True, slots=True)
class Ended:
    launch: int
    seats: tuple[str, ...]
    """Its nodes, by node rank."""
    age_seconds: float
    progressed: bool
    """It went beyond what any launch before it had reached."""
    failures: tuple[Failure, ...] = ()
    """Failures in the order in which the launcher learned of them."""
    running: int = 0
    """Ranks that still ran when the launch was ended."""
    hung_seconds: float = 0.0
    """A time above 0: the launch was ended because it finished no new step for this time."""
    stepped: bool = False
    """It finished a step, perhaps one that an earlier launch had reached."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Nodes that must not be used any more, and why: verdicts, nodes that are gone or stuck."""
    restart_reason: str = ""
    """Why the control plane ordered a restart although no rank had ended: the gang hangs. Empty: no such order."""
    without: tuple[str, ...] = ()
    """Nodes that a spare replaces on such a restart, where there is one. They are not bad."""
    stopping: str = ""
    """Why nothing may be started any more: a signal, the end of the job's time. Empty: it may."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Node that the gang leaves → the spare that the control plane would put in its place. The spare may be gone."""


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered from launch to launch."""

    without_progress: int = 0
    ever_progressed: bool = False
    first_failed: tuple[Failure, ...] = ()
    """The first failure of each launch since the last progress that ended with one, oldest first."""
    black_holes: tuple[tuple[str, int], ...] = ()
    """Nodes replaced as black holes, and the node rank they had."""
    ran_on: frozenset[str] = frozenset()
    """Nodes of launches that made progress: whatever the program needs is there."""
    failed_alike: int = 0
    """Launches in which all ranks failed alike at the very start, before any progress."""


@dataclass(frozen=True)
class Case:
    """Everything that a row of the table may use."""

    ended: Ended
    history: History
    """The ended launch included."""
    spares: tuple[str, ...]
    rules: Rules

    @property
    def first(self) -> Failure | None:
        return self.ended.failures[0] if self.ended.failures else None

    @cached_property
    def bad(self) -> dict[str, str]:
        seats = set(self.ended.seats)
        return {node: why for node, why in self.ended.bad.items() if node in seats}

    @cached_property
    def spares_for_bad(self) -> list[str]:
        return [node for node in self.spares if node not in self.bad]

    @property
    def bad_without_spares(self) -> bool:
        return len(self.spares_for_bad) < len(self.bad)

    @cached_property
    def seats_left(self) -> tuple[str, ...]:
        return seats_after(self.ended.seats, self.bad, replacements([*self.bad], self.spares, {}))


def replacements(leaving: Sequence[str], spares: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Node → the spare in its place: the chosen one where that spare is there, else the next one."""
    gone = set(leaving)
    free = [node for node in spares if node not in gone]
    found = {node: chosen[node] for node in leaving if chosen.get(node) in free}
    others = iter([node for node in free if node not in found.values()])
    return found | dict(zip((node for node in leaving if node not in found), others, strict=False))


def seats_after(seats: Sequence[str], leaving: Container[str], replaced: Mapping[str, str]) -> tuple[str, ...]:
    """The seats when spares have replaced as many of these nodes as they can, and the others have left."""
    return tuple(replaced.get(node, node) for node in seats if node not in leaving or node in replaced)


def add_earlier_allocations(
    history: History, without_progress: int, best_step: int | None, ran_on: Collection[str] = ()
) -> History:
    """What earlier allocations of the job have spent and reached counts here, until there is progress."""
    if history.ever_progressed:
        return history
    spent = history.without_progress + without_progress
    progressed = best_step is not None
    return replace(history, without_progress=spent, ever_progressed=progressed, ran_on=history.ran_on.union(ran_on))


def add_ended(ended: Ended, history: History, rules: Rules) -> History:
    """Progress resets the budget. A launch that ended because of a bad node costs none of it: the number of spares
    limits those.
    """
    if ended.progressed:
        history = History(ever_progressed=True, ran_on=history.ran_on.union(ended.seats))
    if ended.bad or not (ended.failures or ended.running):
        return history
    return replace(
        history,
        without_progress=history.without_progress + (0 if ended.progressed else 1),
        first_failed=(*history.first_failed, *ended.failures[:1]),
        failed_alike=history.failed_alike + (1 if all_failed_alike(ended, history, rules) else 0),
    )


def all_failed_alike(ended: Ended, history: History, rules: Rules) -> bool:
    """All ranks failed the same way soon after the start, and the job never made progress."""
    return (
        not history.ever_progressed
        and ended.age_seconds <= rules.early_seconds
        and not ended.bad
        and not ended.running
        and len({failure.status for failure in ended.failures}) == 1
    )


def is_newcomer(node: str, ended: Ended, history: History) -> bool:
    """True if the program has never finished a step on this node, and has made progress on others of the launch."""
    return not ended.stepped and node not in history.ran_on and not history.ran_on.isdisjoint(ended.seats)


def failed_first_count(node: str, history: History) -> int:
    """Number of consecutive launches, up to now, in which this node was the first to fail."""
    count = 0
    for failure in reversed(history.first_failed):
        if failure.node != node:
            break
        count += 1
    return count
