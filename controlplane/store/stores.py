"""The stores that the loop and recovery work with, together."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.store.checkpoints import CheckpointStore
from controlplane.store.facts import FactStore
from controlplane.store.fleet import FleetStore
from controlplane.store.journal import Journal
from controlplane.store.launches import LaunchStore
from controlplane.store.lemons import LemonStore
from controlplane.store.repairs import RepairStore


@dataclass(frozen=True, slots=True)
class Stores:
    facts: FactStore
    checkpoints: CheckpointStore
    launches: LaunchStore
    lemons: LemonStore
    fleet: FleetStore
    journal: Journal
    repairs: RepairStore
