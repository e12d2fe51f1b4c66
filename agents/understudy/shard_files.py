"""Files of a checkpoint's folder that a rank has written, by the names that frameworks give to them."""

from __future__ import annotations

import os
import re

from .monitor import FILES_MAX

_OF_RANK = re.compile(r"__(\d+)_\d+\.distcp$|^rng_state_(\d+)\.pth$")
"""torch.distributed.checkpoint, also as Lightning and Megatron use it; the Trainer's random state."""

_OF_DEEPSPEED = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_")
"""Data-parallel and model-parallel rank. Without the first: written by data-parallel rank 0."""

UNFINISHED = (".partial", ".tmp")


def files_of(folder: str | os.PathLike[str], rank: int, model_parallel_ranks: int = 1) -> list[str]:
    """Names in the folder, sorted. Those that name no rank count as rank 0's. At most FILES_MAX."""
    found = []
    for place, _, names in os.walk(folder):
        inside = os.path.relpath(place, folder)
        for name in names:
            if not name.endswith(UNFINISHED) and _writer(name, model_parallel_ranks) == rank:
                found.append(name if inside == os.curdir else os.path.join(inside, name))
    return sorted(found)[:FILES_MAX]


def _writer(name: str, model_parallel_ranks: int) -> int:
    of_rank = _OF_RANK.search(name)
    if of_rank is not None:
        return int(of_rank[1] or of_rank[2])
    of_deepspeed = _OF_DEEPSPEED.search(name)
    if of_deepspeed is not None:
        return int(of_deepspeed[1] or 0) * model_parallel_ranks + int(of_deepspeed[2])
    return 0
