"""The GPU that this rank uses: its UUID by torch, or its index by the environment.

Slurm's cgroups renumber GPUs within a job, so an index of CUDA means nothing outside; a UUID does. No library is
imported and CUDA is not initialised for this.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

UUID_CHARACTERS_MAX = 96


def gpu_uuid(environment: Mapping[str, str]) -> str:
    """ "GPU-…" of the device of the calling thread; empty: not known. Call it from the training thread."""
    cuda = _cuda()
    if cuda is not None:
        uuid = str(getattr(cuda.get_device_properties(cuda.current_device()), "uuid", ""))
        if uuid:
            return (uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")[:UUID_CHARACTERS_MAX]
    entry = _entry(environment, _local_device(environment))
    return entry[:UUID_CHARACTERS_MAX] if entry.startswith("GPU-") else ""


def gpu_index(environment: Mapping[str, str]) -> int | None:
    """Index on this node; None: not known, or the rank has no GPU.

    In a job whose devices Slurm constrains, CUDA_VISIBLE_DEVICES counts within the job, and SLURM_STEP_GPUS or
    SLURM_JOB_GPUS on the node. Where Slurm has bound each task to one of several, it is 0 in all of them.
    """
    entry = _entry(environment, _local_device(environment))
    if not entry.isdecimal():
        return None
    visible = _list(environment.get("CUDA_VISIBLE_DEVICES"))
    allocated = _list(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS"))
    if visible == ["0"] and len(allocated) > 1 and _local_rank(environment):
        return None
    if not allocated or set(visible) <= set(allocated):
        return int(entry)
    own = allocated[int(entry)] if int(entry) < len(allocated) else ""
    return int(own) if own.isdecimal() else None


def _cuda() -> Any:
    """torch.cuda, if the program uses it."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None


def _local_device(environment: Mapping[str, str]) -> int:
    cuda = _cuda()
    if cuda is not None:
        return int(cuda.current_device())
    return _local_rank(environment)


def _local_rank(environment: Mapping[str, str]) -> int:
    text = environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or "0"
    return int(text) if text.isdecimal() else 0


def _entry(environment: Mapping[str, str], device: int) -> str:
    visible = _list(environment.get("CUDA_VISIBLE_DEVICES"))
    if len(visible) == 1:  # each rank sees only its own
        return visible[0]
    return visible[device] if device < len(visible) else ""


def _list(text: str | None) -> list[str]:
    return [one.strip() for one in (text or "").split(",") if one.strip()]
