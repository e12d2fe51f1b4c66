"""The past as it is stored: a span of time, what became of a job in it, how nodes and the pool changed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from understudy_controlplane.fleet.interruption_cause import Cause
from understudy_controlplane.fleet.node import NodeState


@dataclass(frozen=True, slots=True)
class Span:
    since: float
    until: float

    @property
    def seconds(self) -> float:
        return max(self.until - self.since, 0.0)

    def holds(self, at: float) -> bool:
        return self.since <= at < self.until


@dataclass(frozen=True, slots=True)
class AttemptProgress:
    """One attempt of a job. Steps count from 0; `first_step` is the first one finished in this attempt, as its program
    numbers it. Where these numbers fall, `last_step` is counted on: `count_from` is as in `fleet.job.Reached`.
    """

    running_at: float
    first_step: int
    first_step_at: float  # when it was finished
    last_step: int
    last_step_at: float
    count_from: int = 0

    @property
    def step_seconds(self) -> float | None:
        """Mean duration of a step; None with fewer than two steps."""
        steps = self.last_step - self.first_step
        return (self.last_step_at - self.first_step_at) / steps if steps > 0 else None


class Loss(StrEnum):
    DETECT = "detect"  # from the fault, or from the last step where none is known, until it was found
    DECIDE = "decide"  # until a recovery was planned: also for an approval
    SWAP = "swap"  # until the gang had its nodes again
    QUEUE = "queue"  # in Slurm's queue, without nodes: no recovery had kept any for it
    START = "start"  # until its processes had started
    RESTORE = "restore"  # until it began with its first step
    RECOMPUTE = "recompute"  # steps that were done again
    SLOW = "slow"  # what steps took longer than the job's healthy ones


@dataclass(frozen=True, slots=True)
class Mark:
    """Cause to which time without steps is lost from this time on."""

    at: float
    loss: Loss


@dataclass(frozen=True, slots=True)
class Interruption:
    at: float
    cause: Cause


@dataclass(frozen=True, slots=True)
class JobHistory:
    """`gpus` of all its nodes, `spare_gpus` of those that it keeps as spares of its own."""

    row: int
    job_id: int
    user: str
    account: str
    partition: str
    name: str
    state: str
    nodes: int
    gpus: int
    spare_gpus: int = 0
    attempts: Sequence[AttemptProgress] = ()
    marks: Sequence[Mark] = ()
    interruptions: Sequence[Interruption] = ()
    stands_until: float | None = None
    allocations: Sequence[tuple[float, float | None]] = ()  # when it had its nodes; None: it still has them

    def held_seconds(self, span: Span) -> float:
        return sum(
            max(0.0, min(span.until if end is None else end, span.until) - max(begin, span.since))
            for begin, end in self.allocations
        )


@dataclass(frozen=True, slots=True)
class PoolChange:
    """A node joins the pool, or leaves it. `job`: the row of the job that it leaves it for."""

    at: float
    node: str
    joins: bool
    job: int | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """`rule`: of the decision. `quarantines`: its number, where it took the node out of service for a fault."""

    at: float
    node: str
    before: NodeState | None
    after: NodeState
    rule: str = ""
    quarantines: int | None = None
