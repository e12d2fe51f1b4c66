"""Is nothing left of a launch that is over? Pure: from a picture of what is left to what to do.

Belongs here: how long old ranks are waited for, and which nodes do not go on because of them. Must not: clocks (ages
are given), killing, or what follows (`decide.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from understudy_agent.launch.watch import MANY_SLOW_SECONDS, SETTLE_SECONDS, are_many

STEP_END_SECONDS = 2.0
"""For srun to end when most seats have hung up: then the step was ended, and not these nodes."""
VERDICT_SECONDS = 0.5
"""A rank that fails may be the first that is heard of a broken GPU: so long the control plane has for a verdict, or the
gang would be started on that GPU once more.
"""
SCANCEL_AFTER_SECONDS = 0.3
"""Seats end their ranks in milliseconds. Where only such are left that say nothing at all, Slurm is asked to. A seat
that speaks is killing already, and alone can say when nothing is left.
"""
SILENT_SECONDS = 0.5
"""A seat that is killing speaks twice a second."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a launch that is over, as it is known now."""

    seats: tuple[str, ...]
    over_seconds: float
    """Since it was over."""
    keep_seconds: float = 0.0
    """So long of that ranks that may go on in the next launch have to leave this one."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Nodes for whose sake it was over."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Nodes on which nothing may be started, of the allocation."""
    holding: Mapping[str, float] = field(default_factory=dict)
    """Nodes whose seat is there and has not said yet that no rank is left; and how long it is silent."""
    hung_up: Set[str] = frozenset()
    """Nodes whose seat hung up by itself."""
    hung_up_seconds: float = math.inf
    """Since the last of them did."""
    step_lost: bool = False
    """Most seats have hung up, and Slurm was not asked to kill them."""
    step_ended: bool = False
    """So has srun."""
    slow_seconds: float | None = None
    """Since most of its nodes were last found to have ranks that outlive SIGKILL."""
    may_be_a_nodes: bool = False
    """A rank has failed, and the control plane may still name its node."""


@dataclass(frozen=True, slots=True)
class Outcome:
    done: bool
    bad: Mapping[str, str] = field(default_factory=dict)
    """When it is done: nodes that do not go on."""
    stuck: frozenset[str] = frozenset()
    """Those of them that say themselves that ranks are left."""
    ask_slurm: bool = False
    """To SIGKILL what is left."""
    slow: tuple[str, ...] = ()
    """Nodes whose ranks outlive SIGKILL, where that are most: then it is not the nodes."""


def judge(left: Remains, kill_seconds: float) -> Outcome:
    """Until no rank of it is left; a node that does not get there in time does not go on."""
    waited = left.over_seconds - left.keep_seconds
    bad = dict(left.bad)
    bad |= {node: left.unusable[node] for node in left.seats if node in left.unusable and node not in bad}
    if left.step_lost and left.step_ended:  # all of the step, by somebody's hand: that is no node's fault
        return Outcome(True, {node: why for node, why in bad.items() if node in left.unusable})
    # Several at once: perhaps somebody ends the step, and the others follow.
    several_at_once = len(left.hung_up & set(left.seats)) > 1 and left.hung_up_seconds < SETTLE_SECONDS
    if several_at_once or (left.step_lost and waited < STEP_END_SECONDS):
        return Outcome(False)
    silent = {node for node, seconds in left.holding.items() if seconds > SILENT_SECONDS}
    going_on = [node for node in left.holding if node not in bad]
    # A condemned node's old ranks could still write beside the new ones. One that is gone holds nobody up.
    in_time = left.over_seconds <= kill_seconds
    waiting = [*going_on, *(node for node in left.holding if node in bad and node not in silent and in_time)]
    ask_slurm = bool(waiting) and waited > SCANCEL_AFTER_SECONDS and silent.issuperset(waiting)
    if waiting and waited <= kill_seconds:
        return Outcome(False, ask_slurm=ask_slurm)
    slow = tuple(going_on) if are_many(len(going_on), len(left.seats)) else ()
    if going_on and waited <= MANY_SLOW_SECONDS and (slow or _patient(left, kill_seconds)):
        return Outcome(False, ask_slurm=ask_slurm, slow=slow)
    bad |= dict.fromkeys(going_on, f"its ranks outlived SIGKILL for {waited:.0f} s")
    bad |= {node: "its seat hung up" for node in left.seats if node in left.hung_up and node not in bad}
    if left.may_be_a_nodes and not bad and left.over_seconds < VERDICT_SECONDS:
        return Outcome(False, ask_slurm=ask_slurm)
    return Outcome(True, bad, frozenset(going_on) - silent, ask_slurm, slow)


def _patient(left: Remains, kill_seconds: float) -> bool:
    """Where most were slow, each that is left in the end has its whole time again."""
    return left.slow_seconds is not None and left.slow_seconds <= kill_seconds
