"""How much of each budget is used, and by which nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_controlplane.config import Config
from understudy_controlplane.decide.guards import (
    breaker_limit,
    hourly_limit,
    lately_quarantined,
    quarantine_limit,
    waiting_limit,
    waiting_nodes,
)
from understudy_controlplane.fleet.snapshot import Snapshot

HOUR_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Budget:
    name: str
    used: int
    limit: int
    setting: str  # that bounds it
    nodes: Sequence[str]  # that use it

    @property
    def spent(self) -> bool:
        return self.used >= self.limit


def budgets(snapshot: Snapshot, config: Config) -> list[Budget]:
    since = snapshot.ago(HOUR_SECONDS)
    recent = {name: sum(at > since for at in times) for name, times in snapshot.quarantined_at.items()}
    waiting, allowed = waiting_nodes(snapshot, config), waiting_limit(snapshot, config)
    lately = lately_quarantined(snapshot, config)
    return [
        Budget(
            "out of service at the same time by Understudy, besides those that wait for a person",
            max(snapshot.quarantined - min(len(waiting), allowed), 0),
            quarantine_limit(snapshot, config),
            "guards.quarantined_share",
            sorted(snapshot.at_fault - waiting if len(waiting) <= allowed else snapshot.at_fault),
        ),
        Budget("wait for a person", len(waiting), allowed, "guards.waiting_share", sorted(waiting)),
        Budget(
            "quarantined within an hour",
            sum(recent.values()),
            hourly_limit(snapshot, config),
            "guards.quarantines_per_hour_share",
            sorted(name for name, times in recent.items() if times),
        ),
        Budget(
            "quarantined within the circuit breaker's window",
            len(lately),
            breaker_limit(snapshot, config),
            "guards.breaker_share",
            sorted(lately),
        ),
    ]
