"""Has the pool's spares read the files with which gangs have started, so that a start there is not the first one.

Agents read them into the page cache, with the rights of the job's user; nothing of it is kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import structlog

from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Config, Mode
from understudy_controlplane.decide.spares import free_spares, suits
from understudy_controlplane.fleet.job import Job, JobKey
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.telemetry import Heard
from understudy_controlplane.recover.file_tasks import FileWork, Part, task_numbers
from understudy_wire.files import FileOutcome, FileResult, WarmFiles
from understudy_wire.ranks import ProgramFiles

log = structlog.get_logger()

SPARES_AT_ONCE = 4
"""They read from the same file servers as the gangs."""
GANGS_MAX = 8
"""Gangs read for each spare, the largest first: a page cache has room for as many."""
BYTES_PER_SECOND = 500e6
AGAIN_SECONDS = 6 * 3600.0
"""Meanwhile other files may have displaced them."""
CHANGED_SECONDS = 600.0
"""Before a spare reads another list of the same gang: one that changes all the time keeps no others waiting."""


class Program(NamedTuple):
    """What a spare may need to start a gang."""

    spare: str
    user_id: int
    packed: str


@dataclass(slots=True, eq=False, kw_only=True)
class WarmPart(Part):
    program: Program
    job: JobKey


class SpareWarmer(FileWork[WarmPart]):
    FINDS_EVERY = 1

    def __init__(
        self,
        snapshot: Callable[[], Snapshot | None],
        heard: Callable[[], Mapping[str, Heard]],
        config: Callable[[], Config],
        clock: Clock,
    ) -> None:
        self._snapshot, self._heard, self._config, self._clock = snapshot, heard, config, clock
        self._parts: dict[Program, WarmPart] = {}
        self._done: dict[Program, float] = {}  # when, by the monotonic clock
        self._served: dict[tuple[str, JobKey], float] = {}  # spare and gang → when its last list was offered

    def nodes_at_once(self) -> int:
        return SPARES_AT_ONCE

    def waiting(self) -> Iterable[WarmPart]:
        return self._parts.values()

    def is_held_back(self, part: WarmPart) -> bool:
        """A recovery is about to use the spare: what it still reads would only be in the way."""
        snapshot = self._snapshot()
        return snapshot is not None and any(part.node in one.plan.claimed for one in snapshot.recoveries)

    def note(self, part: WarmPart, result: FileResult) -> None:
        self.note_unanswered(part)
        good = result.outcome is FileOutcome.WARMED
        note = log.info if good else log.warning
        name = "spare_has_program" if good else "spare_without_program"
        note(name, node=part.node, job=str(part.job), reason=result.why or result.outcome.value)

    def note_unanswered(self, part: WarmPart) -> None:
        self._forget(part)
        self._done[part.program] = self._clock.monotonic()

    def find(self) -> None:
        """An agent that has begun ends when its next answer has no such task."""
        snapshot, config, now = self._snapshot(), self._config(), self._clock.monotonic()
        wanted = dict(_wanted(snapshot, self._heard(), config)) if snapshot is not None else {}
        for part in [one for one in self._parts.values() if one.program not in wanted]:
            self._forget(part)
        self._done = {key: at for key, at in self._done.items() if key in wanted and now - at < AGAIN_SECONDS}
        self._served = {key: at for key, at in self._served.items() if now - at < CHANGED_SECONDS}
        bytes_max = int(config.spares.program_gigabytes * 1e9)
        for program, job in wanted.items():
            is_known = program in self._parts or program in self._done or (program.spare, job) in self._served
            if not is_known:
                task = WarmFiles(next(task_numbers), program.user_id, program.packed, bytes_max, BYTES_PER_SECOND)
                self._parts[program] = WarmPart(program.spare, task, program=program, job=job)

    def _forget(self, part: WarmPart) -> None:
        self._parts.pop(part.program, None)
        if part.offered_at is not None:
            self._served[part.node, part.job] = part.offered_at


def _wanted(snapshot: Snapshot, heard: Mapping[str, Heard], config: Config) -> Iterator[tuple[Program, JobKey]]:
    """Programs of the largest gangs that suit each free spare."""
    if not config.spares.program_gigabytes or snapshot.operator.paused or snapshot.mode is Mode.OBSERVE:
        return
    gangs = list(_gangs(snapshot, heard))
    for spare in free_spares(snapshot, config):
        view = snapshot.nodes[spare]
        fitting = [one for one in gangs if suits(view, one[0], snapshot.nodes[one[1]])]
        for job, _, files in fitting[:GANGS_MAX]:
            yield Program(spare, files.user_id, files.packed), job.key


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
