"""Is anything left of a launch that is over? Pure: judged from a sample of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from understudy_launcher.launch_over import MANY_SLOW_SECONDS, SETTLE_SECONDS, are_many

STEP_END_SECONDS = 2.0
"""Time for srun to end when most seats have disconnected: then the step was ended, and these nodes are well."""
VERDICT_SECONDS = 0.5
"""A failed rank may be the first sign of a broken GPU. The control plane has this time for a verdict; otherwise the
gang would be started on that GPU once more.
"""
SCANCEL_AFTER_SECONDS = 0.3
"""Seats end their ranks in milliseconds. Where all seats that are left are silent, Slurm is asked to kill the step. A
seat that sends messages is killing already, and only the seat knows when nothing is left.
"""
SILENT_SECONDS = 0.5
"""A seat that is killing sends a message twice a second."""


@dataclass(frozen=True, slots=True)
class EndingSample:
    """What is known now of a launch that is over."""

    seats: tuple[str, ...]
    over_seconds: float
    """Time since the launch was over."""
    keep_seconds: float = 0.0
    """Part of that time, in which ranks that continue in the next launch can leave this one."""
    bad: Mapping[str, str] = field(default_factory=dict)
    """Nodes that ended the launch."""
    unusable: Mapping[str, str] = field(default_factory=dict)
    """Nodes of the allocation on which nothing may be started."""
    holding: Mapping[str, float] = field(default_factory=dict)
    """Nodes that may still have ranks → time since their seat's last message."""
    disconnected: Set[str] = frozenset()
    """Nodes whose seat disconnected by itself."""
    disconnected_seconds: float = math.inf
    """Time since the last of them disconnected."""
    step_lost: bool = False
    """Most seats have disconnected, and Slurm was not asked to kill them."""
    step_ended: bool = False
    """srun has ended too."""
    slow_seconds: float | None = None
    """Time since most of its nodes were last found to have ranks that outlive SIGKILL."""
    verdict_may_follow: bool = False
    """A rank has failed, and the control plane may still name its node."""


@dataclass(frozen=True, slots=True)
class EndingState:
    done: bool
    bad: Mapping[str, str] = field(default_factory=dict)
    """Once it is done: nodes that are not used again."""
    stuck: frozenset[str] = frozenset()
    """Bad nodes whose seats report that ranks are left."""
    ask_slurm: bool = False
    """Slurm must SIGKILL the remaining processes."""
    slow: tuple[str, ...] = ()
    """Nodes whose ranks outlive SIGKILL, where those are most of them: then the nodes are not the cause."""


def judge_ending(sample: EndingSample, kill_seconds: float) -> EndingState:
    """Done when no rank of it is left; a node that still has some after its time is not used again."""
    waited = sample.over_seconds - sample.keep_seconds
    bad = dict(sample.bad)
    bad |= {node: sample.unusable[node] for node in sample.seats if node in sample.unusable and node not in bad}
    if sample.step_lost and sample.step_ended:  # a user or administrator ended the step: no node is at fault
        return EndingState(True, {node: why for node, why in bad.items() if node in sample.unusable})
    # Several at once: perhaps the step is being ended, and the others follow.
    several_at_once = len(sample.disconnected & set(sample.seats)) > 1 and sample.disconnected_seconds < SETTLE_SECONDS
    if several_at_once or (sample.step_lost and waited < STEP_END_SECONDS):
        return EndingState(False)
    silent = {node for node, seconds in sample.holding.items() if seconds > SILENT_SECONDS}
    going_on = [node for node in sample.holding if node not in bad]
    # Old ranks on a bad node could still write beside the new ones. A node that is gone delays nothing.
    in_time = sample.over_seconds <= kill_seconds
    waiting = [*going_on, *(node for node in sample.holding if node in bad and node not in silent and in_time)]
    ask_slurm = bool(waiting) and waited > SCANCEL_AFTER_SECONDS and silent.issuperset(waiting)
    if waiting and waited <= kill_seconds:
        return EndingState(False, ask_slurm=ask_slurm)
    slow = tuple(going_on) if are_many(len(going_on), len(sample.seats)) else ()
    if going_on and waited <= MANY_SLOW_SECONDS and (slow or _has_time_again(sample, kill_seconds)):
        return EndingState(False, ask_slurm=ask_slurm, slow=slow)
    bad |= dict.fromkeys(going_on, f"its ranks outlived SIGKILL for {waited:.0f} s")
    bad |= {node: "its seat disconnected" for node in sample.seats if node in sample.disconnected and node not in bad}
    if sample.verdict_may_follow and not bad and sample.over_seconds < VERDICT_SECONDS:
        return EndingState(False, ask_slurm=ask_slurm)
    return EndingState(True, bad, frozenset(going_on) - silent, ask_slurm, slow)


def _has_time_again(sample: EndingSample, kill_seconds: float) -> bool:
    """If most were slow, each node that is left in the end has its whole time again."""
    return sample.slow_seconds is not None and sample.slow_seconds <= kill_seconds
