"""NOT NOW, NOT SO MANY: what keeps a right decision from being carried out.

Asked in the order of the list; the first that objects is the answer. A guard never turns one action into another.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.config import Config, Mode
from controlplane.fleet.decision import Because
from controlplane.fleet.snapshot import Snapshot

HOUR_SECONDS = 3600.0

STARTUP_GRACE_SECONDS = 10.0
"""After a start nothing is done before every usable node was heard, or this has passed: whoever happens to report
first would be taken for all there is."""


@dataclass(frozen=True, slots=True)
class Objection:
    because: Because
    words: str


def quarantine_limit(snapshot: Snapshot, config: Config) -> int:
    """How many nodes may be quarantined at once."""
    share = int(config.guards.quarantined_share_max * len(snapshot.nodes))
    return min(config.guards.quarantined_nodes_max, max(1, share))


def still_gathering(snapshot: Snapshot) -> bool:
    return snapshot.now - snapshot.started_at < STARTUP_GRACE_SECONDS and snapshot.unheard


def object_to_any(snapshot: Snapshot) -> Objection | None:
    """Guards that hold for every effect on Slurm."""
    if snapshot.mode is Mode.OBSERVE:
        return Objection(Because.DRY_RUN, 'the control plane only observes (mode = "observe")')
    if snapshot.paused:
        return Objection(Because.PAUSED, f"paused by an operator: {snapshot.paused}")
    if snapshot.slurm_error or snapshot.slurm_read_at is None:
        return Objection(Because.SLURM_UNREADABLE, "Slurm cannot be read, so nothing is known for sure")
    if still_gathering(snapshot):
        return Objection(Because.GATHERING, "this control plane has just started and not yet heard every node")
    return None


def object_to_quarantine(snapshot: Snapshot, config: Config, already: int) -> Objection | None:
    """`already`: quarantines decided in this same round."""
    general = object_to_any(snapshot)
    if general:
        return general
    held = already + snapshot.quarantined
    limit = quarantine_limit(snapshot, config)
    if held >= limit:
        return Objection(Because.FLEET_BUDGET, f"{limit} nodes are quarantined already, which is the limit")
    recent = already + sum(at > snapshot.now - HOUR_SECONDS for at in snapshot.quarantines)
    if recent >= config.guards.quarantines_per_hour_max:
        words = f"{config.guards.quarantines_per_hour_max} nodes were quarantined within the hour, which is the limit"
        return Objection(Because.HOURLY_BUDGET, words)
    return None
