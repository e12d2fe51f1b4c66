"""What the decisions of one round share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from understudy_controlplane.config import Config
from understudy_controlplane.decide import spares
from understudy_controlplane.decide.foreign_reservations import in_the_way_of
from understudy_controlplane.decide.placement import Preference
from understudy_controlplane.decide.preemption import Preemptible, preemptible
from understudy_controlplane.decide.table import Row
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.job import Job
from understudy_controlplane.fleet.recovery import DrainPlan, Plan, SwapPlan
from understudy_controlplane.fleet.snapshot import Snapshot


class Entered(NamedTuple):
    """A row of the table that was entered with a finding."""

    row: Row
    finding: Finding


@dataclass(frozen=True, slots=True)
class Round:
    snapshot: Snapshot
    config: Config
    condemned: frozenset[str] = frozenset()
    """Nodes condemned in this round, also those that a guard holds back: none of them is a spare."""

    undrained: frozenset[str] = frozenset()
    """Condemned nodes that a budget keeps in service. Their gangs leave them all the same."""

    doubted: frozenset[str] = frozenset()
    """Condemned nodes that only the budget of their rule keeps in service. No gang is moved for that, because the rule
    may be wrong, and one that is ended anyway leaves them.
    """

    free: tuple[str, ...] = ()  # spares that a gang may get, best first
    idle: tuple[str, ...] = ()  # nodes outside the pool that a gang may get when no spare fits, best first
    moves: tuple[SwapPlan, ...] = ()  # of gangs, decided in this round
    left_out: tuple[Entered, ...] = ()
    """Findings whose decision failed: nothing is done about them, and they count for the budgets as if it were."""

    planned: frozenset[str] = frozenset()
    """Nodes that decisions of this round take, also those that wait for an approval."""

    acting: bool = False  # a decision of this round begins something, other than to release a job

    def with_condemned(self, nodes: frozenset[str]) -> Round:
        free = tuple(name for name in spares.free_spares(self.snapshot, self.config) if name not in nodes)
        return replace(self, condemned=nodes, free=free)

    def after(self, plan: Plan | None) -> Round:
        """The nodes that the plan takes are not free any more, and a gang that it moves counts."""
        if plan is None:
            return self
        moves = (*self.moves, plan) if isinstance(plan, SwapPlan) else self.moves
        free = tuple(name for name in self.free if name not in plan.claimed)
        idle = tuple(name for name in self.idle if name not in plan.claimed)
        return replace(self, free=free, idle=idle, moves=moves)

    def without(self, decisions: Sequence[Decision]) -> Round:
        """Spares that they take are not free any more, such as one whose validation begins."""
        taken = {name for one in decisions if one.plan is not None for name in one.plan.claimed}
        free = tuple(name for name in self.free if name not in taken)
        return replace(self, free=free, planned=self.planned | taken)

    def drained_elsewhere(self, job: Job) -> frozenset[str]:
        """Nodes that another recovery than the job's own drains, or another decision of this round drains or tests."""
        own = self.snapshot.recovery_of(job.key)
        under_way = [one.plan for one in self.snapshot.recoveries if one is not own and isinstance(one.plan, DrainPlan)]
        return (self.condemned | self.planned).union(name for plan in (*under_way, *self.moves) for name in plan.nodes)

    def with_idle(self) -> Round:
        """Adds idle nodes, if the site lets gangs have them."""
        if not self.config.spares.no_spare.takes_idle:
            return self
        return replace(
            self,
            idle=tuple(
                name for name in spares.idle_for_gangs(self.snapshot, self.config) if name not in self.condemned
            ),
        )

    def fitting(self, job: Job, failed: str) -> list[str]:
        """Nodes that the job can start on in the place of `failed`, spares first; without the spares that are reserved
        for others, which are the last of those that fit. Where Slurm does not know `failed` any more, they are like
        another node of the job.
        """
        fit, kept = self._suiting(self.free, job, failed), self.kept_for_others(job)
        return [*fit[: max(0, len(fit) - kept)], *self._suiting(self.idle, job, failed)]

    def reserved_from(self, job: Job, failed: str) -> list[str]:
        """Spares that fit, and that the job does not get because they are reserved for others."""
        fit = self._suiting(self.free, job, failed)
        return fit[max(0, len(fit) - self.kept_for_others(job)) :]

    def kept_for_others(self, job: Job) -> int:
        return sum(spares.kept_for_others(job, self.config.spares).values())

    def _suiting(self, names: Sequence[str], job: Job, failed: str) -> list[str]:
        nodes, reserved = self.snapshot.nodes, in_the_way_of(self.snapshot, job, self.config)
        like = spares.known_node(self.snapshot, job, failed)
        return [
            name
            for name in names
            if name not in reserved
            and like is not None
            and spares.suits(nodes[name], job, like)
            and spares.is_open_to(self.snapshot, nodes[name], job)
        ]

    def preemptible(self, job: Job, failed: str) -> Preemptible:
        """Nodes whose jobs Slurm would preempt for this one."""
        taken = {name for plan in self.moves for name in plan.claimed} | self.condemned
        moving = [self.snapshot.jobs[plan.job] for plan in self.moves if plan.job in self.snapshot.jobs]
        leaving = [one for one in self.snapshot.jobs.values() if self.condemned & set(one.slurm.nodes)]
        return preemptible(self.snapshot, self.config, job, failed, taken, [*moving, *leaving])

    @property
    def preference(self) -> Preference:
        """Spares of the pool come before idle nodes, these before those whose jobs are preempted, and nodes of good
        standing before others, whatever they cost.
        """
        standing = spares.standing_of(self.snapshot, self.config)
        rank = dict.fromkeys(self.free, 0) | dict.fromkeys(self.idle, 1)
        return lambda name: (rank.get(name, 2), *standing(name))
