"""What the last lines of a rank that failed, or of its torchrun, name as the cause. Pure.

The last line is often not it: torchrun ends with a frame around its own error, and a failed `torch.save` with an error
about positions in a file, because the disk was full.
"""

from __future__ import annotations

import re

_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):\s*\[\d+\]:.*?"
    r"^\s*rank\s*: (?P<rank>\d+) \(local_rank: \d+\)\s*^\s*exitcode\s*: (?P<status>-?\d+)",
    re.DOTALL | re.MULTILINE,
)
"""`_FAILURE_FORMAT_TEMPLATE` in torch/distributed/elastic/multiprocessing/errors/__init__.py, read and recorded with
PyTorch 2.13; other versions never seen.
"""
_ERROR = re.compile(r"(?:\[rank(?P<rank>\d+)\]:\s*)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)\b.*")
"""The last line of a traceback. PyTorch puts the rank before it, once its process group is there."""
_OF_TORCHRUN = "ChildFailedError"
_DISK_FULL = "No space left on device"
_CUT_FILE = ("unexpected pos", "PytorchStreamWriter failed writing")


def first_failed(text: str) -> tuple[int, int] | None:
    """The rank that failed first on a torchrun's node, and its exit code or, below zero, its signal."""
    found = _ROOT_CAUSE.search(text)
    return None if found is None else (int(found["rank"]), int(found["status"]))


def cause_line(text: str, rank: int | None = None) -> str:
    """The error that ended the rank; where there is none, the last line. `rank`: of several that wrote there."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [found for line in lines if (found := _ERROR.fullmatch(line)) and _OF_TORCHRUN not in line]
    of_rank = [one for one in errors if rank is not None and one["rank"] == str(rank)]
    full = next((line for line in lines if _DISK_FULL in line), None)
    if full is not None:
        return full
    line = (of_rank or errors)[-1].group() if errors else (lines or [""])[-1]
    return f"{line} (perhaps its disk or quota is full)" if any(one in line for one in _CUT_FILE) else line
