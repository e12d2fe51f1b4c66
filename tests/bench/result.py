"""The one form of every benchmark's result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from statistics import median
from typing import TypeVar

T = TypeVar("T")
BENCH_DIRECTORY = Path(__file__).resolve().parents[2] / "build" / "bench"

SPREAD_MAX = 0.5
"""Rounds that differ by more than this share of their median give no figure."""


class Size(Enum):
    """The full size gives figures; the small one shows within seconds that a benchmark still runs."""

    FULL = "full"
    SMALL = "small"

    def of(self, full: T, small: T) -> T:
        return full if self is Size.FULL else small


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure divided by a rival's of the same round: the median, and how much the rounds differ."""

    median: float
    spread: float


@dataclass(frozen=True, slots=True)
class Result:
    """One figure: its median and worst of `n` rounds, and the same figure of rivals (None: it never came about)."""

    name: str
    unit: str
    n: int
    median: float
    worst: float
    rivals: Mapping[str, float | None] = field(default_factory=dict)
    spread: float = 0.0
    ratios: Mapping[str, Ratio] = field(default_factory=dict)

    @property
    def usable(self) -> bool:
        return self.spread <= SPREAD_MAX

    def __str__(self) -> str:
        beside = "".join(f", {rival} {value:.4g}" for rival, value in self.rivals.items() if value is not None)
        ratios = "".join(f", {one.median:.3g} of {rival}" for rival, one in self.ratios.items())
        unusable = "" if self.usable else f"; UNUSABLE: its rounds differ by {self.spread:.0%}"
        worst = f"worst of {self.n} {self.worst:.4g}"
        return f"{self.name}: median {self.median:.4g} {self.unit}, {worst}{beside}{ratios}{unusable}"


def result(
    name: str,
    unit: str,
    values: Sequence[float],
    rivals: Mapping[str, Sequence[float]],
    more_is_better: bool,
    rounds: bool = True,
) -> Result:
    """`rounds`: the values are of the same thing, measured several times."""
    worst = min(values) if more_is_better else max(values)
    medians = {rival: median(measured) if measured else None for rival, measured in rivals.items()}
    ratios = {rival: _ratio(values, measured) for rival, measured in rivals.items() if all(measured) and measured}
    return Result(name, unit, len(values), median(values), worst, medians, spread(values) if rounds else 0.0, ratios)


def spread(values: Sequence[float]) -> float:
    """Difference between the most and the least, as a share of the median."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle > 0 else 0.0


def write(name: str, results: Sequence[Result]) -> Path:
    BENCH_DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = BENCH_DIRECTORY / f"{name}.json"
    path.write_text(json.dumps({"results": [asdict(one) for one in results]}, indent=2) + "\n")
    return path


def _ratio(values: Sequence[float], rival: Sequence[float]) -> Ratio:
    each = [one / other for one, other in zip(values, rival, strict=False)]
    return Ratio(median(each), spread(each))
