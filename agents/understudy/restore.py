"""Where a gang continues, as the control plane decided it: a checkpoint, the beginning, or not known."""

from __future__ import annotations

from typing import Any, NamedTuple


class RestorePoint(NamedTuple):
    """Where training continues: step 0 and an empty path mean from the beginning, because nothing was ever saved."""

    step: int
    path: str


class RestorePointUnknownError(Exception):
    """It is not known whether there is a checkpoint to restore; `cause` says why."""

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"where to continue is not known: {cause}. The job stops here, because a start from the beginning could "
            "throw work away. Repair the cause and start the job again, or pass otherwise=..., which is returned then"
        )
        self.cause = cause


def read_point(answer: dict[str, Any]) -> RestorePoint:
    """Raises RestorePointUnknownError for an answer that makes no sense."""
    step, path = answer.get("step"), answer.get("path")
    if not isinstance(step, int) or not isinstance(path, str):
        raise RestorePointUnknownError(f"the agent's answer makes no sense: {answer}")
    return RestorePoint(step, path)


def hook_failed(error: Exception) -> RestorePointUnknownError:
    return RestorePointUnknownError(f"the hook failed: {error!r}")
