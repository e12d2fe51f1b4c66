"""What the control plane reads and changes in Slurm: one protocol, several implementations.

Every implementation passes `tests/contract/test_slurm_contract.py`. Reads return plain values; writes return
nothing, because an RPC that timed out may have been carried out. Callers read back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from understudy_controlplane.fleet.preemption import PreemptionRules
from understudy_controlplane.fleet.slurm import (
    JobAddress,
    JobRequest,
    SlurmJob,
    SlurmNode,
    SlurmReservation,
    SlurmStep,
    SlurmView,
    TopologyUnit,
)

__all__ = [
    "READS",
    "JobAddress",
    "JobRequest",
    "NotSent",
    "Slurm",
    "SlurmError",
    "SlurmJob",
    "SlurmMissing",
    "SlurmNode",
    "SlurmReads",
    "SlurmReservation",
    "SlurmStep",
    "SlurmUnavailable",
    "read_view",
    "slurm_version",
]


class SlurmError(Exception):
    """Slurm refused, or its answer cannot be read. Repeating the same call will not help."""


class SlurmMissing(SlurmError):
    """This host has no Slurm commands where they are looked for."""


class SlurmUnavailable(SlurmError):
    """slurmctld did not answer in time. Nothing is known about the outcome; try again later."""


class NotSent(SlurmUnavailable):
    """Nothing of what was begun has been sent to Slurm: this control plane may not lead any more."""


class SlurmReads(Protocol):
    """Changes nothing in Slurm. Raises SlurmUnavailable or SlurmError from every method."""

    def config(self) -> Mapping[str, str]:
        """slurm.conf as slurmctld has it: name → value as `scontrol show config` prints it ("300 sec", "(null)").

        A setting with several values has a name for each ("Prolog[0]").
        """
        ...

    def cluster_name(self) -> str:
        """ClusterName of slurm.conf."""
        ...

    def nodes(self) -> list[SlurmNode]: ...

    def jobs(self) -> list[SlurmJob]:
        """All jobs that slurmctld has in memory, finished ones included."""
        ...

    def job(self, job_id: int) -> SlurmJob | None:
        """One of them, which costs slurmctld nothing; None: Slurm does not know it."""
        ...

    def reservations(self) -> list[SlurmReservation]: ...

    def steps(self, job_id: int) -> list[SlurmStep]:
        """The job's running steps; none while it pends."""
        ...

    def job_extra(self, job_id: int) -> str:
        """The job's Extra; empty before Slurm 23.02, which has none."""
        ...

    def topology(self) -> tuple[TopologyUnit, ...]:
        """Units of all topologies that Slurm has (25.05 and later: several); empty if it has none."""
        ...

    def partition_states(self) -> Mapping[str, str]:
        """Partition → "UP", "DOWN", "DRAIN" or "INACTIVE". Slurm starts jobs in the partitions that are UP or DRAIN."""
        ...

    def preemption(self) -> PreemptionRules:
        """Rules by which Slurm preempts jobs. With preempt/qos they are asked of slurmdbd."""
        ...


READS = frozenset(name for name in vars(SlurmReads) if not name.startswith("_"))
"""Methods of `Slurm` that change nothing."""


class Slurm(SlurmReads, Protocol):
    """Raises SlurmUnavailable or SlurmError from every method.

    A job is changed by its `address`: by the id of a job array, Slurm changes all tasks of it.
    """

    def drain_node(self, node: str, reason: str) -> None:
        """Set State=DRAIN. Running jobs are left alone. The caller has checked that the node may be drained."""
        ...

    def down_nodes(self, nodes: Sequence[str], reason: str) -> None:
        """Set State=DOWN of all in one call: jobs there are killed, and requeued where they allow it.

        A requeued job waits for the epilogs of its other nodes. `loses_dead_gangs`: where the last node that it waits
        for is set DOWN instead, such as by a second call, some releases spoil the job's record.
        """
        ...

    def keep_batch_host(self, job: JobAddress) -> None:
        """Take all nodes but that of its batch script from the running job: before all of them are set DOWN, where
        Slurm `loses_dead_gangs`; else nothing is done. The requeued job asks for as many nodes as its user did. Of the
        nodes taken from an exclusive job, each gets one more such job, until slurmctld reads its configuration again.
        """
        ...

    def resume_node(self, node: str) -> None: ...

    def reboot_node(self, node: str, reason: str) -> None:
        """Drain the node, reboot it once its jobs have ended, and leave it DOWN then, to be validated."""
        ...

    def set_weight(self, node: str, weight: int) -> None:
        """Slurm gives a job the suitable nodes of the lowest weight. Lost when slurmctld reads its configuration
        again.
        """
        ...

    def create_reservation(self, name: str, nodes: Sequence[str], user: str, duration_minutes: int) -> None:
        """Reserve exactly `nodes` for `user` from now on, even if jobs run there."""
        ...

    def set_reservation_nodes(self, name: str, nodes: Sequence[str]) -> None:
        """Replace the node list. `nodes` is never empty: to empty a reservation, delete it."""
        ...

    def delete_reservation(self, name: str) -> None: ...

    def set_job_reservation(self, job: JobAddress, reservation: str) -> None:
        """Bind the job to a reservation; the empty string unbinds it. Of several, with commas between them, Slurm 22.05
        takes the first, although a job may be submitted with several. Refused for a job that has ended, also while its
        epilogs run: its reservation can be deleted then.
        """
        ...

    def submit_job(self, request: JobRequest) -> None:
        """Submit a job of the control plane: one node, exclusive, never requeued. Its name finds it afterwards."""
        ...

    def cancel_job(self, job_id: int) -> None:
        """End the job, pending or running. Nothing happens to a job that has ended."""
        ...

    def requeue_job(self, job: JobAddress) -> None:
        """Requeue a job that has not ended. The restart count goes up at once; the submit time is renewed once the job
        is PENDING again.

        A job that pends, that was cancelled or that has ended stays as it is, also while it is still COMPLETING: Slurm
        decides that under its own lock, so a cancellation just before the call is not undone. Some versions report it
        as an error, 22.05 as a success.

        Never for a job with a dead node: Slurm would wait for that node, and then spoil the job's record
        (`loses_dead_gangs`). Set the node DOWN instead, that requeues the job.
        """
        ...

    def requeue_failed_job(self, job: JobAddress) -> None:
        """Requeue a job whose script has ended, while it is COMPLETING or as long as Slurm remembers it.

        Slurm also runs a job again that was cancelled or that completed: the caller has checked that it failed.
        """
        ...

    def start_job(self, job: JobAddress, not_before: int = 0) -> None:
        """Set the pending job's begin time, by slurmctld's clock, and wake the scheduler. A time that has passed means
        now. Lost by Slurm while the job is still COMPLETING.

        Not within the second of the job's submit time: Slurm fails a job that starts in the second of its kill.
        """
        ...

    def hold_job(self, job: JobAddress) -> None:
        """Keep the pending job from starting until it is released. Its owner cannot release it."""
        ...

    def release_job(self, job: JobAddress) -> None:
        """Lift the hold of a pending job. Its begin time stays."""
        ...

    def set_excluded_nodes(self, job: JobAddress, nodes: Sequence[str]) -> None:
        """Replace the list of nodes that the pending job must not start on. The caller keeps the user's own."""
        ...

    def set_job_priority(self, job: JobAddress, priority: int) -> None: ...

    def set_time_limit(self, job: JobAddress, minutes: int) -> None: ...

    def set_job_comment(self, job: JobAddress, comment: str) -> None: ...

    def set_job_extra(self, job: JobAddress, extra: str) -> None:
        """Refused by Slurm before 23.02."""
        ...


def slurm_version(config: Mapping[str, str]) -> tuple[int, int]:
    """(22, 5) of "22.05.8". Raises SlurmError."""
    match = re.match(r"(\d+)\.(\d+)", config.get("SLURM_VERSION", ""))
    if match is None:
        raise SlurmError(f"`scontrol show config` prints no known version: {config.get('SLURM_VERSION')!r}")
    return int(match[1]), int(match[2])


KEEPS_DEAD_GANGS_SINCE = {(23, 11): 11, (24, 5): 6, (24, 11): 1}
"""Version → its first release with "Fix job requeuing when all nodes in a job fail simultaneously"; 25.05 has it."""


def loses_dead_gangs(config: Mapping[str, str]) -> bool:
    """True if a requeued job whose last node goes down keeps its old record (job_mgr.c, kill_running_job_by_node_name,
    without batch_requeue_fini). It starts at once, fails in the second of its requeue ("credential revoked"), and
    where it runs, slurmctld never frees the GPUs of its new nodes.
    """
    version = slurm_version(config)
    release = re.match(r"\d+\.\d+\.(\d+)", config["SLURM_VERSION"])
    fixed_in = KEEPS_DEAD_GANGS_SINCE.get(version)
    known = release is not None and fixed_in is not None and int(release[1]) >= fixed_in
    return version < (25, 5) and not known


def miscounts_dead_gangs(config: Mapping[str, str]) -> bool:
    """True if nodes that were taken from a dead gang (`keep_batch_host`) may each get one more exclusive job only."""
    return bool(config) and loses_dead_gangs(config)


class JobsAsNeeded(Mapping[int, SlurmJob]):
    """The jobs that Slurm shows, each read when it is first asked for. All of them are read where all are asked for,
    which takes a second with fifty thousand jobs. `note_read` is called after each reading.
    """

    def __init__(self, slurm: SlurmReads, note_read: Callable[[], None]) -> None:
        self._slurm = slurm
        self._note_read = note_read
        self._single: dict[int, SlurmJob | None] = {}
        self._all: dict[int, SlurmJob] | None = None

    def __getitem__(self, job_id: int) -> SlurmJob:
        if self._all is not None:
            return self._all[job_id]
        if job_id not in self._single:
            self._single[job_id] = self._slurm.job(job_id)
            self._note_read()
        found = self._single[job_id]
        if found is None:
            raise KeyError(job_id)
        return found

    def __iter__(self) -> Iterator[int]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def _read(self) -> dict[int, SlurmJob]:
        if self._all is None:
            self._all = {job.job_id: job for job in self._slurm.jobs()}
            self._note_read()
        return self._all


def read_for_effects(
    slurm: SlurmReads, now: float, note_read: Callable[[], None], clock_ahead_seconds: float = 0.0
) -> SlurmView:
    """Reads as `read_view` does, but jobs as needed (`JobsAsNeeded`)."""
    return SlurmView(
        read_at=now,
        nodes={node.name: node for node in slurm.nodes()},
        jobs=JobsAsNeeded(slurm, note_read),
        clock_ahead_seconds=clock_ahead_seconds,
        reservations={reservation.name: reservation for reservation in slurm.reservations()},
    )


def read_view(
    slurm: SlurmReads,
    now: float,
    slurmctld_started_at: float | None = None,
    clock_ahead_seconds: float = 0.0,
    min_job_age_seconds: int = 0,
) -> SlurmView:
    """`now` is the time of the view: all that it shows was so at `now` or later."""
    return SlurmView(
        slurmctld_started_at=slurmctld_started_at,
        min_job_age_seconds=min_job_age_seconds,
        clock_ahead_seconds=clock_ahead_seconds,
        read_at=now,
        nodes={node.name: node for node in slurm.nodes()},
        jobs={job.job_id: job for job in slurm.jobs()},
        reservations={reservation.name: reservation for reservation in slurm.reservations()},
    )
