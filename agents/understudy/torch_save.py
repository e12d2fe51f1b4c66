"""torch.save as a checkpoint that is announced when it is whole.

save(monitor, {"model": …, "step": step}, step, "checkpoints/step-000020.pt")
"""

from __future__ import annotations

import os
from typing import IO, Any, SupportsInt, cast

import torch

from .checksum import SummedFile
from .monitor import Monitor


def save(  # noqa: PLR0913 - those of begin() and of torch.save
    monitor: Monitor,
    state: Any,
    step: SupportsInt,
    path: str | os.PathLike[str],
    file: str = ".",
    layout: str = "",
    *,
    tier: str = "",
    **options: Any,
) -> None:
    """Writes `state` beside its place, and moves it there when it is on disk: a rank that is killed meanwhile leaves
    the file of before. With `file`, `path` is a directory that all ranks share. `layout` and `tier` are those of
    Checkpoints.begin, `options` are those of torch.save.
    """
    with monitor.checkpoints.begin(step, path, layout, tier) as part:
        place = os.fspath(path) if file == "." else os.path.join(path, file)
        os.makedirs(os.path.dirname(os.path.abspath(place)), exist_ok=True)
        partial = f"{place}.partial"
        with SummedFile(partial) as written:
            torch.save(state, cast("IO[bytes]", written), **options)
            written.sync()
        os.replace(partial, place)
        part.shard(file, written.checksum)
