"""What the owner of a running job should know, and reads in the job's output: a slow rank and what it costs to stay,
a gang that is further apart than it asks or could be, and NaN on a rank. Pure.

Rank 0 writes each note once (`understudy.link`), with or without a launcher. In mode observe nothing is sent to jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from understudy_controlplane.config import Mode
from understudy_controlplane.detect.straggler import NOT_PRICED
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import Attempt, FirstNan, Job
from understudy_controlplane.fleet.plain_text import whole_words
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.ranks import JobNote

SLOWNESS = frozenset({Signal.STRAGGLER_SUSPECTED, Signal.STRAGGLER_CONFIRMED, Signal.GANG_SLOW, Signal.GANG_SCATTERED})
TEXT_CHARACTERS_MAX = 1000


def job_notes(snapshot: Snapshot, findings: Iterable[Finding]) -> Iterator[JobNote]:
    for one in findings:
        job = snapshot.jobs.get(one.job) if one.job is not None and one.signal in SLOWNESS else None
        if job is not None and snapshot.mode_of((), job.key) is not Mode.OBSERVE:
            yield from _note(snapshot, job, f"{one.rule} {one.node}", _slow(one, job))
    for nan in snapshot.history.first_nans:
        job = snapshot.jobs.get(nan.job)
        # Rank 0 writes what it sees itself.
        if job is not None and nan.rank > 0 and snapshot.mode_of((), job.key) is not Mode.OBSERVE:
            yield from _note(snapshot, job, f"nan {nan.step}", _nan(nan), nan.attempt)


def _note(snapshot: Snapshot, job: Job, key: str, text: str, of: Attempt | None = None) -> Iterator[JobNote]:
    """Writes a note. `of`: the attempt that it is about, which may be an earlier one."""
    table = snapshot.progress.tables.get(job.key)
    if table is None or not job.managed or not job.running or of not in (None, table.attempt):
        return
    attempt = table.attempt
    text = whole_words(text, TEXT_CHARACTERS_MAX)
    yield JobNote(job.key.job_id, attempt.restart_count, attempt.launch, job.slurm.user_id, key, text)


def _slow(finding: Finding, job: Job) -> str:
    number = job.key.job_id
    where = f"on {finding.node}, {finding.summary}" if finding.node else finding.summary
    if finding.rule == NOT_PRICED:
        return (
            f"{where}. With checkpoints that it announces (checkpoint_saved) the gang is moved once that pays. Where "
            f"its work is saved, an operator can move it: `understudy job move {number} REASON --off {finding.node}`"
        )
    return f"{where}. `understudy explain job {number}` shows what follows"


def _nan(nan: FirstNan) -> str:
    return (
        f"loss or gradient norm is NaN on rank {nan.rank} ({nan.nodes[0]}) since step {nan.step}: checkpoints from "
        "there on are suspect, and a restart passes them over"
    )
