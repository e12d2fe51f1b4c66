"""What observation may ask of the rest of the control plane: reading methods only, so that it cannot write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from understudy_agent.wire import Gpu
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.gang import BlackHole, Gang
from understudy_controlplane.fleet.gpu import MovedGpu
from understudy_controlplane.fleet.incident import OpenIncident
from understudy_controlplane.fleet.job import Checkpoint, FirstNan, JobKey, KnownJob, Refusal
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.node import NodeRecord, StoredHardwareEvent, StoredKernelEvent
from understudy_controlplane.fleet.operator import Breaker, JobPause, ModeLimit, MoveRequest, Pause, Request, SparesSize
from understudy_controlplane.fleet.recovery import Recovery
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.slurm.protocol import SlurmReads


class FactReads(Protocol):
    def kernel_events(self, after_id: int, since: float) -> list[StoredKernelEvent]: ...
    def hardware_events(self, after_id: int, since: float) -> list[StoredHardwareEvent]: ...
    def refusals_since(self, since: float) -> tuple[Refusal, ...]: ...


class CheckpointReads(Protocol):
    def newest_anomaly(self) -> int: ...
    def complete_checkpoints(self, job: JobKey) -> Sequence[Checkpoint]: ...
    def first_nans(self, since: float) -> tuple[FirstNan, ...]: ...


class LaunchReads(Protocol):
    def black_holes_since(self, since: float) -> Mapping[str, Sequence[BlackHole]]: ...
    def replacements(self, cluster: str) -> Mapping[tuple[JobKey, int], Mapping[str, tuple[int, float]]]: ...


class LemonReads(Protocol):
    def signals(self, since: float, excluded_by: Counter[str]) -> dict[str, LemonSignals]: ...


class FleetReads(Protocol):
    def nodes(self) -> dict[str, NodeRecord]: ...
    def pause(self, now: float) -> Pause: ...
    def mode_limit(self, now: float) -> ModeLimit: ...
    def spares_size(self) -> SparesSize: ...
    def have_progressed(self, job_rows: Collection[int]) -> set[int]: ...


class RecoveryReads(Protocol):
    def changed(self, after: int, running: Sequence[int], since: float) -> list[Recovery]: ...


class ProposalReads(RecoveryReads, Protocol):
    def proposals(self, now: float) -> list[Recovery]: ...


class IncidentReads(Protocol):
    def open_incidents(self) -> Mapping[Subject, OpenIncident]: ...


class RepairReads(Protocol):
    def quarantined_since(self, since: float) -> Mapping[str, tuple[float, ...]]: ...
    def requests_since(self, since: float) -> Mapping[str, Request]: ...
    def cancels(self) -> Mapping[int, Request]: ...
    def job_pauses(self, now: float) -> Mapping[int, JobPause]: ...
    def moves(self) -> Mapping[int, MoveRequest]: ...
    def breaker(self) -> Breaker: ...
    def moved_gpus(self, seen: Mapping[str, Sequence[Gpu]]) -> list[MovedGpu]: ...


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
    def fleet(self) -> FleetReads: ...
    @property
    def recoveries(self) -> ProposalReads: ...
    @property
    def incidents(self) -> IncidentReads: ...
    @property
    def repairs(self) -> RepairReads: ...
    def one_view(self) -> AbstractContextManager[None]: ...


class TelemetryReads(Protocol):
    def heard(self) -> dict[str, Heard]: ...
    def table(self, job: JobKey, restart_count: int) -> StepTable | None: ...


class LauncherReads(Protocol):
    def gangs(self) -> dict[int, Gang]: ...


class DirectoryReads(Protocol):
    def get(self, job_id: int) -> KnownJob | None: ...


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
