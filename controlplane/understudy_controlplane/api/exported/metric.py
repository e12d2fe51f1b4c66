"""What a metric is whose samples come from the newest snapshot, and its text for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Generic, TypeVar

PREFIX = "understudy_"

SAMPLES_BETWEEN_PAUSES = 2_000
"""About a millisecond's work. Then another thread, such as the loop, may run."""

SourceT = TypeVar("SourceT")


class Kind(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"


Sample = tuple[str, float]
"""Labels as `labels_text` writes them, and the value."""


@dataclass(frozen=True, slots=True)
class Metric(Generic[SourceT]):
    """`samples(source)` yields its series. `series` is how many there are, for the documents."""

    name: str  # without the prefix
    help: str
    samples: Callable[[SourceT], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    series: str = "1"
    kind: Kind = Kind.GAUGE
    dcgm: str = ""  # the field of dcgm-exporter that means the same, with its unit where that differs

    @property
    def full_name(self) -> str:
        return PREFIX + self.name

    def text(self, source: SourceT) -> Iterator[str]:
        """Pieces of text that each end with a line. Between two pieces other threads get their turn."""
        name = self.full_name
        lines = [f"# HELP {name} {self.help}", f"# TYPE {name} {self.kind}"]
        for labels, value in self.samples(source):
            lines.append(f"{name}{labels} {float(value)!r}")
            if len(lines) >= SAMPLES_BETWEEN_PAUSES:
                yield "\n".join(lines) + "\n"
                lines = []
                time.sleep(0)
        if lines:
            yield "\n".join(lines) + "\n"


def labels_text(**labels: str) -> str:
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


@lru_cache(maxsize=65_536)  # names of nodes, states, rules: the same at each scrape
def escaped(value: str) -> str:
    """Prometheus' text format: backslash, quote and newline."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
