"""The stores that the loop and recovery work with, together."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.store.facts import FactStore
from controlplane.store.fleet import FleetStore
from controlplane.store.journal import Journal
from controlplane.store.repairs import RepairStore


@dataclass(frozen=True, slots=True)
class Stores:
    facts: FactStore
    fleet: FleetStore
    journal: Journal
    repairs: RepairStore
