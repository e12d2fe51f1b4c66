"""Has the pool's spares read the files with which gangs have started, so that a start there is not the first one.

Agents read them into the page cache, with the rights of the job's user; nothing of it is kept elsewhere. What is under
way is in memory only, and begins again after a restart of the control plane.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.spares import free_spares, suits
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.telemetry import Heard
from understudy_wire.messages import ProgramFiles, ReadBack, ReadBackOutcome, ReadBackResult

log = structlog.get_logger()

LOOK_SECONDS = 5.0
SPARES_AT_ONCE = 4
"""They read from the same file servers as the gangs."""
GANGS_MAX = 8
"""Gangs read for each spare, the largest first: a page cache has room for as many."""
BYTES_PER_SECOND = 500e6
AGAIN_SECONDS = 6 * 3600.0
"""Meanwhile other files may have displaced them."""
CHANGED_SECONDS = 600.0
"""Before a spare reads another list of the same gang: one that changes all the time keeps no others waiting."""
ANSWER_SECONDS_MAX = 3600.0
OFFERED_SECONDS_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Wish:
    """A spare may need the files of this gang."""

    spare: str
    job: JobKey
    files: ProgramFiles


@dataclass(slots=True)
class Offer:
    wish: Wish
    task: ReadBack
    since: float  # by the monotonic clock
    taken: bool = False


class SpareWarmer:
    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        heard: Callable[[], Mapping[str, Heard]],
        config: Callable[[], Config],
        clock: Clock,
    ) -> None:
        self._snapshot, self._heard, self._config, self._clock = snapshot, heard, config, clock
        self._lock = threading.Lock()
        self._offers: dict[str, Offer] = {}  # by spare
        self._done: dict[tuple[str, int, str], float] = {}  # spare, user and files → when, by the monotonic clock
        self._served: dict[tuple[str, JobKey], float] = {}  # spare and gang → when its last list was offered
        self._last_number = secrets.randbits(48)  # an agent may still have a result from before a restart
        self._stopped = threading.Event()

    def run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self.look()
            except Exception as error:
                log.exception("spares_not_looked_at", error=type(error).__name__)  # a start there is slower, no more

    def stop(self) -> None:
        self._stopped.set()

    def task(self, node: str) -> ReadBack | None:
        offer = self._offers.get(node)
        if offer is None or self._is_claimed(node):
            return None
        offer.taken = True
        return offer.task

    def _is_claimed(self, node: str) -> bool:
        """A recovery is about to use it: what it still reads would only be in the way."""
        snapshot = self._snapshot()
        return snapshot is not None and any(node in one.plan.claimed for one in snapshot.recoveries)

    def is_under_way(self, node: str) -> bool:
        offer = self._offers.get(node)
        return offer is not None and offer.taken

    def take(self, node: str, result: ReadBackResult) -> bool:
        with self._lock:
            offer = self._offers.get(node)
            if offer is None or offer.task.number != result.number:
                return False
            del self._offers[node]
            self._settle(offer.wish)
        good = result.outcome is ReadBackOutcome.CACHED
        note = log.info if good else log.warning
        name = "spare_has_program" if good else "spare_without_program"
        note(name, node=node, job=str(offer.wish.job), reason=result.why or result.outcome.value)
        return True

    def look(self) -> None:
        """Offers what a spare has not read yet."""
        snapshot, config = self._snapshot(), self._config()
        wishes = list(_wishes(snapshot, self._heard(), config)) if snapshot is not None else []
        with self._lock:
            now = self._clock.monotonic()
            wanted = {_key(one) for one in wishes}
            self._done = {key: at for key, at in self._done.items() if key in wanted and now - at < AGAIN_SECONDS}
            self._served = {key: at for key, at in self._served.items() if now - at < CHANGED_SECONDS}
            self._drop(wanted, now)
            for wish in wishes:
                known = _key(wish) in self._done or (wish.spare, wish.job) in self._served
                if wish.spare not in self._offers and not known and len(self._offers) < SPARES_AT_ONCE:
                    self._last_number += 1
                    self._served[wish.spare, wish.job] = now
                    self._offers[wish.spare] = Offer(wish, _task(self._last_number, wish.files, config), now)

    def _drop(self, wanted: set[tuple[str, int, str]], now: float) -> None:
        """Drops wishes whose spare or gang is gone, or whose agent does not answer or is older. An agent that has begun
        ends when its next answer has no such task.
        """
        for spare, offer in list(self._offers.items()):
            late = now - offer.since > (ANSWER_SECONDS_MAX if offer.taken else OFFERED_SECONDS_MAX)
            if late or _key(offer.wish) not in wanted:
                del self._offers[spare]
                if late:
                    self._settle(offer.wish)

    def _settle(self, wish: Wish) -> None:
        self._done[_key(wish)] = self._clock.monotonic()


def _key(wish: Wish) -> tuple[str, int, str]:
    return wish.spare, wish.files.user_id, wish.files.packed


def _task(number: int, files: ProgramFiles, config: Config) -> ReadBack:
    bytes_max = int(config.spares.program_gigabytes * 1e9)
    return ReadBack(number, files.user_id, "", [], True, BYTES_PER_SECOND, program=files.packed, bytes_max=bytes_max)


def _wishes(snapshot: Snapshot, heard: Mapping[str, Heard], config: Config) -> Iterator[Wish]:
    """Programs of the largest gangs that suit each free spare."""
    if not config.spares.program_gigabytes or snapshot.paused or snapshot.mode is Mode.OBSERVE:
        return
    gangs = list(_gangs(snapshot, heard))
    for spare in free_spares(snapshot, config):
        view = snapshot.nodes[spare]
        fitting = [one for one in gangs if suits(view, one[0], snapshot.nodes[one[1]])]
        for job, _, files in fitting[:GANGS_MAX]:
            yield Wish(spare, job.key, files)


def _gangs(snapshot: Snapshot, heard: Mapping[str, Heard]) -> Iterable[tuple[Job, str, ProgramFiles]]:
    """Running managed jobs, the largest first, with the node that names their files. Any user's process can claim to be
    a rank: what counts is that of the job's user on a node of the job.
    """
    found = []
    for job in snapshot.jobs.values():
        if not (job.running and job.managed):
            continue
        for node in job.slurm.nodes:
            programs = heard[node].programs if node in heard else ()
            files = next((one for one in programs if _is_of(one, job)), None)
            if files is not None and node in snapshot.nodes:
                found.append((job, node, files))
                break
    return sorted(found, key=lambda one: -len(one[0].slurm.nodes))


def _is_of(files: ProgramFiles, job: Job) -> bool:
    return (files.job_id, files.user_id) == (job.key.job_id, job.slurm.user_id)
