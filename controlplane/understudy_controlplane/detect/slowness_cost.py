"""What a slow rank costs its gang, beside what a move costs it: rent or buy.

While the gang stays, it pays for the slowness, step by step. A move costs once: the restart, and the steps since the
last complete checkpoint, which are done again. How long the slowness lasts is not known. Who moves as soon as the rent
paid reaches the price never pays more than twice what was best (ski rental; Greyhound's rule for slow ranks). The price
falls with every checkpoint, so that is when a move mostly begins to pay. Where no checkpoint is known, a move may cost
all that the gang has done: it never pays.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.steps import StepTable

START_SECONDS_MAX = 600.0
"""What a gang's start counts where it is not known, as after a start of the control plane: longer than most take
(judgement).
"""


@dataclass(frozen=True, slots=True)
class SlownessCost:
    """Seconds are of the whole gang."""

    ranks: int
    share_lost: float  # of the gang's time, 0 to 1
    paid_seconds: float  # since the rank became slow
    restart_seconds: float  # as its last start took; 0: not known
    redone_seconds: float | None  # since its last complete checkpoint; None: none is known

    @property
    def price_seconds(self) -> float | None:
        """Cost of a move now; None: no checkpoint is known, so it may be all that the gang has done."""
        if self.redone_seconds is None:
            return None
        return (self.restart_seconds or START_SECONDS_MAX) + self.redone_seconds

    @property
    def pays(self) -> bool:
        return self.price_seconds is not None and self.paid_seconds >= self.price_seconds

    @property
    def words(self) -> str:
        rank_hours = self.ranks * self.share_lost
        unknown = self.redone_seconds is None
        redone = "what it has done" if unknown else f"{self.redone_seconds:.0f} s of steps"
        since = "a checkpoint that the control plane does not know" if unknown else "its last checkpoint"
        start = f"{self.restart_seconds:.0f} s for the gang's start" if self.restart_seconds else "the gang's start"
        return (
            f"it costs {rank_hours:.3g} rank hours an hour, {self.paid_seconds:.0f} s of the gang so far; a move costs "
            f"{start}, and {redone} since {since}"
        )

    def evidence(self) -> dict[str, Json]:
        return {
            "rank_hours_lost_per_hour": round(self.ranks * self.share_lost, 3),
            "paid_seconds": round(self.paid_seconds, 1),
            "restart_seconds": round(self.restart_seconds, 1),
            "redone_seconds": None if self.redone_seconds is None else round(self.redone_seconds, 1),
            "move_pays": self.pays,
        }


def slowness_cost(
    table: StepTable, rank: int, ratio: float, slow_since: float, now: float, checkpoint_at: float | None
) -> SlownessCost:
    """`slow_since`: since when the rank is known to be slow; `checkpoint_at`: when the last checkpoint was complete."""
    share = share_lost(table, rank, ratio)
    return SlownessCost(
        ranks=len(table.nodes),
        share_lost=share,
        paid_seconds=share * max(0.0, now - slow_since),
        restart_seconds=table.durations.startup,
        redone_seconds=None if checkpoint_at is None else max(0.0, now - checkpoint_at),
    )


def share_lost(table: StepTable, rank: int, ratio: float) -> float:
    """Share of the gang's time. All wait for what the rank takes longer than a peer; what they compute meanwhile is not
    known, so it is the most that it can be.
    """
    of_rank = 1 - 1 / max(ratio, 1.0)
    own = table.self_seconds[rank][np.isfinite(table.self_seconds[rank])]
    wall = float(table.wall_seconds[rank]) if table.wall_seconds.size else float("nan")
    if not own.size or not np.isfinite(wall) or wall <= 0:
        return of_rank
    return min(1.0, float(np.median(own)) * of_rank / wall)


def slow_seconds_seen(table: StepTable, rank: int, first_step: int, last_step: int) -> float:
    """About how long the slow steps took that the verdict is from: by its steps, or by its own time in them."""
    own = table.self_seconds[rank][np.isfinite(table.self_seconds[rank])]
    wall = float(table.wall_seconds[rank]) if table.wall_seconds.size else float("nan")
    a_step = wall if np.isfinite(wall) else float(np.median(own)) if own.size else 0.0
    return a_step * max(0, last_step - first_step + 1)
