"""The matrix: jobs, faults, Slurm's patience with a silent node, and whether the pool has a spare."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from understudy_controlplane.decide.needs import PENDS_SECONDS
from understudy_controlplane.detect.silence import UNCONFIRMED_SECONDS

JOBS = ("plain srun", "torchrun", "hook", "hook with collectives", "understudy run")
FAULTS = ("node power off", "agent dead", "slurmd dead", "Xid", "rank killed")
SLURM_WAITS = ("node power off", "slurmd dead")
"""Faults that Slurm itself notices, after its SlurmdTimeout."""
TIMEOUTS = (30, 60, 300)
POOLS = ("spare", "none")
START_SECONDS = 60.0
"""Start of a gang whose nodes are known, on a busy machine."""


NAMES_WRITTEN = {"notified_seconds": "told_seconds"}
"""Names that readers of the file expect."""
NAMES_READ = {written: name for name, written in NAMES_WRITTEN.items()}


@dataclass(frozen=True, slots=True, order=True)
class Batch:
    """Cells that are measured in one site, one gang each."""

    slurmd_timeout: int
    fault: str
    pool: str

    @property
    def moves_seconds(self) -> float:
        """Time after which a gang that is to move has moved. Slurm sets a silent node down after SlurmdTimeout, at the
        latest after five thirds of it (ping_nodes.c); the control plane calls no silent node dead later than that.
        """
        known = self.slurmd_timeout * 5 / 3 if self.fault in SLURM_WAITS else UNCONFIRMED_SECONDS
        return known + START_SECONDS

    @property
    def give_up_seconds(self) -> float:
        """Time after which a person has been paged for a gang that has not moved."""
        return self.moves_seconds + PENDS_SECONDS


@dataclass(frozen=True, slots=True)
class Cell:
    """`back_seconds`: from the fault until every rank of the gang works again, 0 if it never stopped;
    `notified_seconds`: from the fault until a message to people names the job. None: it did not happen within
    `waited_seconds`.
    """

    job: str
    fault: str
    slurmd_timeout: int
    pool: str
    back_seconds: float | None
    notified_seconds: float | None
    notified: str  # the words, empty where there were none
    waited_seconds: float
    state: str = "RUNNING"
    """State of the job in Slurm while it was not back."""
    load: float = 0.0
    """Mean load of the machine meanwhile."""
    revision: str = ""

    @property
    def is_hole(self) -> bool:
        """Neither back nor notified, and the job has not failed either, which its owner sees in Slurm."""
        return self.back_seconds is None and self.notified_seconds is None and self.state != "FAILED"

    @property
    def batch(self) -> Batch:
        return Batch(self.slurmd_timeout, self.fault, self.pool)


def batches(timeouts: Iterable[int], faults: Sequence[str], pools: Sequence[str]) -> list[Batch]:
    """Those that take least time first: what is interrupted has measured most."""
    return [Batch(*one) for one in itertools.product(sorted(timeouts), faults, pools)]


def read(file: Path) -> dict[tuple[Any, ...], Cell]:
    stored = json.loads(file.read_text())["cells"] if file.exists() else []
    cells = [Cell(**{NAMES_READ.get(name, name): value for name, value in one.items()}) for one in stored]
    return {(one.batch, one.job): one for one in cells}


def write(file: Path, cells: Iterable[Cell]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    in_order = sorted(cells, key=lambda one: (one.batch, JOBS.index(one.job)))
    shown = {"cells": [_stored(one) for one in in_order]}
    file.write_text(json.dumps(shown, indent=1) + "\n")


def _stored(cell: Cell) -> dict[str, Any]:
    return {NAMES_WRITTEN.get(name, name): value for name, value in asdict(cell).items()}


def table(cells: Iterable[Cell]) -> list[str]:
    """Table in Markdown, a row for each fault and pool; in each place what was measured with each SlurmdTimeout, the
    shortest first, or once if that was the same.
    """
    known = {(one.batch, one.job): one for one in cells}
    lines = [f"| fault | pool | {' | '.join(JOBS)} |", "|---|---|" + "---|" * len(JOBS)]
    for fault, pool in itertools.product(FAULTS, POOLS):
        shown = (_together([known.get((Batch(timeout, fault, pool), job)) for timeout in TIMEOUTS]) for job in JOBS)
        lines.append(f"| {fault} | {pool} | {' | '.join(shown)} |")
    return lines


def _together(cells: Sequence[Cell | None]) -> str:
    shown = [("", "?") if one is None else _shown(one) for one in cells]
    kinds = dict.fromkeys(kind for kind, _ in shown if kind)
    if len(kinds) == 1 and all(seconds for _, seconds in shown):
        return f"{next(iter(kinds))} {' · '.join(seconds for _, seconds in shown)}"
    texts = [f"{kind} {seconds}".strip() for kind, seconds in shown]
    return texts[0] if len({*texts}) == 1 else ", ".join(texts)


def _shown(cell: Cell) -> tuple[str, str]:
    """What became of the gang, and after how many seconds."""
    if cell.back_seconds:
        return "back", f"{cell.back_seconds:.0f}"
    after = f"{cell.notified_seconds:.0f}" if cell.notified_seconds is not None else ""
    if cell.back_seconds is not None:
        return ("went on, notified", after) if after else ("went on", "")
    if after:
        return "notified", after
    return cell.state, ""
