"""Which checkpoint a gang goes on from."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.fleet.job import Checkpoint


def choose(complete: Iterable[Checkpoint]) -> Checkpoint | None:
    """The furthest complete checkpoint; of two of the same step the later one. None: start from the beginning.

    Half-announced checkpoints never get here: only those of which every rank's shard is in count as complete.
    """
    return max(complete, key=lambda checkpoint: (checkpoint.step, checkpoint.completed_at), default=None)
