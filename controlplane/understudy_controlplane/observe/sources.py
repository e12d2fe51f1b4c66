"""What observation may ask of the rest of the control plane: reading methods only, so that it cannot write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.decision import Quarantine
from understudy_controlplane.fleet.gang import BlackHole, BrokenOff, Gang
from understudy_controlplane.fleet.gpu import MovedGpu, Replacement
from understudy_controlplane.fleet.holder import OtherLeader
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.job import (
    Checkpoint,
    FirstNan,
    Job,
    JobKey,
    KnownJob,
    LastAttempt,
    Refusal,
    WrongResult,
)
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.maintenance import Maintenance
from understudy_controlplane.fleet.node import NodeRecord, StoredHardwareEvent, StoredKernelEvent
from understudy_controlplane.fleet.operator import StoredRequests
from understudy_controlplane.fleet.recovery import Recovery
from understudy_controlplane.fleet.site_signal import SiteSignal
from understudy_controlplane.fleet.slurm import SlurmNode, SlurmView
from understudy_controlplane.fleet.steps import Interrupted, StepTable
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.slurm.protocol import SlurmReads
from understudy_wire.hardware import Gpu


class FactReads(Protocol):
    def kernel_events(self, after_id: int, since: float) -> list[StoredKernelEvent]: ...
    def hardware_events(self, after_id: int, since: float) -> list[StoredHardwareEvent]: ...
    def refusals_since(self, since: float) -> tuple[Refusal, ...]: ...


class CheckpointReads(Protocol):
    def newest_anomaly(self) -> int: ...
    def complete_checkpoints(self, job: JobKey) -> Sequence[Checkpoint]: ...
    def first_nans(self, since: float) -> tuple[FirstNan, ...]: ...

    def wrong_results(self, since: float) -> tuple[WrongResult, ...]: ...


class LaunchReads(Protocol):
    def black_holes_since(self, since: float) -> Mapping[str, Sequence[BlackHole]]: ...
    def broken_off(self, cluster: str, since: float) -> Mapping[JobKey, BrokenOff]: ...
    def ended_well(self, cluster: str) -> Mapping[tuple[JobKey, int], float]: ...
    def replacements(self, cluster: str) -> Mapping[tuple[JobKey, int], Mapping[str, tuple[int, float]]]: ...


class LemonReads(Protocol):
    def signals(self, since: float, excluded_by: Counter[str]) -> dict[str, LemonSignals]: ...


class NodeReads(Protocol):
    def records(self) -> dict[str, NodeRecord]: ...


class FleetReads(Protocol):
    def have_progressed(self, job_rows: Collection[int]) -> set[int]: ...
    def last_attempts(self, newest: Mapping[int, int]) -> Mapping[int, LastAttempt]: ...


class RecoveryReads(Protocol):
    def changed(self, after: int, running: Sequence[int], since: float) -> list[Recovery]: ...


class ProposalReads(RecoveryReads, Protocol):
    def proposals(self, now: float) -> list[Recovery]: ...


class IncidentReads(Protocol):
    def open_incidents(self) -> Mapping[Subject, OpenIncident]: ...


class JournalReads(Protocol):
    def quarantined_since(self, since: float) -> tuple[Quarantine, ...]: ...
    def first_quarantine_at(self) -> float | None: ...


class RequestReads(Protocol):
    def stored(self) -> StoredRequests: ...


class GpuReads(Protocol):
    def moved_gpus(self, seen: Mapping[str, Sequence[Gpu]]) -> list[MovedGpu]: ...

    def replacements(self, seen: Mapping[str, Sequence[Gpu]], now: float) -> dict[str, Replacement]: ...

    def known_replacements(self) -> tuple[dict[str, Replacement], frozenset[str]]: ...


class SignalReads(Protocol):
    def live(self, now: float) -> tuple[SiteSignal, ...]: ...


class MaintenanceReads(Protocol):
    def open_ones(self) -> tuple[Maintenance, ...]: ...


class StoreReads(Protocol):
    @property
    def facts(self) -> FactReads: ...
    @property
    def checkpoints(self) -> CheckpointReads: ...
    @property
    def launches(self) -> LaunchReads: ...
    @property
    def lemons(self) -> LemonReads: ...
    @property
    def kept_nodes(self) -> NodeReads: ...
    @property
    def fleet(self) -> FleetReads: ...
    @property
    def recoveries(self) -> ProposalReads: ...
    @property
    def incidents(self) -> IncidentReads: ...
    @property
    def journal(self) -> JournalReads: ...
    @property
    def requests(self) -> RequestReads: ...
    @property
    def gpus(self) -> GpuReads: ...
    @property
    def signals(self) -> SignalReads: ...
    @property
    def maintenance(self) -> MaintenanceReads: ...
    def one_view(self) -> AbstractContextManager[None]: ...


class LeaderReads(Protocol):
    def other(self, now: float) -> OtherLeader | None: ...


class TelemetryReads(Protocol):
    def heard(self) -> dict[str, Heard]: ...
    def table(self, job: JobKey, restart_count: int) -> StepTable | None: ...
    def interrupted_jobs(self) -> Collection[int]: ...
    def interrupted(self, job: JobKey, restart_count: int) -> Interrupted | None: ...
    def ordered_to_save(self) -> frozenset[int]: ...

    @property
    def leaders(self) -> LeaderReads: ...


class LauncherReads(Protocol):
    def gangs(self) -> dict[int, Gang]: ...


class DirectoryReads(Protocol):
    def get(self, job_id: int) -> KnownJob | None: ...

    def jobs_in(self, view: SlurmView, cluster: str, opt_in_word: str) -> Sequence[Job]: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """`probe(node)` returns whether the node's slurmd answers."""

    slurm: SlurmReads
    stores: StoreReads
    telemetry: TelemetryReads
    launchers: LauncherReads
    directory: DirectoryReads
    probe: Callable[[SlurmNode], bool]
    current: CurrentConfig
    clock: Clock
