"""torch.save as a checkpoint that is announced when it is whole.

save(monitor, {"model": …, "step": step}, step, "checkpoints/step-000020.pt")
"""

from __future__ import annotations

import os
from typing import IO, Any, SupportsInt, cast

import torch

from .checkpoints import CopyTo
from .monitor import Monitor
from .whole_file import whole_file


def save(  # noqa: PLR0913 - those of begin() and of torch.save
    monitor: Monitor,
    state: Any,
    step: SupportsInt,
    path: str | os.PathLike[str],
    file: str = ".",
    layout: str = "",
    *,
    tier: str = "",
    copy_to: CopyTo = "",
    **options: Any,
) -> None:
    """Does the same as whole_file(); `options` are those of torch.save."""
    with whole_file(monitor, step, path, file, layout, tier, copy_to=copy_to) as written:
        torch.save(state, cast("IO[bytes]", written), **options)
