"""Joins live telemetry, the database and Slurm into one snapshot. Judges nothing, changes nothing in Slurm."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from understudy_agent.wire import Gpu
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Config
from understudy_controlplane.decide.guards import HOUR_SECONDS
from understudy_controlplane.decide.ladder import WEEK_SECONDS
from understudy_controlplane.detect.lemon import excluded_by
from understudy_controlplane.detect.node_log import NodeLog
from understudy_controlplane.fleet.gang import Gang
from understudy_controlplane.fleet.gpu import MovedGpu
from understudy_controlplane.fleet.job import FirstNan, Job, JobKey
from understudy_controlplane.fleet.lemon import LemonSignals
from understudy_controlplane.fleet.node import (
    IN_OUR_HANDS,
    OUT_OF_SERVICE,
    NodeRecord,
    NodeView,
    StoredHardwareEvent,
    StoredKernelEvent,
)
from understudy_controlplane.fleet.slurm import POOL_USER, SlurmNode, SlurmView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.live.pulse import SlurmReading
from understudy_controlplane.live.telemetry import Heard, Telemetry
from understudy_controlplane.slurm.parse import slurmctld_started_at
from understudy_controlplane.slurm.protocol import Slurm, SlurmError, read_view
from understudy_controlplane.slurm_recorder import Bookkeeper
from understudy_controlplane.store.stores import Stores

log = structlog.get_logger()

EVENTS_REMEMBERED_SECONDS = 7 * 24 * HOUR_SECONDS
"""Kernel events older than this condemn nobody who has not been condemned by then."""

HARDWARE_EVENTS_AT_ONCE = 256
"""Of one node: a port that flaps all day has said all there is to say."""

REFUSALS_REMEMBERED_SECONDS = 24 * HOUR_SECONDS
"""So long a job that our Prolog kept off a node may have been held when nobody of us was there to set it free."""

REQUESTS_REMEMBERED_SECONDS = 8 * 24 * HOUR_SECONDS
"""Longer than any of them waits to be answered, so that one that waits no more is told of (`decide.life`)."""

TOPOLOGY_AGE_MAX_SECONDS = 300.0

GPUS_NOTED_SECONDS = 3600.0
NODES_NOTED_AT_ONCE = 50
"""A control plane that starts has thousands of nodes' GPUs to write down: they take turns."""

READ_BEFORE_SECONDS = 3.0
"""A report that comes in this soon after a node was cleared may tell of its GPUs as they were before, as before a
reset: it condemns nobody. What is still so is told again."""

MOVED_GPUS_MAX = 1000
MOVED_IN_SECONDS = 60.0
"""Nobody moves a GPU from node to node in less: both have to be switched off."""
DISOBEYED_SECONDS = 24 * HOUR_SECONDS
HANGS_REMEMBERED_SECONDS = 7 * 24 * HOUR_SECONDS

PROBES_AT_ONCE = 64
"""In one tick no more are asked: each may take as long as it is given."""

NANS_AGE_SECONDS = 300.0
LEMONS_AGE_SECONDS = 300.0
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
    launchers: Launchers
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
        self._logs: dict[str, NodeLog] = {}
        self._last_hardware_id = 0
        self._hardware: dict[str, deque[StoredHardwareEvent]] = {}
        self._agents_noted_at = 0.0
        self._try_at: dict[str, float] = {}
        self._tries: Counter[str] = Counter()
        self._agents_noted: set[str] = set()
        self._first_nans: tuple[FirstNan, ...] = ()
        self._newest_anomaly, self._nans_at = 0, 0.0
        self._lemons: dict[str, LemonSignals] = {}
        self._lemons_at = 0.0
        self._slurmd_silent_since: dict[str, float] = {}
        self._asked: dict[str, float] = {}
        self._gpus_noted: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._moved_gpus: list[MovedGpu] = []
        self._topology: dict[str, tuple[str, ...]] = {}
        self._topology_read_at: float | None = None
        self.reading = SlurmReading()

    def look(self, slurm_age_max_seconds: float) -> Snapshot:
        """Everything known now, as one value. Slurm is read again when the last reading is older than given."""
        self._read_slurm(slurm_age_max_seconds)
        sources, view = self._sources, self._view
        now = sources.clock.now()
        journal = sources.stores.journal
        jobs: list[Job] = sources.bookkeeper.jobs(view) if view else []
        nodes = self._nodes(now)
        in_our_hands = (node.record.since for node in nodes.values() if node.state in IN_OUR_HANDS)
        return Snapshot(
            now=now,
            started_at=self._started_at,
            mode=sources.config.mode,
            paused=sources.stores.fleet.pause(),
            slurm_read_at=view.read_at if view else None,
            slurmctld_started_at=self._slurmctld_started_at,
            slurm_error=self.reading.error,
            nodes=nodes,
            jobs={job.key: job for job in jobs},
            reservations=dict(view.reservations) if view else {},
            recoveries=tuple(journal.recoveries()),
            swaps=journal.swaps_since(now - HOUR_SECONDS),
            quarantines=journal.quarantines_since(now - HOUR_SECONDS),
            releases=journal.releases_since(now - HOUR_SECONDS),
            refusals=sources.stores.facts.refusals_since(now - REFUSALS_REMEMBERED_SECONDS),
            first_nans=self._where_nan_was_first(now),
            lemon_signals=self._remembered(now, jobs),
            attempts=sources.stores.repairs.attempts_since(min([now - WEEK_SECONDS, *in_our_hands])),
            quarantined_at=sources.stores.repairs.quarantined_since(now - WEEK_SECONDS),
            incidents=sources.stores.repairs.open_incidents(),
            requests=sources.stores.repairs.requests_since(now - REQUESTS_REMEMBERED_SECONDS),
            breaker=sources.stores.repairs.breaker(),
            breaker_reset_at=sources.stores.repairs.breaker_reset_at(),
            domains=self._domains(now),
            moved_gpus=tuple(self._moved_gpus),
            gangs=self._gangs(jobs),
            disobeyed=journal.disobeyed_since(now - DISOBEYED_SECONDS),
            limits=journal.limits_since(now - HANGS_REMEMBERED_SECONDS),
            hangs=journal.hangs_since(now - HANGS_REMEMBERED_SECONDS),
            black_holes=sources.stores.launches.black_holes_since(now - HANGS_REMEMBERED_SECONDS),
            replaced=sources.stores.launches.replacements(sources.config.cluster),
            tables={
                job.key: table
                for job in jobs
                if job.running and (table := sources.telemetry.table(job.key, job.slurm.restart_count)) is not None
            },
        )

    def _domains(self, now: float) -> dict[str, tuple[str, ...]]:
        """Where one cause may take several nodes: partitions, leaf switches or blocks, and what the site names."""
        found: dict[str, list[str]] = {}
        for node in self._view.nodes.values() if self._view else ():
            for partition in node.partitions:
                found.setdefault(f"partition {partition}", []).append(node.name)
        domains = {name: tuple(nodes) for name, nodes in found.items()}
        domains |= {f"switch {name}": nodes for name, nodes in self._topology_now(now).items()}
        return domains | {name: tuple(nodes) for name, nodes in self._sources.config.guards.domains.items()}

    def _topology_now(self, now: float) -> dict[str, tuple[str, ...]]:
        """It changes when Slurm is reconfigured: seldom."""
        read_at = self._topology_read_at
        if self.reading.error or (read_at is not None and 0 <= now - read_at < TOPOLOGY_AGE_MAX_SECONDS):
            return self._topology
        self._topology_read_at = now
        try:
            self._topology = self._sources.slurm.topology()
        except SlurmError as error:
            log.warning("slurm.topology_unreadable", error=str(error), remedy="the last one that was read is used")
        return self._topology

    def _gangs(self, jobs: Sequence[Job]) -> dict[JobKey, Gang]:
        """Of jobs of ours that run, by the word of the launcher of this very allocation."""
        running = {job.key.job_id: job for job in jobs if job.running}
        if self._view:
            counts = {job_id: job.slurm.restart_count for job_id, job in running.items()}
            self._sources.launchers.forget_all_but(counts)
        return {
            running[job_id].key: gang
            for job_id, gang in self._sources.launchers.gangs().items()
            if job_id in running
            and running[job_id].managed
            and running[job_id].slurm.restart_count == gang.attempt.restart_count
        }

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
        self._note_gpus(heard, now)
        silent_since = self._ask_slurmds(records, heard, now)
        events = self._open_events(now)
        self._read_hardware_events(now)
        pool = self._view.reservations.get(self._sources.config.spares.reservation) if self._view else None
        spares = frozenset(pool.nodes) if pool is not None and pool.made_for(POOL_USER) else frozenset()
        return {
            name: self._node(
                record,
                heard.get(name),
                events.get(name, ()),
                self._hardware_of(record, now),
                name in spares,
                silent_since.get(name),
            )
            for name, record in records.items()
        }

    def _node(
        self,
        record: NodeRecord,
        heard: Heard | None,
        events: Sequence[StoredKernelEvent],
        hardware: tuple[StoredHardwareEvent, ...],
        is_spare: bool,
        slurmd_silent: float | None,
    ) -> NodeView:
        if heard and record.past_boot_id and heard.report.boot_id == record.past_boot_id:
            heard = None  # told before the reboot: of a node that is no more as it was
        boot_id = heard.report.boot_id if heard else ""
        return NodeView(
            record=record,
            slurm=self._view.nodes.get(record.name) if self._view else None,
            heard_at=heard.at if heard else None,
            boot_id=boot_id,
            driver_version=heard.report.driver_version if heard else "",
            gpus=tuple(heard.report.gpus) if heard and heard.at > record.cleared_at + READ_BEFORE_SECONDS else (),
            events=tuple(one for one in events if one.event.boot_id == boot_id and one.received_at > record.cleared_at),
            history=tuple(events),
            is_spare=is_spare,
            slurmd_silent_since=slurmd_silent,
            hardware_events=hardware,
            ports=tuple(heard.report.ports) if heard else (),
            host=heard.report.host if heard else None,
            nvml_silent_seconds=heard.report.nvml_silent_seconds if heard else 0.0,
            nvml_unkillable=heard.report.nvml_unkillable if heard else False,
            ports_silent_seconds=heard.report.ports_silent_seconds if heard else 0.0,
            host_silent_seconds=heard.report.host_silent_seconds if heard else 0.0,
            clock_ahead_seconds=heard.report.sent_at - heard.at if heard else 0.0,
        )

    def _open_events(self, now: float) -> dict[str, list[StoredKernelEvent]]:
        """Storms of events that say the same are one event each, with their number."""
        horizon = now - EVENTS_REMEMBERED_SECONDS
        for event in self._sources.stores.facts.kernel_events(self._last_event_id, horizon):
            self._last_event_id = event.id
            log = self._logs.get(event.node)
            if log is None:
                log = self._logs[event.node] = NodeLog(self._sources.config.xid.burst_silence_seconds)
            log.add(event)
        return {node: log.events(horizon) for node, log in self._logs.items()}

    def _hardware_of(self, record: NodeRecord, now: float) -> tuple[StoredHardwareEvent, ...]:
        known = self._hardware.get(record.name)
        if not known:
            return ()
        since = max(record.cleared_at, now - EVENTS_REMEMBERED_SECONDS)
        return tuple(one for one in known if one.received_at > since)

    def _read_hardware_events(self, now: float) -> None:
        """Each of them counts, up to a bound: what a port did is judged by how often it did it."""
        for event in self._sources.stores.facts.hardware_events(
            self._last_hardware_id, now - EVENTS_REMEMBERED_SECONDS
        ):
            self._last_hardware_id = event.id
            self._hardware.setdefault(event.node, deque(maxlen=HARDWARE_EVENTS_AT_ONCE)).append(event)

    def _where_nan_was_first(self, now: float) -> tuple[FirstNan, ...]:
        """Looked up again when there is a new one, or when an old one may be old enough to be forgotten."""
        newest = self._sources.stores.checkpoints.newest_anomaly()
        if newest != self._newest_anomaly or not 0 <= now - self._nans_at < NANS_AGE_SECONDS:
            self._first_nans = self._sources.stores.checkpoints.first_nans(now - EVENTS_REMEMBERED_SECONDS)
            self._newest_anomaly, self._nans_at = newest, now
        return self._first_nans

    def _remembered(self, now: float, jobs: Sequence[Job]) -> dict[str, LemonSignals]:
        """Counted anew from time to time: weeks do not change within a tick."""
        if not 0 <= now - self._lemons_at < LEMONS_AGE_SECONDS:
            since = now - self._sources.config.lemon.days * 24 * HOUR_SECONDS
            self._lemons = self._sources.stores.lemons.signals(since, excluded_by(jobs))
            self._lemons_at = now
        return self._lemons

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
                idle = record.state in OUT_OF_SERVICE and slurm.base_state in ("IDLE", "DOWN")
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

    def _note_gpus(self, heard: dict[str, Heard], now: float) -> None:
        """Which GPU sits where: when that changes, and now and then. Not of nodes that are heard no more: what they had
        may have been taken out of them since.
        """
        due: dict[str, Sequence[Gpu]] = {}
        for name, one in heard.items():
            present = tuple(gpu.uuid for gpu in one.report.gpus)
            noted_at, noted = self._gpus_noted.get(name, (0.0, ()))
            fresh = now - one.at <= MOVED_IN_SECONDS
            if present and fresh and (present != noted or not 0 <= now - noted_at < GPUS_NOTED_SECONDS):
                due[name] = one.report.gpus
                self._gpus_noted[name] = (now, present)
                if len(due) >= NODES_NOTED_AT_ONCE:
                    break
        if due:
            moved = self._sources.stores.repairs.see_gpus(due, now)
            moved = [one for one in moved if not self._still_there(one, heard, now)]
            uuids = {one.uuid for one in moved}  # where they are now is what counts, and coming back is news again
            self._moved_gpus = [one for one in self._moved_gpus if one.uuid not in uuids] + moved
            del self._moved_gpus[:-MOVED_GPUS_MAX]

    @staticmethod
    def _still_there(moved: MovedGpu, heard: dict[str, Heard], now: float) -> bool:
        """Two nodes that show the same GPU at once: one of them is mistaken, and nothing was moved."""
        before = heard.get(moved.from_node)
        if before is None or now - before.at > MOVED_IN_SECONDS:
            return False
        return any(gpu.uuid == moved.uuid for gpu in before.report.gpus)
