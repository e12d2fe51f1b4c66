"""The stores that the loop and recovery work with, together."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.journal import Journal
from understudy_controlplane.store.launches import LaunchStore
from understudy_controlplane.store.lemons import LemonStore
from understudy_controlplane.store.repairs import RepairStore


@dataclass(frozen=True, slots=True)
class Stores:
    facts: FactStore
    checkpoints: CheckpointStore
    launches: LaunchStore
    lemons: LemonStore
    fleet: FleetStore
    journal: Journal
    repairs: RepairStore
