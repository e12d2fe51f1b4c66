"""Writing a round of decisions as the loop does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Engine

from understudy_controlplane.decide.transitions import follow_all
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.journal import Journal


def write_round(
    engine: Engine, decisions: Sequence[Decision], now: float, job_rows: Mapping[JobKey, int] | None = None
) -> None:
    changes, refused = follow_all(FleetStore(engine).nodes(), decisions, now)
    assert refused == []
    Journal(engine).record(changes, now, job_rows or {})
