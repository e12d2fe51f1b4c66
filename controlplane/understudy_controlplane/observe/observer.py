"""Joins Slurm, live telemetry and the database into one snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.detect.wear_trend import worn_nodes
from understudy_controlplane.fleet.clock_sets import ClockSets
from understudy_controlplane.fleet.decision import Quarantine
from understudy_controlplane.fleet.drill import Drill, is_drill
from understudy_controlplane.fleet.durations import HOUR_SECONDS, WEEK_SECONDS
from understudy_controlplane.fleet.gang import LAST_STEPS_SECONDS, Gang
from understudy_controlplane.fleet.gres import gpus_of_gres
from understudy_controlplane.fleet.job import Job, JobKey, LastAttempt
from understudy_controlplane.fleet.node import (
    IN_REPAIR,
    Generation,
    NodeRecord,
    NodeState,
    NodeView,
    StoredHardwareEvent,
    StoredKernelEvent,
)
from understudy_controlplane.fleet.node_views import NodeViews
from understudy_controlplane.fleet.operator import InForce, MoveRequest
from understudy_controlplane.fleet.part_modes import part_modes
from understudy_controlplane.fleet.slurm import POOL_USER, Service, SlurmNode, SlurmView
from understudy_controlplane.fleet.snapshot import FleetHistory, JobProgress, OperatorState, SlurmShown, Snapshot
from understudy_controlplane.fleet.steps import StepTable
from understudy_controlplane.fleet.suspicion import SuspicionCause
from understudy_controlplane.fleet.topology import Topology
from understudy_controlplane.live.pulse import SlurmReading
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.observe.event_cache import EventCache
from understudy_controlplane.observe.gpu_wear import GpuWear
from understudy_controlplane.observe.inventory import Inventory
from understudy_controlplane.observe.node_history import NodeHistory
from understudy_controlplane.observe.partition_reader import PartitionReader
from understudy_controlplane.observe.preemption_reader import PreemptionReader
from understudy_controlplane.observe.recovery_history import RecoveryHistory
from understudy_controlplane.observe.slurm_reader import SlurmReader
from understudy_controlplane.observe.slurmd_probe import SlurmdProbe
from understudy_controlplane.observe.sources import Sources
from understudy_controlplane.observe.topology_reader import TopologyReader
from understudy_controlplane.slurm.parse import slurmd_timeout
from understudy_controlplane.slurm.protocol import miscounts_dead_gangs
from understudy_wire.hardware import Gpu

REFUSAL_AGE_MAX_SECONDS = 24 * HOUR_SECONDS
"""How long Slurm may have held a job that the Prolog refused while no control plane was running to release it."""

REPORT_DELAY_SECONDS = 3.0
"""A report received this soon after a node was cleared may show its GPUs as they were before, as before a reset. It
leads to no finding: if the fault remains, the next report shows it."""

NVML_START_SECONDS = 30.0
"""Age of an agent from which on a report without GPUs means that it reads none."""

HISTORY_SECONDS = 3600.0
"""The first agent of a node sends within this time what the kernel had logged before."""

CLOCK_TOLERANCE_SECONDS = 60.0
"""The clock of the kernel log may be wrong by this much."""

BROKEN_OFF_SECONDS = 600.0
"""Seconds after its report in which a launch that was broken off leads to a finding."""

LATE_SECONDS = 10.0
"""A reading after some that failed may come this much later than the next but one was due: what Slurm shows before and
after them counts as shown without a break.
"""

DISOBEYED_AGE_MAX_SECONDS = 24 * HOUR_SECONDS


@dataclass(frozen=True, slots=True)
class Observation:
    """One snapshot, and what the control plane has to record of it."""

    snapshot: Snapshot
    heard: Mapping[str, Heard]  # node → its newest report
    slurmds_first_answered: Sequence[str]
    gpus_due: Mapping[str, Sequence[Gpu]]  # node → its GPUs, where these have to be recorded
    new_events: Sequence[StoredKernelEvent] = ()  # that were received since this process started and the last look


class Observer:
    def __init__(self, sources: Sources) -> None:
        stores = sources.stores
        self._sources = sources
        self._slurm = SlurmReader(sources.slurm, sources.current.config.cluster, sources.clock)
        self._topology = TopologyReader(sources.slurm)
        self._partitions = PartitionReader(sources.slurm)
        self._preemption = PreemptionReader(sources.slurm)
        self._events = EventCache(stores.facts, sources.current.config.xid.burst_silence_seconds)
        self._history = NodeHistory(stores.checkpoints, stores.lemons, stores.journal)
        self._inventory = Inventory(stores.gpus)
        self._wear = GpuWear()
        self._progressed: dict[tuple[JobKey, int], bool] = {}
        """Job and restart count, while no rank of it has reported → whether the job finished a step before."""
        self._last_attempts: dict[tuple[JobKey, int, str], LastAttempt | None] = {}
        """Job, restart count, and whether it runs → its last attempt that was seen to run; None: none was."""
        self._clock_sets = ClockSets()
        self._made: Mapping[str, tuple[Heard | None, _Known, NodeView]] = {}
        """Views of the last look that were asked for."""
        self.begin()

    def clock_was_set(self, by_seconds: float) -> None:
        self._clock_sets = self._clock_sets.with_set(self._sources.clock.monotonic(), by_seconds, WEEK_SECONDS)
        self._slurm.clock_was_set(by_seconds)
        self.begin()

    def begin(self) -> None:
        """Begins at a start, and when the clock was set: how long a node is silent counts from now on."""
        self._started_at = self._sources.clock.now()
        self._view: SlurmView | None = None
        self._of_reading = _OfReading()
        self._errors = 0
        """Readings of Slurm that had failed at that view."""
        self._shown: dict[JobKey, Job] = {}
        self._shown_out_at: dict[str, float] = {}
        """Node → the last reading that showed it drained or down."""
        self._out_since: dict[str, float] = {}
        """Start of what the last readings showed of a node without a break, up to the reading before these."""
        self._slurm_silent_since: dict[str, float] = {}
        self._running: list[Job] = []
        self._interrupted: list[Job] = []
        self._looked_up: list[Job] = []
        """Managed jobs that run, or were requeued, of which the last attempt is looked up."""
        self._probe = SlurmdProbe(self._sources.probe, self._started_at)
        self._recoveries = RecoveryHistory(self._sources.stores.recoveries)  # a clock ahead made it forget too much
        self._events.forget()  # a clock that was set back changed their times

    @property
    def reading(self) -> SlurmReading:
        return self._slurm.reading

    @property
    def view(self) -> SlurmView | None:
        """What Slurm showed last, as far as it is recorded."""
        return self._view

    def read_slurm(self, age_max_seconds: float) -> SlurmView | None:
        """Read Slurm if the view of the last `look` is older than given. None: it is not, or Slurm is unreadable."""
        now = self._sources.clock.now()
        if self._view and 0 <= now - self._view.read_at < age_max_seconds:  # negative: the clock was set back
            return None
        return self._slurm.read()

    def look(self, new_view: SlurmView | None) -> Observation:
        """Everything known now, as one value. `new_view` is what `read_slurm` returned, recorded by now."""
        if new_view is not None:
            before = self._view.read_at if self._view is not None else new_view.read_at
            silent_since = self._slurm_silent_since if self._goes_on_with(new_view) else {}
            self._view, self._errors = new_view, self.reading.errors_total
            self._show_jobs(new_view)
            self._of_reading = _OfReading.of(new_view)
            apart = [new_view.nodes[name] for name in self._of_reading.set_apart]
            out = [node.name for node in apart if node.taken_out]
            self._shown_out_at |= dict.fromkeys(out, new_view.read_at)
            self._out_since = {name: self._out_since.get(name, before) for name in out}
            silent = [node.name for node in apart if node.service is Service.SILENT]
            self._slurm_silent_since = {name: silent_since.get(name, new_view.read_at) for name in silent}
        with self._sources.stores.one_view():
            return self._look()

    def _goes_on_with(self, view: SlurmView) -> bool:
        """slurmctld has not started since the reading before, and could be read since. Otherwise it may have asked no
        node meanwhile, and shows what it had saved.
        """
        before = self._view
        if before is None or view.slurmctld_started_at != before.slurmctld_started_at:
            return False
        if self.reading.errors_total == self._errors:
            return True
        next_but_one = before.read_at + 2 * self._sources.current.config.slurm.poll_interval_seconds
        return view.read_at <= next_but_one + LATE_SECONDS

    def _show_jobs(self, view: SlurmView) -> None:
        """Once for each reading: the queue may have tens of thousands of jobs."""
        config = self._sources.current.config
        shown = self._sources.directory.jobs_in(view, config.cluster, config.jobs.opt_in_word)
        self._shown = {job.key: job for job in shown}
        self._running = [job for job in shown if job.running]
        interrupted = self._sources.telemetry.interrupted_jobs()
        self._interrupted = [job for job in shown if job.key.job_id in interrupted] if interrupted else []
        self._looked_up = [
            job
            for job in shown
            if job.managed
            and (job.running or (job.slurm.restart_count and (job.slurm.pending or job.slurm.completing)))
        ]

    def _look(self) -> Observation:
        sources, view = self._sources, self._view
        now = sources.clock.now()
        heard = sources.telemetry.heard()
        records = sources.stores.kept_nodes.records()
        if view:  # while Slurm has never been read, the nodes are those in the database
            records = {name: record for name, record in records.items() if name in view.nodes}
        gpus_due = self._inventory.look(heard, now)
        self._wear.note(gpus_due, now)
        self._events.set_burst_silence(sources.current.config.xid.burst_silence_seconds)
        new_events = [one for one in self._events.refresh(now) if one.received_at >= self._started_at]
        silent_before = now - sources.current.config.silence.silent_after_seconds
        probed = self._probe.probe(records, view.nodes if view else {}, heard, silent_before, now)
        asked = in_force(sources.stores.requests.stored(), now)
        nodes = self._nodes(records, heard, probed.silent_since, asked.drills, now)
        return Observation(self._snapshot(nodes, asked, now), heard, probed.first_answers, gpus_due, new_events)

    def _snapshot(self, nodes: NodeViews, asked: InForce, now: float) -> Snapshot:
        sources, view = self._sources, self._view
        stores, config = sources.stores, sources.current.config
        jobs, running = self._shown, self._running
        monotonic = sources.clock.monotonic()
        week_ago, hour_ago = (self._clock_sets.ago(span, now, monotonic) for span in (WEEK_SECONDS, HOUR_SECONDS))
        attempts_since = min(
            [week_ago, *(node.record.since for node in nodes.notable_views() if node.state in IN_REPAIR)]
        )
        past = self._recoveries
        past.refresh(attempts_since)
        topology = self._topology.read(config, nodes, now, self.reading.error)
        tables = {
            job.key: table
            for job in running
            if (table := sources.telemetry.table(job.key, job.slurm.restart_count)) is not None
        }
        last_attempts, shrunk = self._attempts()
        saved, gangs = self._saved_at(running, nodes, now), self._gangs(running)
        ended_well = self._ended_well(running, gangs)
        first_nans, wrong_results = self._history.anomalies(now)
        quarantines = stores.journal.quarantined_since(week_ago)
        return Snapshot(
            now=now,
            monotonic=monotonic,
            clock_sets=self._clock_sets,
            started_at=self._started_at,
            mode=config.highest_mode.at_most(asked.mode_limit.mode),
            part_modes=part_modes(config, asked.mode_limit.mode, nodes.values()),
            other_leader=self._sources.telemetry.leaders.other(monotonic),
            nodes=nodes,
            jobs=jobs,
            recoveries=past.running(),
            proposals=tuple(stores.recoveries.proposals(now)),
            incidents=stores.incidents.open_incidents(),
            domains=self._domains(topology),
            topology=topology,
            signals=stores.signals.live(now),
            interrupted={
                job.key: stood
                for job in self._interrupted
                if (stood := sources.telemetry.interrupted(job.key, job.slurm.restart_count)) is not None
            },
            shrunk=shrunk,
            slurm=SlurmShown(
                read_at=view.read_at if view else None,
                slurmctld_started_at=view.slurmctld_started_at if view else None,
                ahead_seconds=view.clock_ahead_seconds if view else 0.0,
                slurmd_timeout_seconds=slurmd_timeout(self.reading.settings),
                error=self.reading.error,
                reservations=dict(view.reservations) if view else {},
                partition_states=self._partitions.read(now, self.reading.error),
                preemption=self._preemption.read(config, now, self.reading.error),
            ),
            progress=JobProgress(
                gangs=gangs,
                ended_well=frozenset(ended_well),
                past_its_gang=frozenset(
                    key
                    for key, at in ended_well.items()
                    if key in tables and tables[key].advanced_at > at + LAST_STEPS_SECONDS
                ),
                checkpointed_at={key: times[-1] for key, times in saved.items()},
                checkpoint_gaps={key: times[-1] - times[-2] for key, times in saved.items() if len(times) > 1},
                broken_off=stores.launches.broken_off(config.cluster, now - BROKEN_OFF_SECONDS),
                replaced=stores.launches.replacements(config.cluster),
                tables=tables,
                ordered_to_save=self._ordered_to_save(running),
                last_attempts=last_attempts,
                unheard_gangs=self._unheard_gangs(running, tables, gangs),
            ),
            history=FleetHistory(
                cancelled=past.cancelled_since(week_ago),
                lost_gangs=past.lost_gangs_since(week_ago),
                miscounted=past.dead_gangs_since(week_ago) if miscounts_dead_gangs(self.reading.settings) else (),
                swaps=past.swaps_since(hour_ago),
                spares_taken=past.spares_taken_since(week_ago),
                releases=past.releases_since(hour_ago),
                exclusions=past.exclusions_since(now - WEEK_SECONDS),
                refusals=stores.facts.refusals_since(now - REFUSAL_AGE_MAX_SECONDS),
                first_nans=first_nans,
                wrong_results=wrong_results,
                lemon_signals=self._history.lemon_signals(
                    jobs.values(), config.lemon.days, self._inventory.replacements, self._inventory.unseen, now
                ),
                attempts=past.attempts_since(attempts_since),
                quarantined_at=_by_node(quarantines),
                quarantines=quarantines,
                usual_quarantines=self._history.usual_quarantines(now),
                moved_gpus=self._inventory.moved,
                replacements=self._inventory.replacements,
                unseen=self._inventory.unseen,
                gpu_wear=self._wear.grown,
                disobeyed=past.disobeyed_since(now - DISOBEYED_AGE_MAX_SECONDS),
                limits=past.limits_since(week_ago),
                returns_failed=past.returns_failed_since(week_ago),
                returns_cancelled=past.returns_cancelled_since(week_ago),
                drains_lifted=past.drains_lifted_since(hour_ago),
                weights_left=past.weights_left_since(week_ago),
                hangs=past.hangs_since(week_ago),
                hung=past.hung_since(week_ago),
                black_holes=stores.launches.black_holes_since(week_ago),
                dealt_with=past.dealt_with_since(week_ago),
            ),
            operator=OperatorState(
                acting=asked.acting,
                paused=asked.pause.reason,
                halted=asked.pause.halts,
                cancels=asked.cancels,
                requests=asked.nodes,
                paused_jobs={
                    key: one.words
                    for key in (jobs if asked.job_pauses else ())
                    if (one := asked.job_pauses.get(key.job_id)) and one.concerns(key)
                },
                moves=self._moves(jobs, asked.moves),
                saves=asked.saves,
                drills=asked.drills,
                ended_holds=asked.ended_holds,
                spares_wanted=asked.spares_size.count,
                spare_choices=asked.spare_choices,
                breaker=asked.breaker.reason,
                breaker_holds_all=asked.breaker.holds_all,
                breaker_reset_at=asked.breaker.reset_at,
                maintenances=stores.maintenance.open_ones(),
            ),
        )

    def _ordered_to_save(self, running: Sequence[Job]) -> frozenset[JobKey]:
        ordered = self._sources.telemetry.ordered_to_save()
        return frozenset(job.key for job in running if job.key.job_id in ordered) if ordered else frozenset()

    def _unheard_gangs(
        self, running: Sequence[Job], tables: Mapping[JobKey, StepTable], gangs: Mapping[JobKey, Gang]
    ) -> dict[JobKey, float]:
        """Also where the launcher has begun another launch. Each is looked up once: what was before does not change
        while no rank reports.
        """
        heard = {key for key, one in tables.items() if key not in gangs or gangs[key].attempt <= one.attempt}
        silent = [job for job in running if job.managed and job.key not in heard]
        attempts = {(job.key, job.slurm.restart_count): job for job in silent}
        rows = {
            this: known.row
            for this in attempts.keys() - self._progressed.keys()
            if (known := self._sources.directory.get(this[0].job_id)) is not None
        }
        have = self._sources.stores.fleet.have_progressed(rows.values()) if rows else set()
        self._progressed = {
            **{this: self._progressed[this] for this in attempts.keys() & self._progressed.keys()},
            **{this: row in have for this, row in rows.items()},
        }
        return {
            key: float(
                max(
                    job.slurm.start_at or self._started_at,
                    job.slurm.suspended_or_resumed_at or 0,
                    tables[key].advanced_at if key in tables else 0,
                )
            )
            for (key, count), job in attempts.items()
            if self._progressed.get((key, count))
        }

    def _attempts(self) -> tuple[dict[JobKey, LastAttempt], dict[JobKey, int]]:
        """The attempt before of requeued jobs, and the size at their start of running ones that are smaller now. Each
        attempt is looked up once: its nodes do not change in the database, and one that has ended not at all.
        """
        jobs = {(job.key, job.slurm.restart_count, job.slurm.state): job for job in self._looked_up}
        rows = {
            this: known.row
            for this in jobs.keys() - self._last_attempts.keys()
            if (known := self._sources.directory.get(this[0].job_id)) is not None
        }
        # slurmctld has lost in a crash that a job had started which pends with the count of an attempt that was seen.
        newest = {row: this[1] - 1 if jobs[this].slurm.pending else this[1] for this, row in rows.items()}
        found = self._sources.stores.fleet.last_attempts(newest) if rows else {}
        self._last_attempts = {
            **{this: self._last_attempts[this] for this in jobs.keys() & self._last_attempts.keys()},
            **{this: found.get(row) for this, row in rows.items()},
        }
        known_ones = [(*this, last) for this, last in self._last_attempts.items() if last is not None]
        running = {key: len(job.slurm.nodes) for (key, _, _), job in jobs.items() if job.running}
        sizes = {key: len(last.nodes) for key, count, _, last in known_ones if last.restart_count == count}
        return (
            {key: last for key, count, _, last in known_ones if key not in running and last.restart_count < count},
            {key: size for key, size in sizes.items() if key in running and size > running[key]},
        )

    def _moves(self, jobs: Collection[JobKey], asked: Mapping[int, MoveRequest]) -> dict[JobKey, MoveRequest]:
        """Checkpoints are read only for a move that waits for one."""
        found: dict[JobKey, MoveRequest] = {}
        checkpoints = self._sources.stores.checkpoints
        for key in jobs if asked else ():
            request = asked.get(key.job_id)
            if request is not None and request.concerns(key):
                complete = checkpoints.complete_checkpoints(key) if request.at_checkpoint else ()
                newest = max((one.completed_at for one in complete), default=None)
                found[key] = replace(request, checkpoint_at=newest)
        return found

    def _saved_at(self, jobs: Sequence[Job], nodes: NodeViews, now: float) -> dict[JobKey, list[float]]:
        """When their checkpoints were complete, oldest first. Read only for jobs on a node that is suspected to be
        slow, or wears out.
        """
        asked = {node.name for node in nodes.notable_views() if node.record.suspected_of(SuspicionCause.SLOW)}
        asked |= worn_nodes(self._wear.grown, now)
        found: dict[JobKey, list[float]] = {}
        for job in jobs if asked else ():
            if job.managed and asked.intersection(job.slurm.nodes):
                complete = self._sources.stores.checkpoints.complete_checkpoints(job.key)
                if times := sorted(one.completed_at for one in complete if not one.condition.is_gone):
                    found[job.key] = times
        return found

    def _domains(self, topology: Topology) -> dict[str, tuple[str, ...]]:
        """Domains of failure: partitions, those of the topology, and the domains that the site configures."""
        domains = {**self._of_reading.partitions, **topology.failing_together}
        return domains | {name: tuple(nodes) for name, nodes in self._sources.current.config.guards.domains.items()}

    def _ended_well(self, running: Sequence[Job], gangs: Mapping[JobKey, Gang]) -> dict[JobKey, float]:
        """And when that was last reported. What a launcher reports arrives first; what the database has outlives it,
        and the control plane.
        """
        stored = self._sources.stores.launches.ended_well(self._sources.current.config.cluster)
        found: dict[JobKey, float] = {}
        for job in running:
            at, gang = stored.get((job.key, job.slurm.restart_count)), gangs.get(job.key)
            if gang is not None and gang.ended_well:
                at = max(at or 0.0, gang.heard_at or 0.0)
            if at is not None:
                found[job.key] = at
        return found

    def _gangs(self, jobs: Sequence[Job]) -> dict[JobKey, Gang]:
        """Gangs of managed running jobs, as reported by the launcher of the job's current allocation."""
        running = {job.key.job_id: job for job in jobs}
        return {
            running[job_id].key: gang
            for job_id, gang in self._sources.launchers.gangs().items()
            if job_id in running
            and running[job_id].managed
            and running[job_id].slurm.restart_count == gang.attempt.restart_count
        }

    def _nodes(
        self,
        records: Mapping[str, NodeRecord],
        heard: Mapping[str, Heard],
        slurmds_silent_since: Mapping[str, float],
        drills: Mapping[str, Drill],
        now: float,
    ) -> NodeViews:
        view, config = self._view, self._sources.current.config
        pool = view.reservations.get(config.spares.reservation) if view else None
        with_events = self._events.nodes & records.keys()
        kernel_events = ((name, self._kernel_events(records[name], heard, drills, now)) for name in with_events)
        hardware_events = ((name, self._events.hardware_events(records[name], now)) for name in with_events)
        look = _Look(
            records,
            {name: view.nodes.get(name) for name in records} if view else dict.fromkeys(records),
            heard,
            {name: found for name, found in kernel_events if found},
            {name: found for name, found in hardware_events if found},
            frozenset(pool.nodes) if pool is not None and pool.made_for(POOL_USER) else frozenset(),
            slurmds_silent_since,
            self._started_at,
            dict(self._shown_out_at),
            self._out_since,
            self._slurm_silent_since,
            self._made,
        )
        self._made = look.made
        versions = {name: one.versions for name, one in heard.items()}
        silent_before = now - config.silence.silent_after_seconds
        return NodeViews(look.view_of, look.slurm, versions, look.notable(silent_before, self._of_reading))

    def _kernel_events(
        self, record: NodeRecord, heard: Mapping[str, Heard], drills: Mapping[str, Drill], now: float
    ) -> tuple[StoredKernelEvent, ...]:
        """Those that count: of any boot, cleared or not."""
        name = record.name
        own = heard.get(name)
        events = _without_ended_drills(self._events.kernel_events(name, now), drills.get(name))
        is_gpuless = bool(events) and own is not None and self._of_reading.is_without_gpus(name, own)
        return tuple(
            one for one in events if not _is_history(one, record, own) and not (is_gpuless and _is_of_gpus(one))
        )


@dataclass(frozen=True, slots=True)
class _OfReading:
    """Counted once for each reading of Slurm."""

    set_apart: frozenset[str] = frozenset()  # nodes that Slurm cannot use
    gpus: Mapping[str, int] = field(default_factory=dict)  # node → how many it has
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "partition p" → its nodes

    @classmethod
    def of(cls, view: SlurmView) -> _OfReading:
        partitions: dict[str, list[str]] = {}
        for node in view.nodes.values():
            for partition in node.partitions:
                partitions.setdefault(partition, []).append(node.name)
        return cls(
            frozenset([name for name, node in view.nodes.items() if node.service is not Service.USABLE]),
            {name: count for name, node in view.nodes.items() if (count := gpus_of_gres(node.gres))},
            {f"partition {name}": tuple(nodes) for name, nodes in partitions.items()},
        )

    def is_without_gpus(self, name: str, heard: Heard) -> bool:
        """Slurm counts no GPUs for it, although it does for others, and its agent has read neither a GPU nor a driver.
        Containers on one host share a kernel log, so that a node may have lines of another one's GPUs.
        """
        return bool(self.gpus) and not (name in self.gpus or heard.report.gpus or heard.report.driver_version)


@dataclass(frozen=True, slots=True)
class _Look:
    """What is known of all nodes at one moment. Nothing here is changed afterwards."""

    records: Mapping[str, NodeRecord]
    slurm: Mapping[str, SlurmNode | None]
    heard: Mapping[str, Heard]
    kernel_events: Mapping[str, tuple[StoredKernelEvent, ...]]
    hardware_events: Mapping[str, tuple[StoredHardwareEvent, ...]]
    spares: frozenset[str]
    slurmds_silent_since: Mapping[str, float]
    started_at: float
    shown_out_at: Mapping[str, float]
    out_since: Mapping[str, float]
    slurm_silent_since: Mapping[str, float]
    made_before: Mapping[str, tuple[Heard | None, _Known, NodeView]]
    made: dict[str, tuple[Heard | None, _Known, NodeView]] = field(default_factory=dict)

    def notable(self, silent_before: float, shown: _OfReading) -> tuple[str, ...]:
        """Names of the nodes that `NodeViews` calls notable."""
        in_service, gpus, heard = NodeState.IN_SERVICE, shown.gpus, self.heard
        cleared_since = silent_before - REPORT_DELAY_SECONDS
        names = {*self.kernel_events, *self.hardware_events, *self.spares, *self.slurmds_silent_since}
        names |= shown.set_apart
        names.update(
            [
                name
                for name, record in self.records.items()
                if record.state is not in_service
                or record.cleared_at > cleared_since
                or record.weight is not None
                or record.suspicions
                or record.validation_origin is not None
                or record.past_boot_id
                or record.agent_seen_at is None
            ],
            [
                name
                for name, one in heard.items()
                if not one.usual
                or one.at < silent_before
                or one.report.stopping
                or len(one.report.gpus) < gpus.get(name, 0)
            ],
            self.records.keys() - heard.keys(),
        )
        return tuple([name for name, slurm in self.slurm.items() if name in names or slurm is None])

    def view_of(self, name: str, *, is_kept: bool = True) -> NodeView:
        """It stays the same while nothing changes that it depends on."""
        record, own = self.records[name], self.heard.get(name)
        if own is not None and record.past_boot_id and own.report.boot_id == record.past_boot_id:
            own = None  # sent before the reboot: the node has changed since
        known = _Known(
            record,
            self.slurm[name],
            self.kernel_events.get(name, ()),
            self.hardware_events.get(name, ()),
            name in self.spares,
            self.slurmds_silent_since.get(name),
            self.shown_out_at.get(name, self.started_at),
            self.out_since.get(name),
            self.slurm_silent_since.get(name),
        )
        if not is_kept:
            return _node_view(own, known)
        last = self.made_before.get(name)
        same = last is not None and last[0] is own and last[1] == known
        found = self.made[name] = last if last is not None and same else (own, known, _node_view(own, known))
        return found[2]


class _Known(NamedTuple):
    """What is known of a node besides its newest report."""

    record: NodeRecord
    slurm: SlurmNode | None
    events: tuple[StoredKernelEvent, ...]  # of any boot, cleared or not
    hardware_events: tuple[StoredHardwareEvent, ...]
    is_spare: bool
    slurmd_silent_since: float | None
    shown_out_at: float
    out_since: float | None
    slurm_silent_since: float | None


def _node_view(heard: Heard | None, known: _Known) -> NodeView:
    """It depends on these two alone, so it stays while they do. `heard` is of the boot that counts."""
    record = known.record
    if heard is None:
        return NodeView(
            record=record,
            slurm=known.slurm,
            heard_at=None,
            events=_of_boot(known, ""),
            is_spare=known.is_spare,
            history=known.events,
            slurmd_silent_since=known.slurmd_silent_since,
            hardware_events=known.hardware_events,
            shown_out_at=known.shown_out_at,
            out_since=known.out_since,
            slurm_silent_since=known.slurm_silent_since,
            gpus_awaited=record.agent_seen_at is not None,
        )
    report = heard.report
    shows_gpus = heard.at > record.cleared_at + REPORT_DELAY_SECONDS
    return NodeView(
        record=record,
        slurm=known.slurm,
        heard_at=heard.at,
        boot_id=report.boot_id,
        driver_version=report.driver_version,
        gpus=tuple(report.gpus) if shows_gpus else (),
        events=_of_boot(known, report.boot_id),
        is_spare=known.is_spare,
        history=known.events,
        slurmd_silent_since=known.slurmd_silent_since,
        hardware_events=known.hardware_events,
        ports=tuple(report.ports),
        host=report.host,
        keeper=report.keeper,
        parts=heard.parts,
        nvml_silent_seconds=report.nvml_silent_seconds,
        nvml_unkillable=report.nvml_unkillable,
        ports_silent_seconds=report.ports_silent_seconds,
        host_silent_seconds=report.host_silent_seconds,
        stopping=report.stopping,
        clock_ahead_seconds=report.sent_at - heard.at,
        shown_out_at=known.shown_out_at,
        out_since=known.out_since,
        slurm_silent_since=known.slurm_silent_since,
        gpus_readable=heard.gpus if shows_gpus else None,
        gpus_awaited=not shows_gpus
        or (heard.gpus is None and report.sent_at - report.agent_started_at < NVML_START_SECONDS),
        problems=tuple(report.problems),
        processes=tuple(report.processes),
        usual=heard.usual
        and not known.hardware_events
        and known.slurm is not None
        and gpus_of_gres(known.slurm.gres) <= len(report.gpus),
    )


def _of_boot(known: _Known, boot_id: str) -> tuple[StoredKernelEvent, ...]:
    cleared_at = known.record.cleared_at
    return tuple(one for one in known.events if one.event.boot_id == boot_id and one.received_at > cleared_at)


def _is_of_gpus(stored: StoredKernelEvent) -> bool:
    return stored.event.text.startswith(("NVRM: ", "nvidia")) and stored.generation == Generation()


def agent_since(record: NodeRecord, heard: Heard | None) -> float | None:
    """When the first agent of this node started, by the control plane's clock; None: not known."""
    if record.agent_seen_at is not None or heard is None:
        return record.agent_since
    return heard.at - max(0.0, heard.report.sent_at - heard.report.agent_started_at)


def _is_history(stored: StoredKernelEvent, record: NodeRecord, heard: Heard | None) -> bool:
    """It was logged before the node had an agent. The first agent sends such lines at once; a line that comes later has
    a time of a clock that was wrong.
    """
    since = agent_since(record, heard)
    if since is None or not 0 <= stored.received_at - since <= HISTORY_SECONDS:
        return False
    node_ahead_seconds = heard.report.sent_at - heard.at if heard is not None else 0.0
    return stored.event.at - node_ahead_seconds < since - CLOCK_TOLERANCE_SECONDS


def _without_ended_drills(events: Sequence[StoredKernelEvent], drill: Drill | None) -> Sequence[StoredKernelEvent]:
    """The line of a drill counts while the drill goes on, and never again."""
    if not any(is_drill(one.event.text) for one in events):
        return events
    return [one for one in events if not is_drill(one.event.text) or (drill and one.received_at >= drill.at)]


def _by_node(quarantines: Iterable[Quarantine]) -> dict[str, tuple[float, ...]]:
    found: dict[str, tuple[float, ...]] = {}
    for one in quarantines:
        found[one.node] = (*found.get(one.node, ()), one.at)
    return found
