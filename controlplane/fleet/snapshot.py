"""One consistent view of everything, at one moment. Detection and decision see this and nothing else.

What they ask once a node of thousands is counted once a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from controlplane.config import Mode
from controlplane.fleet.job import Job, JobKey, Refusal
from controlplane.fleet.node import NodeState, NodeView
from controlplane.fleet.recovery import Recovery, RecoveryKind
from controlplane.fleet.slurm import SlurmReservation
from controlplane.fleet.steps import StepTable


@dataclass(frozen=True)
class Snapshot:
    now: float
    started_at: float  # of this control-plane process: nobody can have been heard before
    mode: Mode
    paused: str  # by whom and why; empty: not paused
    slurm_read_at: float | None  # when the Slurm part was read; None: never yet
    slurmctld_started_at: float | None  # None: not told
    slurm_error: str  # of the latest attempt to read Slurm; empty: it went well
    nodes: Mapping[str, NodeView]
    jobs: Mapping[JobKey, Job]
    reservations: Mapping[str, SlurmReservation]
    recoveries: tuple[Recovery, ...] = ()  # the open ones
    swaps: tuple[tuple[float, JobKey], ...] = ()  # of the last hour: when decided, which job
    quarantines: tuple[float, ...] = ()  # of the last hour: when decided
    releases: tuple[tuple[float, JobKey], ...] = ()  # of the last hour: when decided, which job
    refusals: tuple[Refusal, ...] = ()  # of the last day: jobs that our Prolog kept off a node
    tables: Mapping[JobKey, StepTable] = field(default_factory=dict)  # newest attempt of each running job

    def job_on(self, node: str) -> list[Job]:
        """Running jobs on a node."""
        return self._jobs_on.get(node, [])

    @cached_property
    def _jobs_on(self) -> dict[str, list[Job]]:
        found: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            for node in dict.fromkeys(job.slurm.nodes) if job.running else ():
                found.setdefault(node, []).append(job)
        return found

    def holders_of(self, node: str) -> list[Job]:
        """Jobs whose processes are there, whatever Slurm calls their state."""
        return [job for job in self.jobs.values() if job.slurm.holds_nodes and node in job.slurm.nodes]

    @cached_property
    def quarantined(self) -> int:
        """How many nodes are."""
        return sum(node.state is NodeState.QUARANTINED for node in self.nodes.values())

    @cached_property
    def unheard(self) -> bool:
        """Whether a node that Slurm would use has not been heard since our start."""
        return any(node.heard_at is None and node.slurm and node.slurm.usable for node in self.nodes.values())

    def recovery_of(self, job: JobKey) -> Recovery | None:
        """The one that moves it. Releasing a job from Slurm's hold moves nobody."""
        moving = (one for one in self.recoveries if one.plan.kind is not RecoveryKind.RELEASE_JOB)
        return next((recovery for recovery in moving if recovery.plan.job == job), None)
