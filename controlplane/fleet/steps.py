"""Step times of one attempt of a job: one row a rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from controlplane.fleet.job import Attempt, JobKey


@dataclass(frozen=True, slots=True)
class StepTable:
    """A consistent copy of the live step times.

    `self_seconds[rank, i]` is the self time of step `first_step + i`, NaN where it was not reported.
    """

    job: JobKey
    attempt: Attempt
    first_step: int
    self_seconds: npt.NDArray[np.float32]  # shape (ranks, steps)
    last_step: npt.NDArray[np.int64]  # per rank, -1: none yet
    nodes: tuple[str, ...]  # per rank, "" unknown
    roles: tuple[str, ...]  # per rank
    gpus: tuple[int | None, ...]  # per rank: index on its node
    advanced_at: float  # when any rank last reported a new step
