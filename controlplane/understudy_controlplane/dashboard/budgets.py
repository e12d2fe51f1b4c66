"""How much of each budget is used. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.config import Config
from understudy_controlplane.decide.guards import (
    breaker_limit,
    hourly_limit,
    lately_quarantined,
    quarantine_limit,
    waiting_limit,
)
from understudy_controlplane.fleet.snapshot import Snapshot

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    name: str
    used: int
    limit: int
    setting: str  # that bounds it

    @property
    def spent(self) -> bool:
        return self.used >= self.limit


def budgets(snapshot: Snapshot, config: Config) -> list[Budget]:
    since = snapshot.ago(HOUR_SECONDS)
    recent = sum(at > since for times in snapshot.quarantined_at.values() for at in times)
    waiting = snapshot.manual if config.repair.enabled else snapshot.left
    lately = len(lately_quarantined(snapshot, config))
    return [
        Budget(
            "quarantined at once, besides those that wait for a person",
            max(snapshot.quarantined - min(waiting, waiting_limit(snapshot, config)), 0),
            quarantine_limit(snapshot, config),
            "guards.quarantined_share",
        ),
        Budget("wait for a person", waiting, waiting_limit(snapshot, config), "guards.waiting_share"),
        Budget(
            "quarantined within an hour", recent, hourly_limit(snapshot, config), "guards.quarantines_per_hour_share"
        ),
        Budget(
            "quarantined within the circuit breaker's window",
            lately,
            breaker_limit(snapshot, config),
            "guards.breaker_share",
        ),
    ]
