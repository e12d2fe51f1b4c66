"""The stores that the loop and recovery work with, together."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Engine

from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.clock_set_back import seconds_ahead, set_times_back
from understudy_controlplane.store.database import one_view
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.gpus import GpuStore
from understudy_controlplane.store.incidents import IncidentStore
from understudy_controlplane.store.journal import Journal
from understudy_controlplane.store.kept_nodes import KeptNodes
from understudy_controlplane.store.launches import LaunchStore
from understudy_controlplane.store.lemons import LemonStore
from understudy_controlplane.store.notices import NoticeStore
from understudy_controlplane.store.parts import PartStore
from understudy_controlplane.store.recoveries import RecoveryStore
from understudy_controlplane.store.requests import RequestStore
from understudy_controlplane.store.site_maintenance import MaintenanceStore
from understudy_controlplane.store.site_signals import SiteSignalStore
from understudy_controlplane.store.stages import StageStore
from understudy_controlplane.store.tickets import TicketStore


@dataclass(frozen=True, slots=True)
class Stores:
    engine: Engine
    facts: FactStore
    checkpoints: CheckpointStore
    launches: LaunchStore
    lemons: LemonStore
    fleet: FleetStore
    kept_nodes: KeptNodes  # the loop's thread alone asks it
    journal: Journal
    incidents: IncidentStore
    recoveries: RecoveryStore
    requests: RequestStore
    tickets: TicketStore
    gpus: GpuStore
    signals: SiteSignalStore
    maintenance: MaintenanceStore
    stages: StageStore
    notices: NoticeStore
    parts: PartStore

    @classmethod
    def of(cls, engine: Engine) -> Stores:
        return cls(
            engine=engine,
            facts=FactStore(engine),
            checkpoints=CheckpointStore(engine),
            launches=LaunchStore(engine),
            lemons=LemonStore(engine),
            fleet=FleetStore(engine),
            kept_nodes=KeptNodes(engine),
            journal=Journal(engine),
            incidents=IncidentStore(engine),
            recoveries=RecoveryStore(engine),
            requests=RequestStore(engine),
            tickets=TicketStore(engine),
            gpus=GpuStore(engine),
            signals=SiteSignalStore(engine),
            maintenance=MaintenanceStore(engine),
            stages=StageStore(engine),
            notices=NoticeStore(engine),
            parts=PartStore(engine),
        )

    def seconds_ahead(self, now: float) -> float:
        """Seconds by which the clock was set back since these times were written. Raises StoreError."""
        return seconds_ahead(self.engine, now)

    def set_times_back(self, now: float, seconds: float) -> None:
        """The clock was set back. Raises StoreError."""
        set_times_back(self.engine, now, seconds)

    def one_view(self) -> AbstractContextManager[None]:
        """What this thread reads from any store within it shows the database at the same moment."""
        return one_view(self.engine)
