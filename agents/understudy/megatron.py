"""Checkpoints of Megatron Core in the format torch_dist, announced when they are final: also asynchronous ones.

request = save(
    monitor, step, path, lambda: dist_checkpointing.save(state, path, async_sharded_save=True)
)
calls.schedule_async_request(request)
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, SupportsInt

from .monitor import Monitor
from .shard_files import files_of

LAYOUT = "reshardable"


def save(
    monitor: Monitor,
    step: SupportsInt,
    path: str | os.PathLike[str],
    write: Callable[[], Any],
    layout: str = LAYOUT,
) -> Any:
    """Call it on every rank, with what writes the checkpoint of this rank into `path`; returns what that returns.

    An asynchronous request (it has `add_finalize_fn`) gets a function that announces this rank's files. Megatron calls
    it once all ranks have written. A checkpoint whose request fails is never announced.
    """
    part = monitor.checkpoints.begin(step, path, layout)
    try:
        request = write()
    except BaseException as error:
        part.abort(repr(error))
        raise

    def commit() -> None:
        for name in files_of(path, _rank()):
            part.shard(name)
        part.commit()

    if hasattr(request, "add_finalize_fn"):
        request.add_finalize_fn(commit)
        monitor.checkpoints.note_training()  # the training goes on
    else:
        commit()
    return request


def _rank() -> int:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))
