"""Step times as made by chance, for what needs more of them than real traces have: jitter of 1.5 % (lognormal), ranks
that differ by 0.7 %, one step in a hundred 30 % longer, and work that is spread unevenly in each step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tests import builders as b
from understudy_controlplane.config import Straggler
from understudy_controlplane.detect.slow_ranks import SlowRank, judge
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.steps import StepTable

JITTER, OFFSET, SPIKES, SPIKE = 0.015, 0.007, 0.01, 1.3
STEPS_KEPT = 128
STEP_SECONDS = 10.0


class GeneratedGang:
    """Ranks in roles of `peers` each; as many steps are kept as the control plane keeps."""

    def __init__(self, ranks: int, peers: int, imbalance: float, seed: int, role: str = "stage") -> None:
        self._rng = np.random.default_rng(seed)
        self._sigma = np.float32(np.hypot(JITTER, imbalance))
        self.ranks = ranks - ranks % peers
        self.pace = np.exp(self._rng.normal(0, OFFSET, self.ranks)).astype(np.float32)
        self.roles = tuple(f"{role}{rank // peers}" if role else "" for rank in range(self.ranks))
        self.steps = 0
        self._times = np.empty((self.ranks, 0), np.float32)

    def train(self, steps: int) -> None:
        times = np.exp(self._rng.standard_normal((self.ranks, steps), np.float32) * self._sigma) * self.pace[:, None]
        times[self._rng.random((self.ranks, steps), np.float32) < SPIKES] *= SPIKE
        self._times = np.concatenate([self._times, times], axis=1)[:, -STEPS_KEPT:]
        self.steps += steps

    def slow_down(self, ranks: npt.NDArray[np.intp], by: float) -> None:
        self.pace[ranks] *= 1 + by

    def table(self) -> StepTable:
        return StepTable(
            job=b.job().key,
            attempt=Attempt(0),
            first_step=self.steps - self._times.shape[1],
            self_seconds=self._times,
            last_step=np.full(self.ranks, self.steps - 1, np.int64),
            nodes=("n1",) * self.ranks,
            roles=self.roles,
            gpus=(0,) * self.ranks,
            advanced_at=b.NOW,
        )

    def named(self, policy: Straggler) -> list[SlowRank]:
        return [slow for slow in judge(self.table(), policy) if not slow.doubt]


def false_alarms(ranks: int, peers: int, imbalance: float, rounds: int, seed: int) -> tuple[int, float]:
    """How many healthy ranks are ever named, and in how many days of ranks, at ten seconds a step."""
    gang, policy = GeneratedGang(ranks, peers, imbalance, seed), Straggler()
    gang.train(policy.windows * policy.window_steps)
    named: set[int] = set()
    half = policy.window_steps // 2
    for _ in range(rounds):
        gang.train(half)
        named |= {slow.rank for slow in gang.named(policy)}
    return len(named), gang.ranks * rounds * half * STEP_SECONDS / 86_400


def steps_to_detection(gangs: int, peers: int, imbalance: float, slowdown: float, seed: int) -> list[int | None]:
    """Slow steps after which each gang's rank was named that became slow three steps after a window began; None: not
    within 130.
    """
    gang, policy = GeneratedGang(gangs * peers, peers, imbalance, seed), Straggler()
    half = policy.window_steps // 2
    gang.train(STEPS_KEPT - STEPS_KEPT % half + 3)
    chosen = np.arange(gangs) * peers + np.random.default_rng(seed).integers(0, peers, gangs)
    gang.slow_down(chosen, slowdown)
    taken: dict[int, int] = {}
    gang.train(half - 3)
    for after in range(half - 3, 131, half):
        for slow in gang.named(policy):
            taken.setdefault(slow.rank, after)
        gang.train(half)
    return [taken.get(int(rank)) for rank in chosen]
