"""How often things fail, what that costs, and how many spares it takes. Pure: counts, seconds and prices."""

from __future__ import annotations

import math

from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS


def mtbf(seconds: float, failures: int) -> float | None:
    """Mean time between failures; None: there was none."""
    return seconds / failures if failures else None


def per_1000_node_days(failures: float, nodes: float, seconds: float) -> float:
    return 1000 * failures / (nodes * seconds / DAY_SECONDS) if nodes and seconds else 0.0


def gpu_days(gpus: float, seconds: float) -> float:
    return gpus * seconds / DAY_SECONDS


def gpu_hours(gpus: float, seconds: float) -> float:
    return gpus * seconds / HOUR_SECONDS


def money(hours: float, hour_price: float) -> float:
    return hours * hour_price


def binomial_quantile(share: float, trials: int, chance: float) -> int:
    """The least number that is not exceeded with this probability."""
    if chance >= 1:
        return trials
    log_ratio = math.log(chance) - math.log1p(-chance) if chance > 0 else -math.inf
    log_term, total, count = trials * math.log1p(-chance), 0.0, 0
    while count < trials:
        total += math.exp(log_term)
        if total >= share:
            break
        log_term += math.log((trials - count) / (count + 1)) + log_ratio
        count += 1
    return count


def poisson_quantile(share: float, mean: float) -> int:
    """Quantile as `binomial_quantile` has it."""
    if mean <= 0:
        return 0
    total, count = 0.0, 0
    while True:
        total += math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
        if total >= share or count > 10 * mean + 100:
            return count
        count += 1


def quantile_of_levels(share: float, levels: dict[int, float]) -> int:
    """`levels`: number → seconds for which it was that many. The least that is not exceeded for this share of them."""
    whole, so_far = sum(levels.values()), 0.0
    for level in sorted(levels):
        so_far += levels[level]
        if so_far >= share * whole:
            return level
    return 0
