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


class Size(Enum):
    """The full size gives figures; the small one shows within seconds that a benchmark still runs."""

    FULL = "full"
    SMALL = "small"

    def of(self, full: T, small: T) -> T:
        return full if self is Size.FULL else small


@dataclass(frozen=True, slots=True)
class Result:
    """One figure: its median and worst of `n` rounds, and the same figure of rivals (None: it never came about)."""

    name: str
    unit: str
    n: int
    median: float
    worst: float
    rivals: Mapping[str, float | None] = field(default_factory=dict)


def result(
    name: str, unit: str, values: Sequence[float], rivals: Mapping[str, Sequence[float]], more_is_better: bool
) -> Result:
    worst = min(values) if more_is_better else max(values)
    medians = {rival: median(measured) if measured else None for rival, measured in rivals.items()}
    return Result(name, unit, len(values), median(values), worst, medians)


def write(name: str, results: Sequence[Result]) -> Path:
    BENCH_DIRECTORY.mkdir(parents=True, exist_ok=True)
    path = BENCH_DIRECTORY / f"{name}.json"
    path.write_text(json.dumps({"results": [asdict(one) for one in results]}, indent=2) + "\n")
    return path
