"""How often a training should save: the best interval for what a checkpoint costs and how often a gang fails. Pure.

Seconds throughout. `cost` is how long a checkpoint holds the training up, `mtbf` the mean time between failures of the
gang. Failures come at a constant rate. An interval is the time of training between two checkpoints, without the cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from understudy_controlplane.fleet.durations import DAY_SECONDS

PRIOR_FAILURES_PER_NODE_DAY = 3.79e-3
"""Rate for a cluster with little history of its own: Llama 3, 419 failures of 2,048 nodes in 54 days (arXiv
2407.21783).
"""

PRIOR_FAILURES = 1.0
"""How much the prior weighs: as if one failure had been seen at that rate."""


@dataclass(frozen=True, slots=True)
class FailureRate:
    per_node_day: float
    failures: int  # that this cluster has seen
    node_days: float  # in which it has seen them

    def mtbf(self, nodes: int) -> float:
        """MTBF of a gang on so many nodes: it fails when any of them does."""
        return DAY_SECONDS / (max(nodes, 1) * self.per_node_day)


def failure_rate(failures: int, node_days: float) -> FailureRate:
    """Rate of this cluster: the prior if it has no history, what was seen if it has much."""
    prior_node_days = PRIOR_FAILURES / PRIOR_FAILURES_PER_NODE_DAY
    return FailureRate((failures + PRIOR_FAILURES) / (node_days + prior_node_days), failures, node_days)


def best_interval(cost: float, mtbf: float) -> float:
    """The exact optimum, M * (1 + W(-exp(-C/M - 1))). It does not depend on how long a recovery takes."""
    _positive(cost, mtbf)
    ratio = cost / mtbf
    # Solves log(1 - x) + x + C/M = 0 with x = τ/M by Newton's method, which keeps its precision for small x.
    x = min(0.999, math.sqrt(2 * ratio))
    for _ in range(100):
        step = (_log_gap(x) + ratio) * (1 - x) / x
        after = min(max(x + step, x / 2), (1 + x) / 2)
        if abs(after - x) <= 1e-14 * x:
            break
        x = after
    return mtbf * x


def _log_gap(x: float) -> float:
    """log(1 - x) + x, also for a small x."""
    if x < 1e-4:
        return -x * x * (1 / 2 + x * (1 / 3 + x / 4))
    return math.log1p(-x) + x


def daly_interval(cost: float, mtbf: float) -> float:
    """Daly's estimate of higher order (2006)."""
    _positive(cost, mtbf)
    if cost >= 2 * mtbf:
        return mtbf
    half = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(half) / 3 + half / 9) - cost


def efficiency(interval: float, cost: float, mtbf: float, recovery: float = 0.0) -> float:
    """The share of the time in which a training makes progress that is kept, 0 to 1. `recovery` is the time from a
    failure until training goes on.
    """
    _positive(cost, mtbf)
    exponent = (interval + cost) / mtbf
    if interval <= 0 or exponent + recovery / mtbf > 700:  # beyond it nothing is ever kept
        return 0.0
    return interval / (mtbf * math.exp(recovery / mtbf) * math.expm1(exponent))


def _positive(cost: float, mtbf: float) -> None:
    if not (cost > 0 and mtbf > 0 and math.isfinite(cost) and math.isfinite(mtbf)):
        raise ValueError(f"cost and mean time between failures must be above zero: {cost:g} s, {mtbf:g} s")
