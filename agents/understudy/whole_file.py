"""A file of a checkpoint that is there whole, or not at all, and is announced when it is."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import SupportsInt

from .checkpoints import CopyTo
from .checksum import SummedFile
from .file_system import place_of
from .monitor import Monitor

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextlib.contextmanager
def whole_file(  # noqa: PLR0913 - those of begin()
    monitor: Monitor,
    step: SupportsInt,
    path: str | os.PathLike[str],
    file: str,
    layout: str,
    tier: str,
    *,
    copy_to: CopyTo,
) -> Iterator[SummedFile]:
    """Yields a file to write. It is written beside its place, and moved there when it is on disk: a rank that is killed
    meanwhile leaves the file of before. With `file` other than ".", `path` is a directory that all ranks share.
    `layout`, `tier` and `copy_to` are those of Checkpoints.begin.

    If the file system is full, or the user's quota, the checkpoint is given up with a warning, what was written of it
    is removed, and the training goes on.
    """
    part = monitor.checkpoints.begin(step, path, layout, tier, copy_to)
    place = place_of(path, file)
    partial = f"{place}.partial"
    written = None
    try:
        os.makedirs(os.path.dirname(os.path.abspath(place)), exist_ok=True)
        with SummedFile(partial) as written:
            yield written
            written.sync()
        os.replace(partial, place)
    except BaseException as error:
        failed = (written.failed if written is not None else None) or error  # torch: "unexpected pos", where it is full
        part.abort(repr(failed))
        if isinstance(failed, OSError) and failed.errno in FULL and isinstance(error, Exception):
            with contextlib.suppress(OSError):
                os.unlink(partial)
            return
        raise
    part.shard(file, written.checksum)
    part.commit()
