"""What the control plane asks of Slurm: one protocol, several implementations.

Every implementation passes `tests/contract/test_slurm_contract.py`. Reads return plain values; writes return
nothing, because an RPC's return value proves nothing: it can time out and have been carried out. Callers read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from controlplane.fleet.slurm import SlurmJob, SlurmNode, SlurmReservation, SlurmView

__all__ = [
    "Slurm",
    "SlurmError",
    "SlurmJob",
    "SlurmNode",
    "SlurmReservation",
    "SlurmUnavailable",
    "read_view",
]


class SlurmError(Exception):
    """Slurm refused, or its answer could not be understood. Repeating the same call will not help."""


class SlurmUnavailable(SlurmError):
    """slurmctld did not answer in time. Nothing is known about the outcome; try again later."""


class Slurm(Protocol):
    """Raises SlurmUnavailable or SlurmError from every method."""

    def cluster_name(self) -> str:
        """ClusterName of slurm.conf."""
        ...

    def nodes(self) -> list[SlurmNode]: ...

    def jobs(self) -> list[SlurmJob]:
        """All jobs slurmctld still remembers, finished ones included."""
        ...

    def reservations(self) -> list[SlurmReservation]: ...

    def drain_node(self, node: str, reason: str) -> None:
        """Set State=DRAIN. Running jobs are left alone. The caller has checked that the drain is ours to make."""
        ...

    def down_node(self, node: str, reason: str) -> None:
        """Set State=DOWN: jobs there are killed, and requeued where they allow it."""
        ...

    def resume_node(self, node: str) -> None: ...

    def create_reservation(self, name: str, nodes: Sequence[str], user: str, duration_minutes: int) -> None:
        """Hold exactly `nodes` for `user` from now on, jobs that run there notwithstanding."""
        ...

    def set_reservation_nodes(self, name: str, nodes: Sequence[str]) -> None:
        """Replace the node list. `nodes` is never empty: a reservation without nodes is none, delete it."""
        ...

    def delete_reservation(self, name: str) -> None: ...

    def set_job_reservation(self, job_id: int, reservation: str) -> None:
        """Bind the job to a reservation; the empty string unbinds it."""
        ...

    def requeue_job(self, job_id: int) -> None:
        """The restart count goes up at once; the submit time is renewed once the job is PENDING again.

        Never for a job with a dead node: Slurm 22.05 would wait for that node, and then fail the job and lose count
        of its GPUs. Set the node DOWN instead, that requeues the job.
        """
        ...

    def release_job(self, job_id: int) -> None:
        """Lift the hold of a pending job. Its begin time stays."""
        ...

    def start_job_now(self, job_id: int) -> None:
        """Clear the pending job's begin time. Lost by Slurm while the job is still COMPLETING.

        Not within the second of the job's submit time: Slurm fails a job that starts in the second of its kill.
        """
        ...


def read_view(slurm: Slurm, now: float) -> SlurmView:
    """`now` stamps the view: whatever it shows was so at `now` or later."""
    return SlurmView(
        read_at=now,
        nodes={node.name: node for node in slurm.nodes()},
        jobs={job.job_id: job for job in slurm.jobs()},
        reservations={reservation.name: reservation for reservation in slurm.reservations()},
    )
