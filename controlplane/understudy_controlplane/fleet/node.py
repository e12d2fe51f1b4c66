"""A node of the fleet, as the control plane knows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.gpu import GpusReadable
from understudy_controlplane.fleet.gres import gpu_types, gpus_of_gres
from understudy_controlplane.fleet.job import JobThere
from understudy_controlplane.fleet.slurm import Service, SlurmNode
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause
from understudy_wire.facts import HardwareEvent, KernelEvent
from understudy_wire.hardware import Gpu, Host, Part, Port, StuckProcess
from understudy_wire.messages import Keeper

REASON_PREFIX = "understudy:"
"""Every reason that the control plane gives Slurm begins with this; other reasons are an administrator's or Slurm's."""


CLOCKS_APART_SECONDS = 2.0
"""slurmctld reports its start in whole seconds of its host's clock."""

SLURM_SAVES_SECONDS = 10.0
"""slurmctld writes its state every five seconds at least; a crash forgets what came after the last time."""


class NodeState(StrEnum):
    """Guarantees, not actions. `decide.table` says how one follows from another."""

    IN_SERVICE = "in_service"  # nothing is known against it
    SUSPECT = "suspect"  # something looks wrong; it goes on working
    QUARANTINED = "quarantined"  # out of service by the control plane's decision
    UNKNOWN = "unknown"  # its agent is silent; nothing else is known
    FOREIGN_DRAIN = "foreign_drain"  # an administrator took it out of service: read, not changed
    REPAIRING = (
        "repairing"  # a rung of the repair ladder is being tried; drained, or reserved for the control plane alone
    )
    VALIDATING = "validating"  # reserved for the control plane alone while it is validated
    PROBATION = "probation"  # it works again and passed its test; as a spare it is taken last
    MANUAL_REPAIR = "manual_repair"  # out of service, and an administrator has the ticket
    OPERATOR_HOLD = "operator_hold"  # out of service at an operator's request, until released
    RETIRED = "retired"  # out of service for good


AT_FAULT = frozenset({NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.VALIDATING, NodeState.MANUAL_REPAIR})
"""Out of service by the control plane's decision. They count against the budgets, except nodes validated
from service.
"""

HELD_BY_PEOPLE = frozenset(
    {NodeState.FOREIGN_DRAIN, NodeState.OPERATOR_HOLD, NodeState.MANUAL_REPAIR, NodeState.RETIRED}
)
"""Such a node is an operator's or an administrator's to deal with: its drain and its reason are left as they are."""

HELD_BY_OPERATOR = HELD_BY_PEOPLE - {NodeState.FOREIGN_DRAIN}

OUT_OF_SERVICE = AT_FAULT | {NodeState.OPERATOR_HOLD, NodeState.RETIRED}
"""The control plane has taken the node out of service, or keeps it out."""

IN_REPAIR = frozenset({NodeState.REPAIRING, NodeState.VALIDATING})
"""A recovery works on the node: what happens to it meanwhile may be the recovery's own effect."""


class ValidationOrigin(StrEnum):
    """What a node was when its validation began. A validation that never begins leads back there."""

    QUARANTINED = "quarantined"
    REPAIRED = "repaired"
    OUTAGE = "outage"  # Slurm kept it DOWN after it had booted, or had not answered
    RELEASED = "released"  # by an operator, from a person's repair or from a hold
    IN_SERVICE = "in_service"  # an operator asked for the validation, as in the next two
    SUSPECT_REQUESTED = "suspect_requested"
    PROBATION = "probation"
    SUSPECT_PROBED = "suspect_probed"  # the control plane validates a suspect that no job uses
    SPARE_CHECK = "spare_check"  # ... and an idle spare, in its turn


OF_A_SUSPECT = frozenset({ValidationOrigin.SUSPECT_REQUESTED, ValidationOrigin.SUSPECT_PROBED})

FROM_SERVICE = OF_A_SUSPECT | {
    ValidationOrigin.IN_SERVICE,
    ValidationOrigin.PROBATION,
    ValidationOrigin.SPARE_CHECK,
}
"""No fault is proven against such a node: it counts against no budget for faults."""


class DrainKind(StrEnum):
    NOW = "now"  # a managed gang that runs there is moved
    AT_JOB_END = "at_job_end"  # what runs there goes on to its end


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The durable part: what SQL holds of a node."""

    name: str
    state: NodeState = NodeState.IN_SERVICE
    since: float = 0.0
    table_row: int = 0  # the row of `decide.table` that led here: a label for people
    cleared_at: float = 0.0  # events received up to here no longer count: the node was vouched for since
    vouched_at: float = 0.0  # when a person last returned it to service, or dismissed what was known against it
    drained_at: float | None = None  # when the control plane's drain was read back from Slurm
    drain_reason: str = (
        ""  # as read back then, with who gave it and when, in Slurm's words: the proof of who drained it
    )
    drain_user: str = ""
    drain_reason_at: int = 0
    drain_settled: bool = False  # it was seen for long enough that slurmctld has saved it
    drained_under: float | None = None  # when the slurmctld was started that last showed the drain; None: not known
    agent_seen_at: float | None = None  # to the minute: when its agent was last heard, by any control plane
    agent_since: float | None = None  # when its first agent started; None: it was never heard
    slurmd_seen_at: float | None = None  # when its slurmd's port first answered
    past_boot_id: str = ""  # the boot that a recovery ends: reports of it no longer count
    weight: int | None = None  # in Slurm, for its probation; None: the control plane has not changed its weight
    weight_before: int | None = None  # the weight that it gets back
    suspicions: tuple[Suspicion, ...] = ()  # of a suspect, oldest first; one for each cause
    validation_origin: ValidationOrigin | None = None  # of a node that is validated
    drain_kind: DrainKind | None = None  # of a quarantined node

    @property
    def tested_in_service(self) -> bool:
        """It is validated, and was in service until then."""
        return self.validation_origin in FROM_SERVICE

    def suspected_of(self, cause: SuspicionCause) -> bool:
        return any(one.cause is cause for one in self.suspicions)

    def evidence_cleared(self, suspicion: Suspicion) -> bool:
        """A validation that was to decide about it has not begun. The evidence was cleared for the validation, so that
        nothing is seen of it any more proves nothing.
        """
        return suspicion.since < self.cleared_at

    @property
    def at_fault(self) -> bool:
        """It counts against the budgets."""
        return self.state in AT_FAULT and not self.tested_in_service


@dataclass(frozen=True, slots=True)
class Generation:
    """Driver and set of GPUs. When one of them changes, earlier evidence counts as little as that of an earlier boot.
    Empty: not known.
    """

    driver_version: str = ""
    gpu_set: str = ""  # a digest; the order of the GPUs does not matter


DRIVER_VERSION_CHARACTERS_MAX = 64


def generation_of(driver_version: str, gpus: Iterable[Gpu]) -> Generation:
    uuids = "\n".join(sorted(gpu.uuid for gpu in gpus if gpu.uuid))
    gpu_set = sha256(uuids.encode()).hexdigest()[:16] if uuids else ""
    return Generation(driver_version[:DRIVER_VERSION_CHARACTERS_MAX], gpu_set)


@dataclass(frozen=True, slots=True)
class StoredKernelEvent:
    """A kernel event as the control plane stored it. For a storm of equal events: the latest one, with their number and
    the time of the first.
    """

    id: int
    node: str
    received_at: float
    event: KernelEvent
    jobs: tuple[JobThere, ...] = ()  # that were on the node; empty: none, or not known
    since: float | None = None  # of a storm: the time of its first event
    count: int = 1
    generation: Generation = Generation()

    @property
    def begun_at(self) -> float:
        return self.event.at if self.since is None else self.since


@dataclass(frozen=True, slots=True)
class StoredHardwareEvent:
    """A hardware event as the control plane stored it."""

    id: int
    node: str
    received_at: float
    event: HardwareEvent
    generation: Generation = Generation()


MIG_MODE_SECONDS = 180.0
"""A service sets MIG mode at each boot (Hopper does not keep it), and the agent reads it once a minute."""


GPU_MEMORY_ALIKE = 0.9
"""Share of the memory of GPUs of the same kind that those of another driver, or with ECC, have at least: ECC takes a
sixteenth where the memory is no HBM.
"""


def _models(gpus: Iterable[Gpu]) -> frozenset[str]:
    """Older drivers name them without the vendor."""
    return frozenset(gpu.name.removeprefix("NVIDIA ") for gpu in gpus if gpu.name)


def _memory_bytes(gpus: Iterable[Gpu]) -> int:
    """The smallest memory of a GPU; 0: not known."""
    return min((gpu.memory_total_bytes for gpu in gpus if gpu.memory_total_bytes), default=0)


@dataclass(frozen=True, slots=True)
class NodeView:
    """Everything known of one node at the moment of a snapshot."""

    record: NodeRecord
    slurm: SlurmNode | None  # None: Slurm no longer knows it
    heard_at: float | None  # time of the last report; None: none since this process started
    boot_id: str = ""
    driver_version: str = ""
    gpus: tuple[Gpu, ...] = ()
    events: tuple[StoredKernelEvent, ...] = ()  # of this boot, not cleared
    is_spare: bool = False  # held in the spare reservation
    history: tuple[StoredKernelEvent, ...] = ()  # of the last days: those of earlier boots and cleared ones as well
    slurmd_silent_since: float | None = (
        None  # since when slurmd's port does not answer; None: it does, or was not probed
    )
    hardware_events: tuple[StoredHardwareEvent, ...] = ()  # of any boot, not cleared
    ports: tuple[Port, ...] = ()
    host: Host | None = None
    keeper: Keeper | None = None
    parts: tuple[Part, ...] = ()
    nvml_silent_seconds: float = 0.0
    nvml_unkillable: bool = False
    ports_silent_seconds: float = 0.0
    host_silent_seconds: float = 0.0
    stopping: bool = False  # its agent announced that it stops
    clock_ahead_seconds: float = 0.0  # of the control plane's clock; the report's travel time makes it less
    shown_out_at: float = 0.0  # the last reading of Slurm that showed it drained or down, or this process began
    out_since: float | None = None  # the reading before those that have shown it so without a break, or the first one
    slurm_silent_since: float | None = (
        None  # first of the readings, without a gap or restart of slurmctld, that show it unreached; None: reached
    )
    gpus_readable: GpusReadable | None = None  # None: not known, or its agent reads no GPUs
    gpus_awaited: bool = False  # its agent has reported before, and not yet shown GPUs since its boot or repair
    problems: tuple[str, ...] = ()  # what its agent could not read, as text
    processes: tuple[StuckProcess, ...] = ()  # that keep a GPU
    usual: bool = False  # neither its report, nor an event, nor Slurm shows anything but hardware that works

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def service(self) -> Service | None:
        """What Slurm would do with it now; None: Slurm no longer knows it."""
        return self.slurm.service if self.slurm is not None else None

    @property
    def has_agent(self) -> bool:
        """It has reported once, to this control plane or another one."""
        return self.heard_at is not None or self.record.agent_seen_at is not None

    @property
    def in_mig_mode(self) -> bool:
        """A GPU of it is split into instances, which end with its reset."""
        return any(gpu.mig_mode for gpu in self.gpus)

    @property
    def whole_gpus(self) -> int:
        """How many GPUs it has: those seen in this boot, and where NVML says that none is in MIG mode, at least as many
        as Slurm has. Of GPUs in MIG mode Slurm has the instances. 0: none is known.
        """
        modes = {gpu.mig_mode for gpu in self.gpus}
        is_certain = not self.gpus or (False in modes and True not in modes)
        return max(len(self.gpus), gpus_of_gres(self.slurm.gres) if is_certain and self.slurm is not None else 0)

    def other_gpus_than(self, other: NodeView) -> str:
        """How its GPUs, as NVML shows them, are less than those of the other node, in words; empty: they are not, or
        one of the two was not seen. Slurm may have one name, or none, for GPUs of different kinds.
        """
        own, wanted = _models(self.gpus), _models(other.gpus)
        if own and wanted and own != wanted and not (self.slurm and gpu_types(self.slurm.gres)):
            return f"it has GPUs {' and '.join(sorted(own))}, and {other.name} {' and '.join(sorted(wanted))}"
        memory, needed = _memory_bytes(self.gpus), _memory_bytes(other.gpus)
        if memory and memory < needed * GPU_MEMORY_ALIKE:
            return f"its GPUs have {memory >> 30} GiB of memory, and those of {other.name} {needed >> 30}"
        return ""

    def may_have_instances(self, now: float) -> bool:
        """Slurm has more GPUs than NVML shows, and they may be instances: soon after a boot MIG mode may not be set, or
        not be read.
        """
        young = self.gpus_readable is not None and now - self.gpus_readable.since < MIG_MODE_SECONDS
        return young and len(self.gpus) < self.whole_gpus

    @property
    def has_port_down(self) -> bool:
        """A fabric port for training that was in use since the node booted is down."""
        return any(port.is_training_lost for port in self.ports)

    def ports_down_since(self, now: float) -> list[float]:
        """Times since which such ports are down, as of its last report."""
        down = (port.down_seconds for port in self.ports if port.is_training_lost)
        return [(self.heard_at or now) - seconds for seconds in down if seconds is not None]

    def is_mute(self, now: float) -> bool:
        """Its slurmd does not answer. One failed probe alone proves nothing."""
        return self.slurmd_silent_since is not None and now - self.slurmd_silent_since > 1.0

    @property
    def generation(self) -> dict[str, Json]:
        """Identity of the machine: `Generation`, the boot, and the GPUs by name."""
        gpus: list[Json] = [gpu.uuid for gpu in self.gpus]
        own = generation_of(self.driver_version, self.gpus)
        return {"boot_id": self.boot_id, "driver_version": own.driver_version, "gpu_set": own.gpu_set, "gpus": gpus}

    @property
    def state(self) -> NodeState:
        return self.record.state
