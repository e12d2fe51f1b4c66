"""Checkpoints of a DeepSpeed engine: saved and announced, and restored where the gang is to continue.

step = restore(monitor, engine)
...
    if monitor.checkpoints.due(step, every=500):
        save(monitor, engine, step, "checkpoints")
"""

from __future__ import annotations

import os
from typing import Any, SupportsInt

from .monitor import Monitor
from .shard_files import files_of

LAYOUT = "fixed"
"""ZeRO's shards are those of as many ranks. A universal checkpoint is made of them by a program of DeepSpeed's."""


def save(
    monitor: Monitor,
    engine: Any,
    step: SupportsInt,
    folder: str | os.PathLike[str],
    tag: str = "",
    layout: str = LAYOUT,
    **options: Any,
) -> None:
    """Call it on every rank, as engine.save_checkpoint, which it calls: in `folder`, with this tag, or
    "global_step" and the step. Training continues with `step` after a restore. `options` are those of save_checkpoint.
    """
    tag = tag or f"global_step{int(step)}"
    path = os.path.join(folder, tag)
    with monitor.checkpoints.begin(step, path, layout) as part:
        engine.save_checkpoint(os.fspath(folder), tag=tag, **options)  # behind a barrier when it returns
        for name in files_of(path, engine.global_rank, getattr(engine, "mp_world_size", 1)):
            part.shard(name)


def restore(monitor: Monitor, engine: Any, **options: Any) -> int:
    """The step with which this rank continues; 0: from the beginning, as nothing was ever saved. `options` are those of
    engine.load_checkpoint. Raises RestorePointUnknownError where it is not known.
    """
    with monitor.checkpoints.restore() as point:
        if point.path:
            folder, tag = os.path.split(point.path)
            loaded, _ = engine.load_checkpoint(folder, tag=tag, **options)
            if loaded is None:  # as DeepSpeed answers where it finds nothing
                raise FileNotFoundError(f"DeepSpeed found no checkpoint {tag} in {folder}")
    return point.step
