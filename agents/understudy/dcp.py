"""The storage writer for torch.distributed.checkpoint, which announces what it writes.

dcp.save(state, storage_writer=UnderstudyWriter(monitor, step, path))
future = dcp.async_save(state, storage_writer=UnderstudyWriter(monitor, step, path))
"""

from __future__ import annotations

import os
from typing import Any, SupportsInt

from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .checkpoints import CopyTo, Save
from .monitor import Monitor


class UnderstudyWriter(FileSystemWriter):
    """Each rank announces its files when they are written; the coordinator does when it has written the manifest, which
    is after all ranks. So a checkpoint without its manifest is never complete. For async_save in a thread, as is its
    default: another process has no monitor.
    """

    def __init__(
        self,
        monitor: Monitor,
        step: SupportsInt,
        path: str | os.PathLike[str],
        tier: str = "",
        *,
        copy_to: CopyTo = "",
        **options: Any,
    ) -> None:
        """`tier` and `copy_to` are those of Checkpoints.begin, `options` are those of FileSystemWriter."""
        super().__init__(path, **options)
        self._tier, self._copy_to = tier, copy_to
        self._checkpoints, self._step, self._place = monitor.checkpoints, step, path
        self._part = self._begin()  # in the training's thread: async_save goes on in another one
        self._coordinates = False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._coordinates = is_coordinator
        if self._part.is_over:
            self._part = self._begin()

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        written = super().write_data(plan, planner)
        for name in sorted({result.storage_data.relative_path for result in written.wait()}):
            self._part.shard(name)
        if not self._coordinates:
            self._part.commit()
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        self._part.shard(".metadata")
        self._part.commit()

    def _begin(self) -> Save:
        return self._checkpoints.begin(self._step, self._place, "reshardable", self._tier, self._copy_to)
