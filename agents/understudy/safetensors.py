"""Safetensors as a checkpoint that is announced when it is whole.

save(monitor, {"weight": …}, step, "checkpoints/step-000020", f"rank-{rank}.safetensors", layout="fixed")
"""

from __future__ import annotations

import os
from typing import SupportsInt

import torch
from safetensors.torch import save as serialized

from .checkpoints import CopyTo
from .monitor import Monitor
from .whole_file import whole_file


def save(  # noqa: PLR0913 - those of begin() and of safetensors
    monitor: Monitor,
    tensors: dict[str, torch.Tensor],
    step: SupportsInt,
    path: str | os.PathLike[str],
    file: str = ".",
    layout: str = "",
    *,
    tier: str = "",
    copy_to: CopyTo = "",
    metadata: dict[str, str] | None = None,
) -> None:
    """Does the same as whole_file(); `metadata` is text for the header. It needs memory for a copy of the tensors: the
    library writes no file that is summed meanwhile.
    """
    with whole_file(monitor, step, path, file, layout, tier, copy_to=copy_to) as written:
        written.write(serialized(tensors, metadata))
