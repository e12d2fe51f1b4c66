"""What the routes to read use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Response

from understudy_controlplane.api.readers import Readers
from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.telemetry import Telemetry
from understudy_controlplane.store.database import ID_MAX, Engine
from understudy_controlplane.store.queries import Queries
from understudy_controlplane.store.stores import Stores

JobId = Annotated[int, Path(ge=0, le=ID_MAX, description="Slurm's job id.")]
NodeName = Annotated[str, Path(max_length=255, description="NodeName in Slurm.")]
IncidentId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/incidents` shows it.")]
DecisionId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/decisions` shows it.")]
TicketId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/tickets` shows it.")]
MaintenanceId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/maintenance` shows it.")]
SignalId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/signals` shows it.")]
RecoveryId = Annotated[int, Path(ge=1, le=ID_MAX, description="As `GET /v1/recoveries` shows it.")]


@dataclass(frozen=True, slots=True)
class ReadDependencies:
    """`pulse.snapshot` is the newest of the loop. Checks of health, scrapes and events have threads of their own."""

    current: CurrentConfig
    clock: Clock
    directory: JobDirectory
    telemetry: Telemetry
    stores: Stores
    queries: Queries
    pulse: Pulse
    readers: Readers
    health: Readers
    scrapes: Readers
    events: Readers
    engine: Engine

    def close(self) -> None:
        self.readers.close()
        self.health.close()
        self.scrapes.close()
        self.events.close()
        self.engine.dispose()


def job_unknown(job_id: int | None) -> Response:
    """Also of a job that is none of the user's who asks."""
    return refuse(404, f"job {job_id} is not known", "GET /v1/jobs lists the known jobs")
