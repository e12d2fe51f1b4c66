"""Records what agents and slurmds show: which of them were seen, and which parts are in which node. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import structlog

from understudy_controlplane.observe.inventory import MOVE_SECONDS_MIN, NODES_AT_ONCE, RECORD_INTERVAL_SECONDS
from understudy_controlplane.observe.observer import Observation, agent_since
from understudy_controlplane.store.database import caused_by_content
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.gpus import GpuStore
from understudy_controlplane.store.parts import PartStore
from understudy_wire.hardware import Part

log = structlog.get_logger()

AGENTS_INTERVAL_SECONDS = 60.0

SeenT = TypeVar("SeenT")


class AgentRecorder:
    def __init__(self, fleet: FleetStore, gpus: GpuStore, parts: PartStore) -> None:
        self._fleet = fleet
        self._gpus = gpus
        self._parts = parts
        self._parts_recorded: dict[str, tuple[float, tuple[Part, ...]]] = {}
        self._agents_recorded_at = 0.0
        self._agents_recorded: set[str] = set()

    def record(self, observation: Observation) -> None:
        now = observation.snapshot.now
        agents = self._agents_due(observation, now)
        if agents or observation.slurmds_first_answered:
            new = (node.record for node in observation.snapshot.notable if node.record.agent_seen_at is None)
            first = {one.name: agent_since(one, observation.heard[one.name]) for one in new if one.name in agents}
            self._fleet.note_seen(agents, observation.slurmds_first_answered, now, first)
        if observation.gpus_due:
            each_alone(lambda seen: self._gpus.see_gpus(seen, now), observation.gpus_due)
        if parts := self._parts_due(observation, now):
            each_alone(lambda seen: self._parts.see(seen, now), parts)

    def _parts_due(self, observation: Observation, now: float) -> dict[str, Sequence[Part]]:
        """Node → its parts, where these have changed or the last record is an hour old; as with GPUs, no node whose
        last report is old.
        """
        due: dict[str, Sequence[Part]] = {}
        for name, heard in observation.heard.items():
            if not heard.parts:
                continue
            recorded_at, recorded = self._parts_recorded.get(name, (0.0, ()))
            old = not 0 <= now - recorded_at < RECORD_INTERVAL_SECONDS
            if now - heard.at <= MOVE_SECONDS_MIN and (old or heard.parts != recorded):
                due[name] = heard.parts
                self._parts_recorded[name] = (now, heard.parts)
                if len(due) >= NODES_AT_ONCE:
                    break
        if not self._parts_recorded.keys() <= observation.heard.keys():
            for gone in self._parts_recorded.keys() - observation.heard.keys():
                del self._parts_recorded[gone]
        return due

    def _agents_due(self, observation: Observation, now: float) -> set[str]:
        """All agents heard, once a minute and when there is a new one: after a restart it must still be known which
        nodes ever had an agent.
        """
        recorded_lately = 0 <= now - self._agents_recorded_at < AGENTS_INTERVAL_SECONDS
        if recorded_lately and observation.heard.keys() <= self._agents_recorded:
            return set()
        self._agents_recorded_at, self._agents_recorded = now, set(observation.heard)
        return self._agents_recorded


def each_alone(see: Callable[[Mapping[str, Sequence[SeenT]]], None], seen: Mapping[str, Sequence[SeenT]]) -> None:
    """A node whose parts cannot be stored keeps no other node's from it. Raises StoreError where the database fails."""
    try:
        see(seen)
    except Exception as error:
        if not caused_by_content(error):
            raise
        if len(seen) == 1:
            log.exception("parts_not_stored", node=next(iter(seen)))
            return
        for node, parts in seen.items():
            each_alone(see, {node: parts})
