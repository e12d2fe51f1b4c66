"""Orders gangs to save, and records what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.decide.save_steps import wanted
from understudy_controlplane.figures.checkpoint_cost import Exposure, cost_of
from understudy_controlplane.figures.checkpoint_interval import FailureRate, failure_rate
from understudy_controlplane.figures.tier_cadence import class_of
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.job import Job, JobKey, MeasuredCheckpoint
from understudy_controlplane.fleet.saves_in_memory import SaveInMemory, saves_in_memory
from understudy_controlplane.fleet.saving import FailureClass, SaveCause, SaveCost, SaveRequest, SavingGang, SettledSave
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.meters import Meters
from understudy_controlplane.live.save_orders import SaveOrders
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.report import ReportStore
from understudy_controlplane.store.requests import RequestStore
from understudy_wire.facts import Tier
from understudy_wire.ranks import OrderState

log = structlog.get_logger()

COSTS_AGE_MAX_SECONDS = 60.0
"""What checkpoints cost, and how often nodes fail, is read again after this time."""

HISTORY_SECONDS = 28 * DAY_SECONDS
REQUEST_SECONDS_MAX = 1800.0
"""After this a request that could not be carried out is given up."""


class Saves:
    """Called by the loop alone."""

    def __init__(
        self,
        live: SaveOrders,
        store: RequestStore,
        checkpoints: CheckpointStore,
        reports: ReportStore,
        current: CurrentConfig,
        clock: Clock,
    ) -> None:
        self._live, self._requests, self._checkpoints, self._reports = live, store, checkpoints, reports
        self._current, self._clock = current, clock
        self._costs: dict[JobKey, SaveCost] = {}
        self._costs_at = 0.0

    def tick(self, snapshot: Snapshot, meters: Meters) -> None:
        now = self._clock.now()
        answered = {self._record(settled, now, meters) for settled in self._live.settle(now)}
        waiting = {job_id: one for job_id, one in snapshot.operator.saves.items() if one.id not in answered}
        gangs, requests = self._live.gangs(), self._still_wanted(waiting, snapshot, now)
        if not gangs:
            return
        self._read_costs(snapshot, gangs, now)
        for one in wanted(snapshot, gangs, requests, self._costs, self._current.config.signals):
            if self._live.propose(one, now):
                log.info("save_proposed", job=str(one.job), step=one.step, cause=one.cause.value, reason=one.why)

    def _record(self, settled: SettledSave, now: float, meters: Meters) -> int | None:
        """Returns the request that this answers."""
        order, one = settled.order, settled.wanted
        is_valid = order.state is OrderState.VALID
        meters.save_orders.labels(one.cause.value if one else "not_known", order.state.value).inc()
        if not is_valid:
            log.warning("save_withdrawn", job=settled.job_id, step=order.step, reason=settled.why)
            return None
        log.info("save_ordered", job=settled.job_id, step=order.step, cause=one.cause.value if one else "")
        outcome = f"all ranks save before step {order.step}"
        if one is not None and one.cause is SaveCause.REQUEST and one.request is not None:
            self._requests.answer(one.request, outcome, now, is_done=True)
            return one.request
        if one is not None:
            self._requests.note_save(settled.job_id, f"{one.why}; {outcome}", outcome, now)
        return None

    def _still_wanted(
        self, requests: Mapping[int, SaveRequest], snapshot: Snapshot, now: float
    ) -> Mapping[int, SaveRequest]:
        """Gives up the others."""
        if not requests or snapshot.slurm.read_at is None:
            return requests
        left = dict(requests)
        running = {job.key.job_id: job for job in snapshot.jobs.values() if job.running}
        for job_id, request in requests.items():
            over = "the job does not run any more" if job_id not in running else ""
            if job_id in running and not running[job_id].managed:
                over = "its owner has opted out: the job is not managed any more"
            if now - request.at > REQUEST_SECONDS_MAX:
                over = f"the order did not reach all ranks within {REQUEST_SECONDS_MAX / 60:g} minutes"
            if over:
                self._requests.answer(request.id, over, now, is_done=False)
                log.warning("save_given_up", job=job_id, number=request.id, reason=over)
                del left[job_id]
        return left

    def _read_costs(self, snapshot: Snapshot, gangs: Mapping[int, SavingGang], now: float) -> None:
        if 0 <= now - self._costs_at < COSTS_AGE_MAX_SECONDS:
            return
        self._costs_at = now
        rate, counts = fleet_rate(self._reports, len(snapshot.nodes), now)
        jobs = [job for job in snapshot.jobs.values() if job.key.job_id in gangs and job.running]
        copy_rate = self._current.config.checkpoints.copy_megabytes_per_second * 1e6
        self._costs = {
            job.key: cost_of(
                measured(job, snapshot, self._checkpoints), Exposure(rate, len(job.slurm.nodes), counts, copy_rate)
            )
            for job in jobs
        }


def in_memory(job: Job, snapshot: Snapshot) -> list[SaveInMemory]:
    """What a gang on the job's nodes has in their memory, newest first; where it has no nodes: on all."""
    names = job.slurm.nodes or snapshot.nodes
    views = [snapshot.nodes[name] for name in names if name in snapshot.nodes]
    keepers = {one.name: one.keeper for one in views if one.keeper is not None}
    return saves_in_memory(keepers, job.key.job_id, job.slurm.user_id)


def measured(job: Job, snapshot: Snapshot, checkpoints: CheckpointStore) -> list[MeasuredCheckpoint]:
    """What the newest ones cost, those in memory too."""
    saves = [
        MeasuredCheckpoint(one.attempt, one.step, one.at, one.world_size, one.blocked_seconds, None, Tier.PEER)
        for one in in_memory(job, snapshot)
    ]
    return [*checkpoints.measured(job.key), *saves]


def object_interval(
    job: Job, snapshot: Snapshot, checkpoints: CheckpointStore, reports: ReportStore, copy_rate: float
) -> float:
    """The best one of a job's checkpoints in an object store, in seconds; 0: it is not known."""
    rate, counts = fleet_rate(reports, len(snapshot.nodes), snapshot.now)
    newest = measured(job, snapshot, checkpoints)
    cost = cost_of(newest, Exposure(rate, len(job.slurm.nodes), counts, copy_rate))
    return next((one.interval for one in cost.tiers if one.tier is Tier.OBJECT), 0.0)


def fleet_rate(reports: ReportStore, nodes: int, now: float) -> tuple[FailureRate, dict[FailureClass, int]]:
    """Incidents by node and day, and by class, of the last four weeks or since the first known incident."""
    since = max(now - HISTORY_SECONDS, reports.first_incident_at() or now)
    counts: Counter[FailureClass] = Counter()
    for one in reports.incidents(since, now):
        counts[class_of(one.name)] += one.count
    return failure_rate(counts.total(), nodes * (now - since) / DAY_SECONDS), dict(counts)
