"""Gangs whose training asks when to save, and what is ordered of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from understudy_controlplane.fleet.job import Attempt, JobKey
from understudy_wire.facts import Tier
from understudy_wire.ranks import SaveOrder


class SaveCause(StrEnum):
    """Why a gang is to save, the most urgent first."""

    REQUEST = "request"  # a person asked
    SPLIT = "split"  # since the last order its ranks do not save together
    MOVE = "move"  # the gang leaves nodes at its next checkpoint, as for a maintenance
    TIME_LIMIT = "time_limit"  # of the job, or the grace time of a preemption
    WARNING = "warning"  # another system of the site reports trouble where the gang runs
    INTERVAL = "interval"  # another one is better


@dataclass(frozen=True, slots=True)
class SavingGang:
    """An attempt of which at least one rank asks."""

    attempt: Attempt
    world_size: int
    ranks: int  # that ask
    asked: int  # the furthest step for which one did
    asked_at: float  # when that was reported
    step_seconds: float | None = None  # None: not known yet
    own_every: int = 0  # steps between checkpoints by the training's own code; 0: it names none
    ordered_every: int = 0  # by the control plane; 0: it has named none
    asks_memory: bool = False  # every rank asks when to save in the memory of their nodes, too
    own_memory_every: int = 0  # the same of these saves
    ordered_memory_every: int = 0
    order: SaveOrder | None = None  # the newest
    settled: bool = True  # every rank follows it, or it is withdrawn: another one may be proposed
    split: bool = False  # a rank did not follow an order that others do
    saves_at: float = 0.0  # when the newest order became valid; 0: none has
    margin_seconds: float = 0.0  # in which an order reaches all ranks, as far as is known
    not_before: float = 0.0  # after one that was withdrawn

    @property
    def is_whole(self) -> bool:
        return self.ranks == self.world_size

    @property
    def every(self) -> int:
        """Steps between checkpoints now; 0: neither names an interval."""
        return min(filter(None, (self.ordered_every, self.own_every)), default=0)

    @property
    def memory_every(self) -> int:
        return min(filter(None, (self.ordered_memory_every, self.own_memory_every)), default=0)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """Unanswered request of a person."""

    id: int
    reason: str
    by: str
    at: float


class FailureClass(StrEnum):
    PROCESS = "process"
    NODE = "node"
    RACK = "rack"  # or another domain that fails as a whole
    SITE = "site"


@dataclass(frozen=True, slots=True)
class TierCadence:
    """How often to save on a tier."""

    tier: Tier
    answers: tuple[FailureClass, ...]  # failures after which it is the nearest that is left
    cost: float  # seconds
    mtbf: float  # seconds, of these failures
    interval: float  # seconds, a multiple of that of the next nearer tier


@dataclass(frozen=True, slots=True)
class SaveCost:
    """What a job's newest checkpoint cost, and how often its gang fails."""

    seconds: float | None  # for which it held the training up; None: no checkpoint was measured
    write_seconds: float  # until it was written; 0: not known
    mtbf_seconds: float
    best_seconds: float | None  # between two checkpoints; on several tiers: of the nearest
    exact: bool = True  # False: the time until it was written stands for the time that it held the training up
    tiers: tuple[TierCadence, ...] = ()  # nearest first, where it saves on several
    best_memory_seconds: float | None = None  # between two saves in memory; None: none was measured


@dataclass(frozen=True, slots=True)
class WantedSave:
    job: JobKey
    step: int
    every: int  # from there on; 0: as the training's own code says
    cause: SaveCause
    why: str
    request: int | None = None
    memory_every: int = 0  # as `every`


@dataclass(frozen=True, slots=True)
class SettledSave:
    """What became of an order."""

    job_id: int
    order: SaveOrder
    wanted: WantedSave | None  # None: an earlier process of the control plane made it
    why: str = ""  # it was withdrawn
