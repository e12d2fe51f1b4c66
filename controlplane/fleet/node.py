"""A node of the fleet, as the control plane knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agents.wire import Gpu, KernelEvent
from controlplane.fleet.slurm import SlurmNode

REASON_PREFIX = "understudy:"
"""Every reason that we give Slurm begins with this; one that does not is somebody else's."""


SLURM_SAVES_SECONDS = 10.0
"""slurmctld writes its state every five seconds at least; a crash forgets what came after the last time."""


class NodeState(StrEnum):
    """Guarantees, not actions. `decide.table` says how one follows from another."""

    IN_SERVICE = "in_service"  # nothing is known against it
    SUSPECT = "suspect"  # something looks wrong; it goes on working
    QUARANTINED = "quarantined"  # out of service by our decision
    UNKNOWN = "unknown"  # its agent is silent; that is all we know
    FOREIGN_DRAIN = "foreign_drain"  # somebody else took it out of service: look, don't touch


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The durable part: what SQL holds of a node."""

    name: str
    state: NodeState = NodeState.IN_SERVICE
    since: float = 0.0
    table_row: int = 0  # number of the transition that led here
    cleared_at: float = 0.0  # events received up to here count no more: somebody vouched for the node since
    drained_at: float | None = None  # when our drain was read back from Slurm
    drain_reason: str = ""  # as read back then, with who gave it and when, in Slurm's words: the proof that it is ours
    drain_user: str = ""
    drain_reason_at: str = ""
    drain_settled: bool = False  # it was seen to stand for so long that slurmctld has saved it
    agent_seen_at: float | None = None  # to the minute: when its agent was last heard, by any control plane
    slurmd_seen_at: float | None = None  # when its slurmd's port first answered us

    def owns(self, slurm: SlurmNode) -> bool:
        """Whether the node is out of service for the very reason that we gave.

        Slurm keeps no owner: whoever writes a reason last has the node. Some versions leave an old reason standing when
        a node is resumed, so the prefix alone proves nothing; time and user of what we read back do.
        """
        if self.state is not NodeState.QUARANTINED or not slurm.reason.startswith(REASON_PREFIX):
            return False
        if self.drained_at is None or not self.drain_user:  # on its way, or written down before there was this proof
            return True
        return (slurm.reason_user, slurm.reason_at) == (self.drain_user, self.drain_reason_at)


@dataclass(frozen=True, slots=True)
class StoredKernelEvent:
    """A kernel event with the control plane's own marks."""

    id: int
    node: str
    received_at: float
    event: KernelEvent


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything known of one node at the moment of a snapshot."""

    record: NodeRecord
    slurm: SlurmNode | None  # None: Slurm no longer knows it
    heard_at: float | None  # last report, None since this process started
    boot_id: str = ""
    gpus: tuple[Gpu, ...] = ()
    events: tuple[StoredKernelEvent, ...] = ()  # of this boot, not cleared
    is_spare: bool = False  # held in our spare reservation
    slurmd_silent_since: float | None = None  # since when nobody answers at slurmd's port; None: it does, or not asked

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def state(self) -> NodeState:
        return self.record.state
