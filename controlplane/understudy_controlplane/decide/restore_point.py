"""Which checkpoint a gang goes on from: the newest that is complete and good."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from understudy_controlplane.fleet.job import Checkpoint, StoredAnomaly

NAMED_MAX = 3


def choose(complete: Iterable[Checkpoint], anomalies: Sequence[StoredAnomaly] = ()) -> Checkpoint | None:
    """The furthest complete checkpoint that is not suspect; of two of the same step the later one. None: start from the
    beginning.

    Half-announced checkpoints never get here: only those of which every rank's shard is in count as complete.
    """
    good = [one for one in _as_they_lie(complete) if not suspicion(one, anomalies)]
    return max(good, key=lambda checkpoint: (checkpoint.step, checkpoint.completed_at), default=None)


def explain(complete: Iterable[Checkpoint], anomalies: Sequence[StoredAnomaly]) -> str:
    """Why it is not the furthest one; empty: it is."""
    there = _as_they_lie(complete)
    chosen = choose(there, anomalies)
    passed_over = [one for one in there if suspicion(one, anomalies) and (chosen is None or one.step >= chosen.step)]
    if not passed_over:
        return ""
    newest = sorted(passed_over, key=lambda one: -one.step)
    named = "; ".join(f"step {one.step}: {suspicion(one, anomalies)}" for one in newest[:NAMED_MAX])
    more = f"; and {len(newest) - NAMED_MAX} more" if len(newest) > NAMED_MAX else ""
    instead = f"step {chosen.step} is the newest good one" if chosen else "none is good: from the beginning"
    return f"{instead}; suspect are {named}{more}"


def suspicion(checkpoint: Checkpoint, anomalies: Iterable[StoredAnomaly]) -> str:
    """What speaks against it, in words; empty: nothing.

    A checkpoint of step n holds what the steps before n have made, and step n is the first to show what is wrong with
    it. Where things were as before from some step on, the checkpoints from there on are good.
    """
    against = [
        one
        for one in anomalies
        if one.attempt == checkpoint.attempt
        and one.step <= checkpoint.step
        and (one.until is None or checkpoint.step < one.until)
    ]
    if not against:
        return ""
    first = min(against, key=lambda one: (one.step, one.rank))
    value = f" ({first.value})" if first.value else ""
    return f"{first.kind.value}{value} on rank {first.rank} ({first.node}) since step {first.step}"


def _as_they_lie(complete: Iterable[Checkpoint]) -> list[Checkpoint]:
    """What an attempt wrote over is gone: of each path the last writer's counts."""
    last: dict[tuple[str, int], Checkpoint] = {}
    for one in sorted(complete, key=lambda checkpoint: (checkpoint.attempt, checkpoint.completed_at)):
        last[(one.path, one.step)] = one
    return list(last.values())
