"""A node of the fleet, as the control plane knows it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agents.wire import Gpu, KernelEvent
from controlplane.fleet.slurm import SlurmNode


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
    drain_reason: str = ""  # as read back then
    agent_seen_at: float | None = None  # to the minute: when its agent was last heard, by any control plane
    slurmd_seen_at: float | None = None  # when its slurmd's port first answered us


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
