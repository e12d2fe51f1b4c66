"""What the routes to read use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Config
from understudy_controlplane.live.pulse import Pulse
from understudy_controlplane.live.telemetry import Telemetry
from understudy_controlplane.store.queries import Queries
from understudy_controlplane.store.stores import Stores

Limit = Annotated[int, Query(ge=1, le=1000, description="Most records to return, newest first.")]


@dataclass(frozen=True, slots=True)
class ReadDependencies:
    """`pulse.snapshot` is the loop's newest."""

    config: Config
    clock: Clock
    telemetry: Telemetry
    stores: Stores
    queries: Queries
    pulse: Pulse
