"""Chooses where a gang continues: the newest checkpoint that is complete and good, the beginning, or not known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from understudy_controlplane.fleet.counted import counted
from understudy_controlplane.fleet.job import (
    Attempt,
    Checkpoint,
    JobKey,
    RestoreAnswer,
    RestoreDecision,
    StoredAnomaly,
    StoredRestoreReport,
    is_proof,
    suspicion,
)
from understudy_wire.facts import RestoreOutcome, Tier

NAMED_MAX = 3

UNSEEN = "it lies on disks of nodes that this attempt does not have"

RESTORES_FAILED_MAX = 2
"""Attempts in which the restore of a checkpoint failed; then it is struck off."""

WORK_LOST_SHARE_MAX = 0.1
"""Share of a run's steps that a suspicion without proof may cost."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What is known of the checkpoints of a job and of the jobs of its run that it continues."""

    complete: Sequence[Checkpoint]  # or once complete, and gone
    announced: Sequence[Checkpoint]  # all of them, complete or not; only looked at where none is complete
    anomalies: Sequence[StoredAnomaly] = ()
    restores: Sequence[StoredRestoreReport] = ()
    doubt: str = ""  # why it is not known which jobs it continues
    note: str = ""  # why it continues none of the jobs of its name
    unseen: Set[str] = frozenset()  # paths on disks of nodes that not all nodes of the attempt see


def decide(known: Catalogue, job: JobKey, attempt: Attempt, ranks: int = 0) -> RestoreDecision:
    """Decides where the attempt continues: from the beginning only if nothing was ever saved. An attempt that ended
    during its first save has saved nothing; one that went on after a checkpoint that is not complete may have saved
    more than was announced. `ranks` is the size of the attempt's gang; 0: not known.
    """
    attempt_of = (job, attempt)
    struck = [(one, why) for one in known.complete if (why := _not_to_restore(one, known, attempt_of, ranks))]
    without = {one for one, _ in struck}
    left = [one for one in known.complete if one not in without]
    chosen = choose(left, known.anomalies)
    passed_over = [(one, why) for one, why in struck if chosen is None or one.step >= chosen.step]
    why = "; ".join(filter(None, (_named(passed_over), explain(left, known.anomalies))))
    if chosen is not None:
        return RestoreDecision(RestoreAnswer.RESTORE, chosen.step, chosen.path, why, chosen.ranks)
    if known.complete:
        return RestoreDecision(RestoreAnswer.UNKNOWN, why=why)
    if known.doubt:
        return RestoreDecision(RestoreAnswer.UNKNOWN, why=known.doubt)
    halves = Counter((one.job, one.attempt) for one in known.announced)
    if max(halves.values(), default=0) <= 1:
        return RestoreDecision(RestoreAnswer.FRESH, why=known.note)
    announced = counted(halves.total(), "checkpoint was", "checkpoints were")
    why = f"{announced} announced, none of them by every rank of the gang"
    return RestoreDecision(RestoreAnswer.UNKNOWN, why=why)


def judged(known: Catalogue, job: JobKey, attempt: Attempt, ranks: int = 0) -> list[tuple[Checkpoint, str]]:
    """All that are complete, or were, furthest first, each with what speaks against it; empty: nothing."""
    return [
        (one, _not_to_restore(one, known, (job, attempt), ranks) or suspicion(one, known.anomalies))
        for one in sorted(known.complete, key=lambda one: (-one.step, -one.completed_at))
    ]


def _not_to_restore(checkpoint: Checkpoint, known: Catalogue, attempt: tuple[JobKey, Attempt], ranks: int) -> str:
    """Why this attempt, with a gang of this size, cannot restore it; empty: it can, as far as is known."""
    return (
        _gone(checkpoint)
        or struck_off(checkpoint, known.restores, attempt)
        or other_size(checkpoint.ranks, ranks)
        or (UNSEEN if checkpoint.path in known.unseen else "")
    )


def other_size(needed: int, ranks: int) -> str:
    """Why a gang of so many ranks cannot restore what `needed` can; empty: it can, or a number is not known."""
    if not ranks or not needed or needed == ranks:
        return ""
    return f"only {counted(needed, 'rank')} can restore it, and this gang has {ranks}"


def _gone(checkpoint: Checkpoint) -> str:
    """Empty: it is there, as far as is known."""
    condition = checkpoint.condition
    if not condition.is_gone:
        return ""
    what = condition.value.replace("_", " ")
    return f"{what}: {checkpoint.condition_why}" if checkpoint.condition_why else what


def struck_off(checkpoint: Checkpoint, reports: Iterable[StoredRestoreReport], attempt: tuple[JobKey, Attempt]) -> str:
    """Why this attempt cannot restore it; empty: nothing is known. It was not restored in two attempts, or ranks of
    this one do not see it. Once is no proof: a node without the file system sees no checkpoint at all.
    """
    against = [one for one in reports if _is_against(one, checkpoint)]
    now = [one for one in against if (one.job, one.attempt) == attempt and one.outcome is RestoreOutcome.MISSING]
    if now:
        return f"it is not there on {now[0].node}" + (f" as it was saved: {now[0].error}" if now[0].error else "")
    attempts = sorted({(one.job.job_id, one.attempt) for one in against})
    if len(attempts) < RESTORES_FAILED_MAX:
        return ""
    last = against[-1]
    cause = last.error or "it was not there"
    named = ", ".join(f"{number} of job {job}" for job, number in attempts)
    return f"it was not restored in attempts {named} (rank {last.rank} on {last.node}: {cause})"


def _is_against(report: StoredRestoreReport, checkpoint: Checkpoint) -> bool:
    """It is of this checkpoint, and not of what was there before it was written again."""
    return (
        (report.step, report.path) == (checkpoint.step, checkpoint.path)
        and report.outcome is not RestoreOutcome.SEEN
        and (report.job != checkpoint.job or report.attempt > checkpoint.attempt)
    )


def choose(complete: Iterable[Checkpoint], anomalies: Sequence[StoredAnomaly] = ()) -> Checkpoint | None:
    """The furthest complete checkpoint that is not suspect; of two of the same step the later one. None: none is good.
    NaN in the loss proves that a checkpoint is bad. Anything else is no proof, and is disregarded where it
    would cost a large part of the run, or all of it.

    Half-announced checkpoints never get here: only those of which every rank's shard is in count as complete.
    """
    there = _as_they_lie(complete)
    good = _furthest(one for one in there if not suspicion(one, anomalies))
    proofs = [one for one in anomalies if is_proof(one)]
    usable = _furthest(one for one in there if not suspicion(one, proofs, proofs_only=True))
    if usable is None or good is None:
        return usable
    return good if usable.step - good.step <= WORK_LOST_SHARE_MAX * usable.step else usable


def _furthest(checkpoints: Iterable[Checkpoint]) -> Checkpoint | None:
    """Nearest copy of the furthest checkpoint that every node can reach: `nearer_copies` are for single ranks."""
    return max(
        checkpoints,
        key=lambda one: (one.step, not one.is_of_nodes, one.tier is not Tier.OBJECT, one.completed_at),
        default=None,
    )


def nearer_copies(known: Catalogue, chosen: Checkpoint) -> list[Checkpoint]:
    """Copies of the chosen checkpoint on the nodes that wrote it, newest first. A rank may restore its own part of one
    while other ranks restore the chosen one: each reads a file with the content that it wrote.
    """
    return sorted(
        (
            one
            for one in known.complete
            if one.is_of_nodes
            and (one.job, one.attempt, one.step, one.ranks) == (chosen.job, chosen.attempt, chosen.step, chosen.ranks)
            and one.ranks
            and one.path != chosen.path
            and not _gone(one)
            and not any(_is_against(report, one) for report in known.restores)
        ),
        key=lambda one: -one.completed_at,
    )


def explain(complete: Iterable[Checkpoint], anomalies: Sequence[StoredAnomaly]) -> str:
    """Why it is not the furthest one; empty: it is."""
    there = _as_they_lie(complete)
    chosen = choose(there, anomalies)
    passed_over = [one for one in there if suspicion(one, anomalies) and (chosen is None or one.step >= chosen.step)]
    if chosen is not None and (doubt := suspicion(chosen, anomalies)):
        return (
            f"step {chosen.step} in spite of {doubt}: that is no proof, and a good one would cost too much of the run"
        )
    if not passed_over:
        return ""
    instead = f"step {chosen.step} is the newest good one" if chosen else "none is good"
    return f"{instead}; suspect are {_named([(one, suspicion(one, anomalies)) for one in passed_over])}"


def _named(passed_over: Iterable[tuple[Checkpoint, str]]) -> str:
    newest = sorted(passed_over, key=lambda one: -one[0].step)
    named = "; ".join(f"step {one.step}: {why}" for one, why in newest[:NAMED_MAX])
    return named + (f"; and {len(newest) - NAMED_MAX} more" if len(newest) > NAMED_MAX else "")


def _as_they_lie(complete: Iterable[Checkpoint]) -> list[Checkpoint]:
    """What an attempt wrote over is gone: of each path the last writer's counts."""
    last: dict[tuple[str, int], Checkpoint] = {}
    for one in sorted(complete, key=lambda one: (one.job.submit_at, one.job.job_id, one.attempt, one.completed_at)):
        last[(one.path, one.step)] = one
    return list(last.values())
