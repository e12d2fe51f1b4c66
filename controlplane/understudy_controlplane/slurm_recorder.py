"""Writes down what Slurm shows: nodes, jobs, attempts and how far they came. Judges nothing."""

from __future__ import annotations

from understudy_controlplane.config import Config
from understudy_controlplane.fleet.job import Attempt, Job, JobKey, KnownJob, identify, opted_in
from understudy_controlplane.fleet.node import IN_OUR_HANDS, OUT_OF_SERVICE, SLURM_SAVES_SECONDS, NodeRecord
from understudy_controlplane.fleet.operator import OURSELVES, Verb
from understudy_controlplane.fleet.slurm import SlurmNode, SlurmView
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.repairs import RepairStore

PROGRESS_INTERVAL_SECONDS = 2.0


class Bookkeeper:
    """Only changes are written: a fleet has thousands of jobs that stay as they are."""

    def __init__(
        self,
        config: Config,
        fleet: FleetStore,
        facts: FactStore,
        repairs: RepairStore,
        telemetry: Telemetry,
        directory: JobDirectory,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._facts = facts
        self._repairs = repairs
        self._telemetry = telemetry
        self._directory = directory
        self._names: set[str] = set()
        """Nodes that are written down: none ever goes."""
        self._seen: dict[JobKey, tuple[str, int, bool]] = {}
        self._progress: dict[tuple[int, Attempt], tuple[int, float]] = {}

    def jobs(self, view: SlurmView) -> list[Job]:
        return [
            Job(
                key=identify(self._config.cluster, slurm, self._directory.get(slurm.job_id)),
                slurm=slurm,
                managed=opted_in(slurm.comment, self._config.jobs.opt_in_word),
            )
            for slurm in view.jobs.values()
        ]

    def note(self, view: SlurmView, now: float) -> None:
        for record in self._fleet.nodes_in(OUT_OF_SERVICE - IN_OUR_HANDS):
            slurm = view.nodes.get(record.name)
            if slurm is not None and slurm.draining:
                self._note_drain(record, slurm, now)
        if not view.nodes.keys() <= self._names:
            self._names = set(self._fleet.nodes())
        new_nodes = view.nodes.keys() - self._names
        if new_nodes:
            self._fleet.add_nodes(new_nodes, now)
            if self._names and self._config.validation.burn_in_new_nodes:  # else it is we who are new
                for name in sorted(new_nodes):
                    self._repairs.ask(Verb.BURN_IN, name, "Slurm did not know it before", OURSELVES, now)
        self._telemetry.know(view.nodes.keys())
        jobs = self._note_jobs(self.jobs(view), now)
        self._telemetry.allocations.note((job for _, job in jobs), now)
        running = {(job_id, job.restart_count) for job_id, job in view.jobs.items() if job.state == "RUNNING"}
        self._note_progress(running, now)
        self._end_attempts([(known, job) for known, job in jobs if job.running], now)
        self._telemetry.expect(
            {
                job_id: ExpectedJob(job.restart_count, job.user_id, frozenset(job.nodes))
                for job_id, job in view.jobs.items()
                if job.state == "RUNNING"
            }
        )
        self._facts.attach_waiting(self._directory.get, now)

    def _note_drain(self, record: NodeRecord, slurm: SlurmNode, now: float) -> None:
        if record.drained_at is None:
            self._fleet.drained(slurm, now)
        elif not record.drain_user and slurm.reason == record.drain_reason:
            self._fleet.owned(slurm, record.drained_at)  # of before there was this proof
        elif not record.drain_settled and now - record.drained_at > SLURM_SAVES_SECONDS:
            self._fleet.settled(record.name)

    def _note_jobs(self, jobs: list[Job], now: float) -> list[tuple[KnownJob, Job]]:
        """Those that changed are written, all at once: a control plane that starts has thousands of them."""
        seen = {job.key: (job.slurm.state, job.slurm.restart_count, job.managed) for job in jobs}
        known = {job.key: self._directory.get(job.key.job_id) for job in jobs}
        changed = [
            job
            for job in jobs
            if (old := known[job.key]) is None or old.key != job.key or self._seen.get(job.key) != seen[job.key]
        ]
        if changed:
            for new in self._fleet.see_jobs(changed, now):
                self._directory.put(new)
                known[new.key] = new
        self._seen = seen  # last: what could not be written is tried again
        return [(found, job) for job in jobs if (found := known[job.key]) is not None]

    def _end_attempts(self, running: list[tuple[KnownJob, Job]], now: float) -> None:
        """Of each running job the latest launch that was heard of goes on; all others are over."""
        latest = dict(self._telemetry.progress().keys())
        going_on: dict[int, Attempt] = {}
        for known, job in running:
            attempt = latest.get(job.key.job_id)
            same = attempt is not None and attempt.restart_count == job.slurm.restart_count
            going_on[known.row] = attempt if attempt is not None and same else Attempt(job.slurm.restart_count)
        self._fleet.end_attempts(going_on, now)

    def _note_progress(self, running: set[tuple[int, int]], now: float) -> None:
        """Now and then for attempts that run; at once for those that have just ended: nobody will tell it again."""
        progress = self._telemetry.progress()
        news: dict[tuple[int, Attempt], tuple[int, float]] = {}
        launches: dict[int, Attempt] = {}
        for (job_id, attempt), (step, at) in progress.items():
            row = self._directory.row_of(job_id)
            noted, noted_at = self._progress.get((job_id, attempt), (-1, 0.0))
            due = now - noted_at >= PROGRESS_INTERVAL_SECONDS or (job_id, attempt.restart_count) not in running
            if row is not None and step > noted and due:
                if attempt.launch and (job_id, attempt) not in self._progress:
                    launches[row] = attempt
                news[row, attempt] = (step, at)
                self._progress[job_id, attempt] = (step, now)
        if launches:
            self._fleet.see_launches(launches, now)
        self._fleet.note_progress(news)
        self._progress = {key: noted for key, noted in self._progress.items() if key in progress}
