"""How much of each budget is used, and by which nodes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from understudy_controlplane.config import Config
from understudy_controlplane.decide.guards import (
    breaker_limit,
    failures,
    hourly_limit,
    lately_quarantined,
    quarantine_limit,
    quarantined_beside,
    quarantined_within_the_hour,
    waiting_limit,
    waiting_nodes,
)
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.fleet.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Budget:
    name: str
    used: int
    limit: int
    setting: str  # by which a site lowers it; empty: there is none
    nodes: Sequence[str]  # that use it

    @property
    def spent(self) -> bool:
        return self.used >= self.limit


def budgets(snapshot: Snapshot, config: Config) -> list[Budget]:
    """Budgets as the guards count: a domain that failed as a whole is one, and all of its nodes are named."""
    since = snapshot.ago(HOUR_SECONDS)
    recent = sorted(name for name, times in snapshot.history.quarantined_at.items() if any(at > since for at in times))
    waiting, allowed = waiting_nodes(snapshot, config), waiting_limit(snapshot, config)
    lately = lately_quarantined(snapshot, config)
    return [
        Budget(
            "out of service at the same time by Understudy, besides those that wait for a person",
            quarantined_beside(snapshot, config)[1],
            quarantine_limit(snapshot, config),
            "guards.quarantined_nodes_max",
            sorted(snapshot.at_fault - waiting if len(failures(snapshot, waiting)) <= allowed else snapshot.at_fault),
        ),
        Budget("wait for a person", len(failures(snapshot, waiting)), allowed, "", sorted(waiting)),
        Budget(
            "quarantined within an hour",
            quarantined_within_the_hour(snapshot),
            hourly_limit(snapshot, config),
            "",
            recent,
        ),
        Budget(
            "quarantined within the circuit breaker's window",
            len(failures(snapshot, lately)),
            breaker_limit(snapshot, config),
            "guards.breaker_nodes_max",
            sorted(lately),
        ),
    ]
