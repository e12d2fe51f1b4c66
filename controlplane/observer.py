"""Joins live telemetry, the database and Slurm into one snapshot. Judges nothing, changes nothing in Slurm."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from controlplane.bookkeeper import Bookkeeper
from controlplane.clock import Clock
from controlplane.config import Config
from controlplane.decide.guards import HOUR_SECONDS
from controlplane.fleet.job import Job
from controlplane.fleet.node import NodeRecord, NodeState, NodeView, StoredKernelEvent
from controlplane.fleet.slurm import POOL_USER, SlurmNode, SlurmView
from controlplane.fleet.snapshot import Snapshot
from controlplane.live.pulse import SlurmReading
from controlplane.live.telemetry import Heard, Telemetry
from controlplane.slurm.protocol import Slurm, SlurmError, read_view, slurmctld_started_at
from controlplane.store.stores import Stores

log = structlog.get_logger()

EVENTS_REMEMBERED_SECONDS = 7 * 24 * HOUR_SECONDS
"""Kernel events older than this condemn nobody who has not been condemned by then."""

REFUSALS_REMEMBERED_SECONDS = 24 * HOUR_SECONDS
"""So long a job that our Prolog kept off a node may have been held when nobody of us was there to set it free."""

PROBES_AT_ONCE = 64
"""In one tick no more are asked: each may take as long as it is given."""

AGENTS_NOTED_SECONDS = 60.0
TRY_AGAIN_SECONDS = 60.0
"""A slurmd that never answered us is tried again after this, then after twice as long, and so on..."""

TRIES_DOUBLED_MAX = 6
"""... to about an hour: behind a firewall each try takes as long as it may, and a fleet has thousands."""


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
        self._slurmctld_started_at: float | None = None
        self._last_event_id = 0
        self._events: dict[str, dict[tuple[str, int | None, str], StoredKernelEvent]] = {}
        self._agents_noted_at = 0.0
        self._try_at: dict[str, float] = {}
        self._tries: Counter[str] = Counter()
        self._agents_noted: set[str] = set()
        self._slurmd_silent_since: dict[str, float] = {}
        self._asked: dict[str, float] = {}
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
            slurmctld_started_at=self._slurmctld_started_at,
            slurm_error=self.reading.error,
            nodes=self._nodes(now),
            jobs={job.key: job for job in jobs},
            reservations=dict(view.reservations) if view else {},
            recoveries=tuple(journal.recoveries()),
            swaps=journal.swaps_since(now - HOUR_SECONDS),
            quarantines=journal.quarantines_since(now - HOUR_SECONDS),
            releases=journal.releases_since(now - HOUR_SECONDS),
            refusals=sources.stores.facts.refusals_since(now - REFUSALS_REMEMBERED_SECONDS),
            tables={
                job.key: table
                for job in jobs
                if job.running and (table := sources.telemetry.table(job.key, job.slurm.restart_count)) is not None
            },
        )

    def _read_slurm(self, age_max_seconds: float) -> None:
        now = self._sources.clock.now()
        if self._view and 0 <= now - self._view.read_at < age_max_seconds:  # negative: the clock was set back
            return
        try:
            self._ask_slurmctld()
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

    def _ask_slurmctld(self) -> None:
        """Whose it is, and since when it runs. A control plane that was pointed at another cluster must not act on it.

        Raises SlurmError.
        """
        settings = self._sources.slurm.config()
        name, ours = settings["ClusterName"], self._sources.config.cluster
        if name.casefold() != ours.casefold():  # Slurm itself makes no difference of case
            raise SlurmError(f"this Slurm's ClusterName is {name!r}, but the configuration says {ours!r}")
        self._slurmctld_started_at = slurmctld_started_at(settings)

    def _nodes(self, now: float) -> dict[str, NodeView]:
        """Nodes that Slurm knows; while it has never been read, those in the database."""
        heard = self._sources.telemetry.heard()
        records = self._sources.stores.fleet.nodes()
        if self._view:
            records = {name: record for name, record in records.items() if name in self._view.nodes}
        self._note_agents(heard, now)
        silent_since = self._ask_slurmds(records, heard, now)
        events = self._open_events(now)
        pool = self._view.reservations.get(self._sources.config.spares.reservation) if self._view else None
        spares = frozenset(pool.nodes) if pool is not None and pool.made_for(POOL_USER) else frozenset()
        return {
            name: self._node(record, heard.get(name), events.get(name, ()), name in spares, silent_since.get(name))
            for name, record in records.items()
        }

    def _node(
        self,
        record: NodeRecord,
        heard: Heard | None,
        events: Sequence[StoredKernelEvent],
        is_spare: bool,
        slurmd_silent: float | None,
    ) -> NodeView:
        boot_id = heard.report.boot_id if heard else ""
        return NodeView(
            record=record,
            slurm=self._view.nodes.get(record.name) if self._view else None,
            heard_at=heard.at if heard else None,
            boot_id=boot_id,
            gpus=tuple(heard.report.gpus) if heard else (),
            events=tuple(one for one in events if one.event.boot_id == boot_id and one.received_at > record.cleared_at),
            is_spare=is_spare,
            slurmd_silent_since=slurmd_silent,
        )

    def _open_events(self, now: float) -> dict[str, list[StoredKernelEvent]]:
        """Of each kind (boot, code, GPU) on a node the latest: a storm of them is one fact, not thousands."""
        horizon = now - EVENTS_REMEMBERED_SECONDS
        for event in self._sources.stores.facts.kernel_events(self._last_event_id, horizon):
            self._last_event_id = event.id
            kind = (event.event.boot_id, event.event.xid, event.event.bus_id)
            self._events.setdefault(event.node, {})[kind] = event
        return {
            node: [event for event in kinds.values() if event.received_at >= horizon]
            for node, kinds in self._events.items()
        }

    def _ask_slurmds(self, records: dict[str, NodeRecord], heard: dict[str, Heard], now: float) -> dict[str, float]:
        """Since when nobody answers at the slurmd ports of silent nodes.

        Only a node whose slurmd has answered us once is asked so: elsewhere a firewall may be in the way. Each node is
        tried for that when it is first heard. Nodes that are out of service and empty are left in peace.
        """
        slurm_nodes = self._view.nodes if self._view else {}
        quiet_before = now - self._sources.config.silence.silent_after_seconds
        silent: list[SlurmNode] = []
        new: list[SlurmNode] = []
        for name, record in records.items():
            slurm = slurm_nodes.get(name)
            if slurm is None or slurm.on_leave:
                continue
            if record.slurmd_seen_at is None:
                new += [slurm] if name in heard else []
            elif max(heard[name].at if name in heard else 0.0, self._started_at) < quiet_before:
                idle = record.state is NodeState.QUARANTINED and slurm.base_state in ("IDLE", "DOWN")
                silent += [] if idle else [slurm]
        new = [node for node in new if now > self._try_at.get(node.name, 0.0)]
        if len(silent) > max(PROBES_AT_ONCE, len(records) // 2):
            silent = []  # nothing will be concluded from so many
        names = {node.name for node in silent}
        self._asked = {name: at for name, at in self._asked.items() if name in names}
        # They take turns, where there are more than can be asked in one tick.
        silent = sorted(silent, key=lambda node: self._asked.get(node.name, 0.0))[:PROBES_AT_ONCE]
        asked = [*silent, *new[: PROBES_AT_ONCE - len(silent)]]
        for node in asked[len(silent) :]:
            doubled = min(self._tries[node.name], TRIES_DOUBLED_MAX)
            self._try_at[node.name] = now + TRY_AGAIN_SECONDS * 2**doubled
            self._tries[node.name] += 1
        self._asked |= {node.name: now for node in silent}
        since = {name: at for name, at in self._slurmd_silent_since.items() if name in names}
        self._slurmd_silent_since = since
        if not asked:
            return {}
        with ThreadPoolExecutor(max_workers=len(asked)) as pool:
            answers = dict(zip(asked, pool.map(self._sources.probe, asked), strict=True))
        self._sources.stores.fleet.note_seen((), [node.name for node in asked[len(silent) :] if answers[node]], now)
        for node in silent:
            if answers[node]:
                since.pop(node.name, None)
            else:
                since.setdefault(node.name, now)
        # Only of those asked just now: what is concluded from silence is concluded from a fresh one.
        return {node.name: since[node.name] for node in silent if node.name in since}

    def _note_agents(self, heard: dict[str, Heard], now: float) -> None:
        """To the minute: whether a node ever had an agent must be known after a restart as well."""
        fresh = heard.keys() - self._agents_noted
        if fresh or not 0 <= now - self._agents_noted_at < AGENTS_NOTED_SECONDS:
            self._agents_noted_at, self._agents_noted = now, set(heard)
            self._sources.stores.fleet.note_seen(heard, (), now)
