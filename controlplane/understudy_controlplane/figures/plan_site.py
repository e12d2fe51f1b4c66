"""What a plan is made for: gangs, spares, checkpoints, faults, and how a way to recover deals with each. Pure.

Times are seconds, and costs are those of the whole gang.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from understudy_controlplane.figures.outages import Outage
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS
from understudy_controlplane.fleet.saving import FailureClass
from understudy_wire.facts import Tier


class Effect(StrEnum):
    """What a fault does to a gang."""

    DEAD = "dead"  # the node answers no more
    BROKEN = "broken"  # ranks on the node fail, and the node answers
    HANG = "hang"  # the gang stands still; no node is at fault
    SLOW = "slow"  # the gang goes on at the pace of a slow node
    PROGRAM = "program"  # ranks fail; no node is at fault
    FALSE_ALARM = "false_alarm"  # a healthy node is taken out of service


LOSES_NODE = frozenset({Effect.DEAD, Effect.BROKEN, Effect.SLOW, Effect.FALSE_ALARM})


@dataclass(frozen=True, slots=True)
class FaultCause:
    name: str
    effect: Effect
    per_1000_node_days: float
    nodes: int = 1  # that fail together, as below one switch
    repair: float | None = None  # None: as the site's other repairs

    @property
    def tier_class(self) -> FailureClass:
        """Class of failure, which decides what checkpoints outlive it."""
        if self.effect in (Effect.HANG, Effect.PROGRAM):
            return FailureClass.PROCESS
        return FailureClass.RACK if self.nodes > 1 else FailureClass.NODE


@dataclass(frozen=True, slots=True)
class Trace:
    """Outages that were seen. A plan replays stretches of them, on each `nodes` nodes of the fleet another one."""

    outages: Sequence[Outage]
    nodes: int
    seconds: float
    effect: Effect = Effect.BROKEN


@dataclass(frozen=True, slots=True)
class Faults:
    """`causes` strike at random; what `trace` repeats comes as it came."""

    causes: Sequence[FaultCause]
    repairs: Sequence[float]  # each as likely as the others
    trace: Trace | None = None
    slow_pace: float = 1.0  # of a gang with a slow node
    slow_seconds: float = DAY_SECONDS  # mean, where the gang stays on the node


@dataclass(frozen=True, slots=True)
class Way:
    """How a site recovers."""

    name: str
    detect: Mapping[Effect, float]  # infinite: never
    swap_inside: float  # until a spare of the allocation has its seat
    swap_pool: float  # until a gang that was requeued has its nodes
    uses_inside: bool = False  # keeps spares in the allocation
    warm: bool = False  # processes stand by on spares of the allocation
    by_person: frozenset[Effect] = frozenset()  # after these a person restarts the job
    needs_service: bool = False  # an outage of the control plane delays it
    false_alarms: bool = False


@dataclass(frozen=True, slots=True)
class SavedTier:
    """Checkpoints of a gang on one tier."""

    tier: Tier
    interval: float  # of work between two
    cost: float = 0.0  # for which one holds the training up
    write: float = 0.0  # until it is there
    restore: float = 60.0


@dataclass(frozen=True, slots=True)
class Site:
    gangs: Sequence[int]  # nodes of each
    pool: int
    inside: int  # spares in each gang's allocation
    days: float
    tiers: Sequence[SavedTier]  # nearest first
    faults: Faults
    start_cold: float  # from the nodes until the processes of a gang have started
    start_warm: float
    gpus_per_node: int = 8
    person: float = 2 * HOUR_SECONDS  # mean time until a person has restarted a job
    outage_days: float = math.inf  # between two outages of the control plane
    outage_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return self.days * DAY_SECONDS

    @property
    def gang_nodes(self) -> int:
        return sum(self.gangs)

    @property
    def nodes(self) -> int:
        return self.gang_nodes + self.pool + self.inside * len(self.gangs)


@dataclass(frozen=True, slots=True)
class Fault:
    at: float
    nodes: range
    cause: FaultCause
    repair: float
    person: float  # until a person has restarted the job, where one has to
    lasts: float  # how long a slow node stays slow


@dataclass(frozen=True, slots=True)
class Happens:
    """What happens in one run, whichever way the site recovers."""

    faults: Sequence[Fault]
    away: Sequence[tuple[float, float]] = field(default=())  # outages of the control plane
