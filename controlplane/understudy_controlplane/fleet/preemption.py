"""Slurm's own rules of preemption, as far as the control plane has to foresee them. Slurm itself preempts. Pure.

Source: Slurm's src/interfaces/preempt.c and src/plugins/preempt, the same in 22.05 and 26.05.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from understudy_controlplane.fleet.slurm import SlurmJob


class PreemptType(StrEnum):
    PARTITION = "preempt/partition_prio"
    QOS = "preempt/qos"


ENDS_JOBS = {"REQUEUE": "requeued", "CANCEL": "cancelled"}
"""Modes in which a job lets go of its GPUs. A suspended one keeps them."""


@dataclass(frozen=True, slots=True)
class Partition:
    tier: int  # PriorityTier
    modes: frozenset[str]  # of jobs there: its own, or the cluster's
    exclusive: bool = False  # for one user, or one job of a block, at a time


@dataclass(frozen=True, slots=True)
class Qos:
    priority: int
    preempts: frozenset[str]  # names of others
    modes: frozenset[str] = frozenset()  # empty: the cluster's


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    kind: PreemptType | None  # None: Slurm preempts no job, or by rules that are not known here
    modes: frozenset[str] = frozenset()  # of the cluster
    partitions: Mapping[str, Partition] = field(default_factory=dict)
    qos: Mapping[str, Qos] = field(default_factory=dict)
    exempt_above: int | None = None  # jobs of a higher priority are not preempted
    youngest_first: bool = False
    unknown: str = "Slurm preempts no job"  # where there is no kind: why nothing is foreseen

    def why_not(self, gang: SlurmJob, other: SlurmJob, slurm_now: float) -> str:
        """Why Slurm would not end `other` for `gang`, or why that is not sure; empty: it would."""
        return next(self._objections(gang, other, slurm_now), "")

    def _objections(self, gang: SlurmJob, other: SlurmJob, slurm_now: float) -> Iterator[str]:
        number, modes, names = f"job {other.job_id}", self.modes_of(other), {gang.partition, other.partition}
        if self.kind is None:
            yield self.unknown
        if other.state != "RUNNING" or other.part_of:
            yield f"{number} is {other.part_of or other.state}"
        if not ENDS_JOBS.keys() & modes:
            yield f"the PreemptMode of {number} is {','.join(sorted(modes)) or 'not known'}"
        if other.preempt_at is None or slurm_now < other.preempt_at:
            yield f"{number} is exempt (PreemptExemptTime)"
        if self.exempt_above is not None and other.priority > self.exempt_above:
            yield f"{number} has a priority above min_exempt_priority"
        if not names <= self.partitions.keys() or any(self.partitions[name].exclusive for name in names):
            yield f"partition {' or '.join(sorted(names))} is exclusive, or not known"
        by_kind = self._of_qos if self.kind is PreemptType.QOS else self._of_partition
        yield from (f"{number} {words}" for words in by_kind(gang, other))

    def _of_partition(self, gang: SlurmJob, other: SlurmJob) -> Iterator[str]:
        own, its = self.partitions[gang.partition], self.partitions[other.partition]
        if its.tier >= own.tier:
            yield f"is in {other.partition}, whose PriorityTier is not below that of {gang.partition}"
        if "PRIORITY" in own.modes | self.modes and gang.priority <= other.priority:
            yield "has no lower priority"

    def _of_qos(self, gang: SlurmJob, other: SlurmJob) -> Iterator[str]:
        own = self.qos.get(gang.qos)
        if own is None or other.qos not in self.qos:
            yield f"or its preemptor has no known QOS ({other.qos or 'none'}, {gang.qos or 'none'})"
            return
        within = gang.qos == other.qos
        if within and "WITHIN" not in own.modes | self.modes:
            yield f"has the same QOS {gang.qos}"
        if not within and other.qos not in own.preempts:
            yield f"has QOS {other.qos}, which {gang.qos} does not preempt"
        if (within or "PRIORITY" in own.modes | self.modes) and gang.priority <= other.priority:
            yield "has no lower priority"

    def modes_of(self, job: SlurmJob) -> frozenset[str]:
        """Modes that apply to the job when it is preempted."""
        if self.kind is PreemptType.QOS:
            qos = self.qos.get(job.qos)
            return qos.modes & ENDS_JOBS.keys() or self.modes if qos is not None else frozenset()
        partition = self.partitions.get(job.partition)
        return partition.modes if partition is not None else frozenset()

    def end_of(self, job: SlurmJob) -> str:
        """Text: what becomes of it."""
        return ENDS_JOBS[next(mode for mode in ENDS_JOBS if mode in self.modes_of(job))]

    def order(self, job: SlurmJob) -> tuple[int, int, int, int]:
        """Order in which Slurm preempts jobs; of those that are equal to Slurm, the one with the lowest priority comes
        first.
        """
        if self.youngest_first:
            return -(job.start_at or 0), 0, job.priority, job.job_id
        by_qos = self.kind is PreemptType.QOS
        rank = self.qos[job.qos].priority if by_qos else self.partitions[job.partition].tier
        return rank, job.node_count, job.priority, job.job_id
