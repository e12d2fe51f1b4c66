"""A GPU has a life of its own: it may be taken out of one node and put into another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_wire.messages import Report

_NVML_ERROR = re.compile(r"NVML error (\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class MovedGpu:
    """A GPU that was last seen in another node."""

    uuid: str
    serial: str
    bus_id: str
    node: str
    from_node: str
    faults: int  # incidents of it, wherever it sat


@dataclass(frozen=True, slots=True)
class WearSample:
    """Counters of a GPU's memory."""

    at: float
    corrected: int  # errors, since the driver was loaded
    remapped: int  # rows, for uncorrectable errors
    banks_spent: int = 0  # that have no row left to replace a faulty one


@dataclass(frozen=True, slots=True)
class GpusReadable:
    """How many GPUs of a node NVML can read now, and when it could last read more of them in this boot."""

    count: int
    since: float  # the first report of this boot that this process received
    last_at: Mapping[int, float] = field(default_factory=dict)  # a larger number → when it was last that many

    def fewer_since(self, expected: int) -> float:
        """Since when there are fewer than `expected`; there are fewer now."""
        return max((at for more, at in self.last_at.items() if more >= expected), default=self.since)

    def followed_by(self, count: int, last_at: float) -> GpusReadable:
        """`last_at`: when the report before this one was received."""
        if count == self.count:
            return self
        seen = {**self.last_at, self.count: last_at}
        return GpusReadable(count, self.since, {more: at for more, at in seen.items() if more > count})


def reads_nvml(report: Report) -> bool:
    """False: the agent's configuration disables NVML, or the agent has just started."""
    return bool(
        report.driver_version
        or report.gpus
        or report.nvml_silent_seconds
        or any("NVML" in problem for problem in report.problems)
    )


def nvml_error(text: str) -> int | None:
    """The nvmlReturn that an agent of any release names in the text of a GPU's error or of a problem."""
    found = _NVML_ERROR.search(text)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Replacement:
    """Another machine under the name of one whose replacement the provider has accepted."""

    asked_at: float
    at: float  # since when it is there
