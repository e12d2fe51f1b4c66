"""Jobs and their attempts."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple

from understudy_controlplane.fleet.slurm import SlurmJob
from understudy_wire.facts import AnomalyKind, Layout, RestoreOutcome, Tier
from understudy_wire.parallelism import words_of_sizes

CHECKPOINTS = "checkpoints="
OBJECT = "s3://"
"""Prefix of the path of a checkpoint in an object store."""
"""Prefix, in the Slurm comment, of a folder in which the job saves its checkpoints."""
MFU = re.compile(r"mfu=(0\.\d{1,6})")
KEEP = re.compile(r"keep=([1-9]\d{0,3})")
KEEP_HOURS = re.compile(r"keep_hours=([1-9]\d{0,3})")


class JobKey(NamedTuple):
    """Slurm uses job ids again: cluster, id and submit time together name a job for good.

    `submit_at` is the submit time as first seen: Slurm renews it with every requeue (see `identify`).
    """

    cluster: str
    job_id: int
    submit_at: int

    def __str__(self) -> str:
        return f"{self.cluster}/{self.job_id}@{self.submit_at}"

    @staticmethod
    def read(text: str) -> JobKey:
        """The key of which `text` is the string."""
        cluster, _, numbers = text.rpartition("/")
        job_id, _, submit_at = numbers.partition("@")
        return JobKey(cluster, int(job_id), int(submit_at))


class Attempt(NamedTuple):
    """One run of a gang: Slurm counts its requeues, the launcher its launches within an allocation."""

    restart_count: int
    launch: int = 0

    def __str__(self) -> str:
        return f"{self.restart_count}.{self.launch}" if self.launch else str(self.restart_count)


FIRST_ATTEMPT = Attempt(0)


class Reached(NamedTuple):
    """How far an attempt has come. Steps are counted on over all attempts of a job where its program's numbers fall."""

    step: int  # the furthest that any rank has finished
    at: float
    count_from: int = 0  # what has to be taken off for the number that the program gave it


@dataclass(frozen=True, slots=True)
class Job:
    key: JobKey
    slurm: SlurmJob
    managed: bool  # asked for Understudy. Others are never changed

    @property
    def running(self) -> bool:
        return self.slurm.state == "RUNNING"


@dataclass(frozen=True, slots=True)
class LastAttempt:
    """The newest attempt of a job that was seen to run."""

    restart_count: int
    nodes: tuple[str, ...]
    last_step: int | None = None  # the furthest that it finished; None: not known
    count_from: int = 0  # as in `Reached`
    ended_at: float | None = None  # first seen not running any more; None: not known


@dataclass(frozen=True, slots=True)
class KnownJob:
    """The stored values of the latest job of an id."""

    row: int  # in the database
    key: JobKey
    restart_count: int
    user_id: int
    managed: bool = False  # asked for Understudy
    seen_at: float = 0.0  # when it was last written down: at its last requeue, or later
    state: str = ""  # in Slurm, as written down
    checkpoint_folders: tuple[str, ...] = ()  # that its Slurm comment names; empty: it names none

    def believes(self, user_id: int) -> bool:
        """Only processes of the job's owner may speak for it or ask for its checkpoints: not even root's."""
        return user_id == self.user_id

    def may_save_at(self, path: str) -> bool:
        """True if a checkpoint at this path is inside the folders that the job names."""
        normal = posixpath.normpath(path)
        return not self.checkpoint_folders or any(
            normal == folder or normal.startswith(folder.rstrip("/") + "/") for folder in self.checkpoint_folders
        )


def identify(cluster: str, slurm: SlurmJob, known: KnownJob | None) -> JobKey:
    """Identifies the job: the known one of its id, or a new one.

    A requeue renews Slurm's submit time and raises the restart count; a new job of an old id has another submit time
    and a restart count of zero, or another owner. The count may fall: a slurmctld that crashed comes back with a count
    and a submit time that it had saved before; a new job of that id would be younger than the one that was last seen.
    """
    if known is not None:
        same_submission = slurm.submit_at == known.key.submit_at
        requeued = slurm.restart_count >= max(1, known.restart_count)
        as_before = 1 <= slurm.restart_count < known.restart_count and slurm.submit_at <= known.seen_at
        if same_submission or ((requeued or as_before) and slurm.user_id == known.user_id):
            return known.key
    return JobKey(cluster, slurm.job_id, slurm.submit_at)


def job_shown(slurm: SlurmJob, cluster: str, opt_in_word: str, known: KnownJob | None) -> Job:
    """`known` is the latest job of its id."""
    return Job(identify(cluster, slurm, known), slurm, opted_in(slurm.comment, opt_in_word))


class JobThere(NamedTuple):
    """A job that was on a node when something happened there, with its user."""

    job_id: int
    submit_at: int  # as in JobKey
    user: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Understudy's Prolog kept an attempt of a job off a node."""

    node: str
    job_id: int
    restart_count: int | None  # of that attempt; None where Slurm did not report it
    at: float  # by the node's clock
    received_at: float
    reason: str


class TrainingRun(NamedTuple):
    """What outlives jobs: a training that several jobs continue, one after another. Of one user on one cluster."""

    name: str = ""  # empty: not known
    folder: str = ""  # where the run goes by the jobs' name, in this folder; empty: a user named it
    arguments: str = ""  # a sum of those of the job that reports it; empty: not known


NO_RUN = TrainingRun()


@dataclass(frozen=True, slots=True)
class RunJob:
    """A job of a run."""

    row: int
    key: JobKey
    began_at: float = inf  # infinite: it has not run
    ended_at: float = inf  # infinite: it runs now
    state: str = ""  # the last that Slurm showed
    arguments: str = ""  # a sum of its program's name and arguments; empty: not known

    @property
    def ended_well(self) -> bool:
        return self.state == "COMPLETED"

    @property
    def was_given_up(self) -> bool:
        """It came to its end, its program failed, or a person ended it: Slurm did not interrupt it."""
        return self.state in ("COMPLETED", "FAILED", "CANCELLED", "OUT_OF_MEMORY")


class Condition(StrEnum):
    """What became of a checkpoint since it was written."""

    AS_WRITTEN = ""  # nothing was looked at
    VERIFIED = "verified"  # read back: it is what was written
    SUSPECT = "suspect"  # read back: a file was written again, and there is no checksum to compare it with
    BAD = "bad"  # read back: it is not
    LOST = "lost"  # not where it was written
    EXPIRED = "expired"  # its job keeps it no longer: agents delete its files
    DELETED = "deleted"  # by the training, or because its job keeps it no longer
    WRITTEN_OVER = "written_over"  # files of it, by another checkpoint

    @property
    def is_gone(self) -> bool:
        """It cannot be restored."""
        return self not in (Condition.AS_WRITTEN, Condition.VERIFIED, Condition.SUSPECT)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint of which all shards of one attempt's world are in."""

    job: JobKey  # that wrote it
    step: int  # training continues with this step
    path: str
    world_size: int
    completed_at: float
    attempt: Attempt = FIRST_ATTEMPT  # that wrote it
    condition: Condition = Condition.AS_WRITTEN
    condition_why: str = ""
    layout: Layout = Layout.UNKNOWN
    tier: Tier = Tier.UNKNOWN
    row: int = field(default=0, compare=False)  # in the database

    @property
    def is_of_nodes(self) -> bool:
        """Each node sees its own part alone, and it is lost with the node."""
        return self.tier in (Tier.PEER, Tier.LOCAL)

    @property
    def ranks(self) -> int:
        """A gang of no other size can restore it; 0: any can, or it is not known."""
        return self.world_size if self.layout is Layout.FIXED else 0


class Save(NamedTuple):
    """When an attempt had saved a step with all its ranks, whatever became of the files."""

    attempt: Attempt
    step: int
    at: float


@dataclass(frozen=True, slots=True)
class MeasuredCheckpoint:
    """What one cost that is complete."""

    attempt: Attempt
    step: int
    at: float
    world_size: int
    blocked_seconds: float | None  # by which the training was held up; None: not known
    write_seconds: float | None
    tier: Tier = Tier.UNKNOWN
    size_bytes: int = 0
    is_copy: bool = False  # by agents


def tier_of(copy: str) -> Tier:
    """Tier of a copy at this path."""
    return Tier.OBJECT if copy.startswith(OBJECT) else Tier.SHARED


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """A checkpoint that is complete, as it is to be read back."""

    row: int  # in the database
    job_row: int
    job: JobKey
    user_id: int
    path: str
    at: float
    copy_to: str = ""
    tier: Tier = Tier.UNKNOWN

    @property
    def copy_tier(self) -> Tier:
        return tier_of(self.copy_to)


class Keep(NamedTuple):
    """Checkpoints of its run that a job keeps. The others are deleted."""

    last: int  # good ones, of each tier
    hours: int = 0  # of each span of so many hours the first one, too; 0: none


class RestoreAnswer(StrEnum):
    RESTORE = "restore"
    FRESH = "fresh"  # nothing was ever saved: from the beginning
    UNKNOWN = "unknown"  # something was saved, and nothing of it can be named: a user has to choose


@dataclass(frozen=True, slots=True)
class RestoreDecision:
    """Point where an attempt continues. Step and path are of the checkpoint to restore."""

    answer: RestoreAnswer
    step: int = 0
    path: str = ""
    why: str = ""  # what speaks against newer checkpoints, or why nothing is known
    ranks: int = 0  # a gang of no other size can restore it; 0: any can, or it is not known


class RankPlace(NamedTuple):
    """Differences of one rank's answer from the gang's."""

    look_file: str = ""  # of the chosen checkpoint, which its node is to see
    nearer_path: str = ""  # a copy of the same checkpoint, on the rank's own node
    nearer_file: str = ""
    files: tuple[str, ...] = ()  # in an object store, what the rank is to fetch; none: all of it


@dataclass(frozen=True, slots=True)
class StoredRestoreReport:
    """What a rank reported of the checkpoint that its attempt was to restore."""

    job: JobKey
    attempt: Attempt
    rank: int
    node: str
    step: int
    path: str
    outcome: RestoreOutcome
    error: str
    received_at: float


@dataclass(frozen=True, slots=True)
class StoredAnomaly:
    """Loss or gradient norm of one rank was not what it should be, from `step` on."""

    id: int
    job: JobKey
    attempt: Attempt
    node: str
    rank: int
    world_size: int
    kind: AnomalyKind
    step: int
    until: int | None  # as before since this step; None: not known
    value: str
    received_at: float


@dataclass(frozen=True, slots=True)
class WrongResult:
    """A step that a rank has computed again gave another result."""

    job: JobKey
    node: str
    rank: int
    step: int
    received_at: float


@dataclass(frozen=True, slots=True)
class FirstNan:
    """First NaN of an attempt of a job: where it showed."""

    job: JobKey
    attempt: Attempt
    step: int
    nodes: tuple[str, ...]  # whose ranks showed it at that step
    rank: int  # the lowest of them
    received_at: float
    of_several: bool = True  # the attempt has several nodes


def opted_in(comment: str, word: str) -> bool:
    """True if `word` stands alone in the Slurm comment: "understudy", "team-a understudy", "understudy,x=1"."""
    return word in _words(comment)


def checkpoint_folders(comment: str) -> tuple[str, ...]:
    """Folders that a Slurm comment names: "understudy checkpoints=/scratch/run checkpoints=/home/a/run"."""
    named = (word.removeprefix(CHECKPOINTS) for word in _words(comment) if word.startswith(CHECKPOINTS))
    return tuple(posixpath.normpath(folder) for folder in named if folder)


def group_sizes(comment: str, reported: str) -> str:
    """Sizes that a Slurm comment names: "understudy tp=8 pp=4"; else those that a launcher reports."""
    return words_of_sizes(_words(comment), reported)


def expected_mfu(comment: str) -> float | None:
    """MFU that a Slurm comment names: "understudy mfu=0.4"."""
    named = [match[1] for word in _words(comment) if (match := MFU.fullmatch(word))]
    return float(named[-1]) if named else None


def keep(comment: str) -> Keep | None:
    """Retention that a Slurm comment names: "understudy keep=3 keep_hours=6". None: nothing is deleted."""
    words = _words(comment)
    last = [int(match[1]) for word in words if (match := KEEP.fullmatch(word))]
    hours = [int(match[1]) for word in words if (match := KEEP_HOURS.fullmatch(word))]
    return Keep(last[-1], hours[-1] if hours else 0) if last else None


def _words(comment: str) -> list[str]:
    return comment.replace(",", " ").replace(";", " ").split()


SUSPECT_SECONDS_MAX = 6 * 3600.0
"""Checkpoints that are written longer than this after what is no proof are not suspect for it: the run went on well."""


def is_proof(anomaly: StoredAnomaly) -> bool:
    return anomaly.kind is AnomalyKind.LOSS_NAN


def suspicion(checkpoint: Checkpoint, anomalies: Iterable[StoredAnomaly], *, proofs_only: bool = False) -> str:
    """What speaks against it, in words; empty: nothing.

    A checkpoint of step n holds what the steps before n have made, and step n is the first to show what is wrong with
    it. Where things were as before from some step on, the checkpoints from there on are good.
    """
    against = [
        one
        for one in anomalies
        if (one.job, one.attempt) == (checkpoint.job, checkpoint.attempt)
        and one.step <= checkpoint.step
        and (one.until is None or checkpoint.step < one.until)
        and (is_proof(one) or checkpoint.completed_at <= one.received_at + SUSPECT_SECONDS_MAX)
    ]
    if not against:
        return "" if proofs_only else checkpoint.condition_why if checkpoint.condition is Condition.SUSPECT else ""
    first = min(against, key=lambda one: (one.step, one.rank))
    value = f" ({first.value})" if first.value else ""
    return f"{first.kind.value}{value} on rank {first.rank} ({first.node}) since step {first.step}"
