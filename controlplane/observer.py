"""Joins live telemetry, the database and Slurm into one snapshot. Judges nothing, changes nothing in Slurm."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from controlplane.bookkeeper import Bookkeeper
from controlplane.clock import Clock
from controlplane.config import Config
from controlplane.decide.guards import HOUR_SECONDS
from controlplane.detect.silence import is_mass_silence
from controlplane.fleet.job import Job
from controlplane.fleet.node import NodeRecord, NodeState, NodeView, StoredKernelEvent
from controlplane.fleet.slurm import SlurmNode, SlurmView
from controlplane.fleet.snapshot import Snapshot
from controlplane.live.pulse import SlurmReading
from controlplane.live.telemetry import Heard, Telemetry
from controlplane.slurm.protocol import Slurm, SlurmError, read_view
from controlplane.store.stores import Stores

log = structlog.get_logger()

EVENTS_REMEMBERED_SECONDS = 7 * 24 * HOUR_SECONDS
"""Kernel events older than this condemn nobody who has not been condemned by then."""

PROBES_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Sources:
    """`probe(node)` tells whether anybody answers at its slurmd's port."""

    slurm: Slurm
    stores: Stores
    telemetry: Telemetry
    bookkeeper: Bookkeeper
    probe: Callable[[SlurmNode], bool]
    config: Config
    clock: Clock


class Observer:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._started_at = sources.clock.now()
        self._view: SlurmView | None = None
        self._last_event_id = 0
        self._events: list[StoredKernelEvent] = []
        self._slurmd_silent_since: dict[str, float] = {}
        self.reading = SlurmReading()

    def look(self, slurm_age_max_seconds: float) -> Snapshot:
        """Everything known now, as one value. Slurm is read again when the last reading is older than given."""
        self._read_slurm(slurm_age_max_seconds)
        sources, view = self._sources, self._view
        now = sources.clock.now()
        journal = sources.stores.journal
        jobs: list[Job] = sources.bookkeeper.jobs(view) if view else []
        return Snapshot(
            now=now,
            started_at=self._started_at,
            mode=sources.config.mode,
            paused=sources.stores.fleet.pause(),
            slurm_read_at=view.read_at if view else None,
            slurm_error=self.reading.error,
            nodes=self._nodes(now),
            jobs={job.key: job for job in jobs},
            reservations=dict(view.reservations) if view else {},
            recoveries=tuple(journal.recoveries()),
            swaps=journal.swaps_since(now - HOUR_SECONDS),
            quarantines=journal.quarantines_since(now - HOUR_SECONDS),
            tables={
                job.key: table
                for job in jobs
                if job.running and (table := sources.telemetry.table(job.key, job.slurm.restart_count)) is not None
            },
        )

    def _read_slurm(self, age_max_seconds: float) -> None:
        now = self._sources.clock.now()
        if self._view and now - self._view.read_at < age_max_seconds:
            return
        try:
            view = read_view(self._sources.slurm, now)
        except SlurmError as error:
            if not self.reading.error:
                log.warning("slurm.unreadable", error=str(error))
            self.reading.error = str(error)
            self.reading.errors_total += 1
            return
        self.reading.at, self.reading.error = now, ""
        self.reading.seconds = self._sources.clock.now() - now
        self._sources.bookkeeper.note(view, now)
        self._view = view

    def _nodes(self, now: float) -> dict[str, NodeView]:
        """Nodes that Slurm knows; while it has never been read, those in the database."""
        heard = self._sources.telemetry.heard()
        records = self._sources.stores.fleet.nodes()
        if self._view:
            records = {name: record for name, record in records.items() if name in self._view.nodes}
        silent_since = self._probe_silent(records, heard, now)
        events = self._open_events(now)
        return {
            name: self._node(record, heard.get(name), events.get(name, []), silent_since.get(name))
            for name, record in records.items()
        }

    def _node(
        self,
        record: NodeRecord,
        heard: Heard | None,
        events: list[StoredKernelEvent],
        slurmd_silent: float | None,
    ) -> NodeView:
        boot_id = heard.report.boot_id if heard else ""
        pool = self._view.reservations.get(self._sources.config.spares.reservation) if self._view else None
        return NodeView(
            record=record,
            slurm=self._view.nodes.get(record.name) if self._view else None,
            heard_at=heard.at if heard else None,
            boot_id=boot_id,
            gpus=tuple(heard.report.gpus) if heard else (),
            events=tuple(one for one in events if one.event.boot_id == boot_id and one.event.at > record.cleared_at),
            is_spare=pool is not None and record.name in pool.nodes,
            slurmd_silent_since=slurmd_silent,
        )

    def _open_events(self, now: float) -> dict[str, list[StoredKernelEvent]]:
        horizon = now - EVENTS_REMEMBERED_SECONDS
        fresh = self._sources.stores.facts.kernel_events(self._last_event_id, horizon)
        if fresh:
            self._last_event_id = fresh[-1].id
            self._events = [event for event in self._events if event.event.at >= horizon] + fresh
        by_node: dict[str, list[StoredKernelEvent]] = {}
        for event in self._events:
            by_node.setdefault(event.node, []).append(event)
        return by_node

    def _probe_silent(self, records: dict[str, NodeRecord], heard: dict[str, Heard], now: float) -> dict[str, float]:
        """Since when nobody answers at the slurmd ports of silent nodes.

        Not asked when so many are silent that nothing will follow from it, and not of empty nodes out of service.
        """
        policy = self._sources.config.silence
        slurm_nodes = self._view.nodes if self._view else {}
        quiet_since = now - policy.silent_after_seconds
        silent = [
            name
            for name in records
            if max(heard[name].at if name in heard else 0.0, self._started_at) < quiet_since and name in slurm_nodes
        ]
        asked = [
            slurm_nodes[name]
            for name in silent
            if records[name].state is not NodeState.QUARANTINED or slurm_nodes[name].base_state != "IDLE"
        ]
        if is_mass_silence(len(silent), len(records), policy):
            asked = []
        with ThreadPoolExecutor(max_workers=PROBES_AT_ONCE) as pool:
            answers = list(pool.map(self._sources.probe, asked))
        self._slurmd_silent_since = {
            node.name: self._slurmd_silent_since.get(node.name, now)
            for node, answered in zip(asked, answers, strict=True)
            if not answered
        }
        return self._slurmd_silent_since
