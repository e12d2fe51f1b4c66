"""Finds the job that a Slurm job id belongs to now."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from understudy_controlplane.fleet.job import Job, KnownJob, checkpoint_folders, job_shown
from understudy_controlplane.fleet.slurm import SlurmView

FORGET_SECONDS = 3600.0
"""A job that Slurm has not shown for this time leaves the memory. It is found in the database."""


OVER_SECONDS = 60.0
"""Seconds for which Slurm has shown a job as ended until it counts as over: until then it may be requeued by the same
hand.
"""


INVENTED_SECONDS = 120.0
"""Slurm is read several times within it: it shows a job that has just begun."""
ASKED_MAX = 10_000


class JobDirectory:
    """Jobs that Slurm shows are in memory, all others in the database: what a tick and a start cost does not depend on
    how many jobs there ever were. The loop writes it, ingest routes read it. Safe from any thread.
    """

    def __init__(
        self,
        look_up: Callable[[Collection[int]], Mapping[int, KnownJob]] = lambda _: {},
        known: Mapping[int, KnownJob] | None = None,
    ) -> None:
        """`look_up` returns from the database the latest job of each of these ids."""
        self._look_up = look_up
        self._lock = threading.Lock()
        self._jobs = dict(known or {})
        self._shown_at = dict.fromkeys(self._jobs, 0.0)
        self._ended_at: dict[int, float] = {}
        self._asked_since: dict[int, float] = {}
        """Jobs that Slurm has not shown, of which a keeper holds parts → since when."""
        self._read_at = 0.0
        self._last: dict[int, tuple[KnownJob | None, Job]] = {}
        self._of_view: SlurmView | None = None
        self._of_last = ("", 0)
        """What `_last` was made of, besides the view: the word by which users opt in, and `_changes`."""
        self._changes = 0  # how many times something of `_jobs` was

    def get(self, job_id: int) -> KnownJob | None:
        """Job from memory that Slurm shows, or has shown within the last hour."""
        with self._lock:
            return self._jobs.get(job_id)

    def known(self, job_ids: Iterable[int]) -> list[KnownJob | None]:
        with self._lock:
            return [self._jobs.get(job_id) for job_id in job_ids]

    def jobs_in(self, view: SlurmView, cluster: str, opt_in_word: str) -> list[Job]:
        """The jobs that Slurm shows. One that stayed as it was is the same object. For the loop's thread alone."""
        of = opt_in_word, self._changes
        if view is self._of_view and of == self._of_last:
            return [job for _, job in self._last.values()]
        last = self._last if opt_in_word == self._of_last[0] else {}
        found: dict[int, tuple[KnownJob | None, Job]] = {}
        for (job_id, slurm), known in zip(view.jobs.items(), self.known(view.jobs), strict=True):
            before = last.get(job_id)
            if before is None or before[0] is not known or before[1].slurm is not slurm:
                job = job_shown(slurm, cluster, opt_in_word, known)
                before = self._with_its_folders(known, job), job
            found[job_id] = before
        self._of_view, self._of_last, self._last = view, of, found  # none of them where this failed halfway
        return [job for _, job in found.values()]

    def _with_its_folders(self, known: KnownJob | None, job: Job) -> KnownJob | None:
        """Slurm's comment names them, which is not in the database."""
        folders = checkpoint_folders(job.slurm.comment)
        if known is None or known.key != job.key or known.checkpoint_folders == folders:
            return known
        known = replace(known, checkpoint_folders=folders)
        self.put(known)
        return known

    def find(self, job_id: int) -> KnownJob | None:
        """Any job. Reads the database for one that is not in memory."""
        return self.get(job_id) or self._look_up([job_id]).get(job_id)

    def put(self, job: KnownJob) -> None:
        with self._lock:
            self._jobs[job.key.job_id] = job
            self._changes += 1

    def over(self, job_ids: Iterable[int], now: float) -> list[KnownJob]:
        """Those of them that have ended for good. One that ended while Slurm was not read is never among them."""
        with self._lock:
            ended = [job_id for job_id in job_ids if now - self._ended_at.get(job_id, now) >= OVER_SECONDS]
            return [self._jobs[job_id] for job_id in ended if job_id in self._jobs]

    def invented(self, job_ids: Iterable[int], now: float) -> set[int]:
        """Those that Slurm does not show, nor ever has, for two minutes in which it was read."""
        with self._lock:
            unknown = [job_id for job_id in job_ids if job_id not in self._jobs]
            for job_id in unknown:
                self._asked_since.setdefault(job_id, now)
            while len(self._asked_since) > ASKED_MAX:
                del self._asked_since[next(iter(self._asked_since))]
            long = [one for one in unknown if self._read_at - self._asked_since.get(one, now) >= INVENTED_SECONDS]
        return set(long) - self._look_up(long).keys() if long else set()

    def show(self, job_ids: Collection[int], now: float, ended: Collection[int] = ()) -> None:
        """Slurm shows these jobs, of which some have `ended`. Those that are not in memory are looked up, and jobs of
        long ago are forgotten.
        """
        with self._lock:
            new = [job_id for job_id in job_ids if job_id not in self._jobs]
        found = self._look_up(new) if new else {}
        with self._lock:
            self._jobs = {**found, **self._jobs} if found else self._jobs
            self._changes += 1
            self._shown_at |= dict.fromkeys(job_ids, now)
            self._read_at = now
            for job_id in job_ids:
                self._asked_since.pop(job_id, None)
            since = self._ended_at
            for job_id in job_ids:
                since.pop(job_id, None) if job_id not in ended else since.setdefault(job_id, now)
            over = [job_id for job_id, at in self._shown_at.items() if now - at > FORGET_SECONDS]
            for job_id in over:
                self._jobs.pop(job_id, None)
                self._ended_at.pop(job_id, None)
                del self._shown_at[job_id]

    def row_of(self, job_id: int) -> int | None:
        job = self.get(job_id)
        return job.row if job else None
