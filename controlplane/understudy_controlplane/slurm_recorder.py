"""Records what Slurm shows: nodes, drains, jobs, attempts and their progress. Judges nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import structlog

from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.fleet.custody import Holder, in_slurm
from understudy_controlplane.fleet.job import Attempt, Job, KnownJob, Reached
from understudy_controlplane.fleet.node import IN_REPAIR, OUT_OF_SERVICE, SLURM_SAVES_SECONDS, NodeRecord
from understudy_controlplane.fleet.operator import BY_CONTROL_PLANE, Verb
from understudy_controlplane.fleet.slurm import SlurmNode, SlurmView
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_controlplane.store.stores import Stores

log = structlog.get_logger()

PROGRESS_INTERVAL_SECONDS = 10.0

SEEN_SECONDS = 24 * 3600.0
"""A job that stays as it is is written once a day: how long Slurm has not shown a job decides when it is deleted."""

SEEN_AT_ONCE = 100
"""Jobs taken from one reading of Slurm."""

WRITTEN_AT_ONCE = 5_000
"""Jobs of one transaction, of a second at most: a control plane that is new writes the whole queue, and routes wait."""


Progress = Mapping[tuple[int, Attempt], Reached]
"""What `Telemetry.progress` returns."""


class SlurmRecorder:
    """Writes only changes: a fleet has thousands of jobs that stay as they are."""

    def __init__(
        self,
        current: CurrentConfig,
        stores: Stores,
        telemetry: Telemetry,
        directory: JobDirectory,
        launchers: Launchers,
        forget_all_but: Callable[[Set[int]], None] = lambda _running: None,
    ) -> None:
        """`forget_all_but` is given the rows of all jobs that run."""
        self._current = current
        self._fleet = stores.fleet
        self._facts = stores.facts
        self._requests = stores.requests
        self._telemetry = telemetry
        self._directory = directory
        self._launchers = launchers
        self._forget_all_but = forget_all_but
        self._names: set[str] = set()
        """Nodes in the database; none is ever deleted."""
        self._progress: dict[tuple[int, Attempt], tuple[int, float]] = {}
        self._places_known = False
        """False until the steps are known that the jobs had finished before this process started."""
        self._attempts: tuple[dict[int, Attempt], dict[int, int]] | None = None
        """Job rows with the launch that runs, and, where none was heard of, with the restart count; None: not known."""

    def record(self, view: SlurmView, made_progress: Callable[[], None] = lambda: None) -> None:
        """`view` is what Slurm showed just now. In the database first, then in memory. `made_progress` is called where
        that takes long.
        """
        now = view.read_at
        self._record_drains(view, now)
        self._record_new_nodes(view, now)
        self._telemetry.know(view.nodes.keys())
        self._directory.show(view.jobs.keys(), now, {job.job_id for job in view.jobs.values() if job.ended})
        config = self._current.config
        shown = self._directory.jobs_in(view, config.cluster, config.jobs.opt_in_word)
        jobs = self._record_jobs(shown, now, made_progress)
        if not self._places_known:
            places = self._fleet.places(known.row for known, _ in jobs)
            self._telemetry.count_on({job.key.job_id: places[known.row] for known, job in jobs if known.row in places})
            self._places_known = True
        running = {job.job_id: job for job in view.jobs.values() if job.state == "RUNNING"}
        self._telemetry.allocations.note((job for _, job in jobs), now)
        progress = self._telemetry.progress()
        self._record_progress(progress, {(job.job_id, job.restart_count) for job in running.values()}, now)
        self._end_attempts(progress, [(known, job) for known, job in jobs if job.running], now)
        self._launchers.forget_all_but({job.job_id: job.restart_count for job in running.values()})
        self._forget_all_but({known.row for known, job in jobs if job.running})
        self._telemetry.expect(
            {
                job.job_id: ExpectedJob(
                    job.restart_count,
                    job.user_id,
                    frozenset(job.nodes),
                    job.suspended_or_resumed_at,
                    job.ranks_max,
                )
                for job in running.values()
            },
            {job.job_id for job in view.jobs.values()},
            {
                job.job_id: job.suspended_or_resumed_at - view.clock_ahead_seconds
                for job in view.jobs.values()
                if job.suspended_or_resumed_at is not None and job.holds_nodes
            },
            now,
        )
        for one in self._facts.attach_waiting(self._directory.get, now, self._telemetry.nodes_of).unreadable:
            log.error("waiting_fact_unreadable", fact=one)

    def _record_drains(self, view: SlurmView, now: float) -> None:
        for record in self._fleet.nodes_in(OUT_OF_SERVICE):
            slurm = view.nodes.get(record.name)
            if slurm is None or not (slurm.draining or in_slurm(slurm).holder is Holder.UNDERSTUDY):
                continue
            if record.state not in IN_REPAIR:
                self._record_drain(record, slurm, now)
            if record.drained_at is not None and not record.drain_settled:
                self._record_start(record, view.slurmctld_started_at)

    def _record_drain(self, record: NodeRecord, slurm: SlurmNode, now: float) -> None:
        if record.drained_at is None:
            self._fleet.drained(slurm, now)
        elif not record.drain_user and slurm.reason == record.drain_reason:
            self._fleet.owned(slurm, record.drained_at)  # written before the control plane kept user and time
        elif not record.drain_settled and now - record.drained_at > SLURM_SAVES_SECONDS:
            self._fleet.settled(record.name)

    def _record_start(self, record: NodeRecord, slurmctld_started_at: float | None) -> None:
        if slurmctld_started_at is not None and record.drained_under != slurmctld_started_at:
            self._fleet.shown_by(record.name, slurmctld_started_at)

    def _record_new_nodes(self, view: SlurmView, now: float) -> None:
        if not view.nodes.keys() <= self._names:
            self._names = set(self._fleet.nodes())
        new_nodes = sorted(view.nodes.keys() - self._names)
        if not new_nodes:
            return
        self._fleet.add_nodes(new_nodes, now)
        # If the database has no node, the control plane is new, not the nodes.
        if self._names and self._current.config.validation.burn_in_new_nodes:
            for name in new_nodes:
                self._requests.ask(Verb.BURN_IN, name, "the node is new in Slurm", BY_CONTROL_PLANE, now)

    def _record_jobs(
        self, jobs: list[Job], now: float, made_progress: Callable[[], None]
    ) -> list[tuple[KnownJob, Job]]:
        """Writes the jobs that are not in the database as Slurm shows them, many at once."""
        known = self._directory.known(job.key.job_id for job in jobs)
        changed: list[Job] = []
        unseen: list[Job] = []  # for a day
        for job, old in zip(jobs, known, strict=True):
            if old is None or _differ(job, old):
                changed.append(job)
            elif not 0 <= now - old.seen_at < SEEN_SECONDS:
                unseen.append(job)
        changed += unseen[:SEEN_AT_ONCE]
        for first in range(0, len(changed), WRITTEN_AT_ONCE):
            self._attempts = None
            for new in self._fleet.see_jobs(changed[first : first + WRITTEN_AT_ONCE], now):
                self._directory.put(new)
            made_progress()
        if changed:
            known = self._directory.known(job.key.job_id for job in jobs)
        return [(found, job) for job, found in zip(jobs, known, strict=True) if found is not None]

    def _end_attempts(self, progress: Progress, running: list[tuple[KnownJob, Job]], now: float) -> None:
        """The newest reported launch of each running job goes on; all other attempts have ended. A control plane that
        has just started has heard of no launch yet.
        """
        latest = dict(progress.keys())
        heard: dict[int, Attempt] = {}
        unheard: dict[int, int] = {}
        for known, job in running:
            attempt = latest.get(job.key.job_id)
            if attempt is not None and attempt.restart_count == job.slurm.restart_count:
                heard[known.row] = attempt
            else:
                unheard[known.row] = job.slurm.restart_count
        if (heard, unheard) != self._attempts:
            self._fleet.end_attempts(heard, now, unheard)
            self._attempts = heard, unheard

    def _record_progress(self, progress: Progress, running: set[tuple[int, int]], now: float) -> None:
        """Every ten seconds for attempts that run; at once for those that ended: no later report repeats it."""
        news: dict[tuple[int, Attempt], Reached] = {}
        launches: dict[int, Attempt] = {}
        for (job_id, attempt), reached in progress.items():
            noted, noted_at = self._progress.get((job_id, attempt), (-1, 0.0))
            due = now - noted_at >= PROGRESS_INTERVAL_SECONDS or (job_id, attempt.restart_count) not in running
            if reached.step > noted and due and (row := self._directory.row_of(job_id)) is not None:
                if attempt.launch and (job_id, attempt) not in self._progress:
                    launches[row] = attempt
                news[row, attempt] = reached
                self._progress[job_id, attempt] = (reached.step, now)
        if launches:
            self._attempts = None
            self._fleet.see_launches(launches, now)
        self._fleet.note_progress(news)
        self._progress = {key: noted for key, noted in self._progress.items() if key in progress}


def _differ(job: Job, written: KnownJob) -> bool:
    now = job.key, job.managed, job.slurm.state, job.slurm.restart_count
    return now != (written.key, written.managed, written.state, written.restart_count)
