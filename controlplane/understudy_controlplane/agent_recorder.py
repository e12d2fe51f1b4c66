"""Records what agents and slurmds show: which of them were seen, and which GPUs sit in which node. Judges nothing."""

from __future__ import annotations

from understudy_controlplane.observe.observer import Observation
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.repairs import RepairStore

AGENTS_INTERVAL_SECONDS = 60.0


class AgentRecorder:
    def __init__(self, fleet: FleetStore, repairs: RepairStore) -> None:
        self._fleet = fleet
        self._repairs = repairs
        self._agents_recorded_at = 0.0
        self._agents_recorded: set[str] = set()

    def record(self, observation: Observation) -> None:
        now = observation.snapshot.now
        agents = self._agents_due(observation, now)
        if agents or observation.slurmds_first_answered:
            self._fleet.note_seen(agents, observation.slurmds_first_answered, now)
        if observation.gpus_due:
            self._repairs.see_gpus(observation.gpus_due, now)

    def _agents_due(self, observation: Observation, now: float) -> set[str]:
        """All agents heard, once a minute and when there is a new one: after a restart it must still be known which
        nodes ever had an agent.
        """
        heard = set(observation.heard)
        fresh = heard - self._agents_recorded
        if not fresh and 0 <= now - self._agents_recorded_at < AGENTS_INTERVAL_SECONDS:
            return set()
        self._agents_recorded_at, self._agents_recorded = now, heard
        return heard
