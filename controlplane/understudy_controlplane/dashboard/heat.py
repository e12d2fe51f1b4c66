"""Step times of a gang's ranks as a heat map: how much longer a step took a rank than the others. Pure."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from understudy_controlplane.decide.spares import natural
from understudy_controlplane.fleet.steps import StepTable

STEPS_SHOWN = 60
ROWS_MAX = 64
"""Above this number of ranks a row is a node: its slowest rank counts."""

CELL_WIDTH, CELL_HEIGHT, LABELS = 12, 12, 130
LEVELS = (0.9, 1.05, 1.15, 1.3, 1.6)
"""Limits of a cell's level, in relation to the median rank of the step."""

LEVEL_WORDS = ("under 0.9", "0.9 to 1.05", "1.05 to 1.15", "1.15 to 1.3", "1.3 to 1.6", "over 1.6")
SLOW_SHOWN = 5
SLOW_RATIO = 1.05


@dataclass(frozen=True, slots=True)
class Slow:
    name: str
    node: str
    ratio: float


@dataclass(frozen=True, slots=True)
class Heat:
    rows: tuple[str, ...]
    nodes: tuple[str, ...]
    first_step: int
    levels: npt.NDArray[np.int8]  # -1: not reported
    median_seconds: float
    slow: tuple[Slow, ...]
    by_node: bool


def heat(table: StepTable) -> Heat | None:
    """None: no rank has reported a step."""
    times = table.self_seconds[:, -STEPS_SHOWN:]
    if not times.size or not np.isfinite(times).any():
        return None
    first = table.first_step + table.self_seconds.shape[1] - times.shape[1]
    reported = np.isfinite(times).any(axis=0)
    times, first = times[:, np.argmax(reported) :], first + int(np.argmax(reported))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a step that no rank has reported has no median
        medians = np.nanmedian(times, axis=0)
        ratios = times / medians
        names: Sequence[str] = [f"rank {rank}" for rank in range(len(ratios))]
        nodes: Sequence[str] = table.nodes
        by_node = len(ratios) > ROWS_MAX
        if by_node:
            known = sorted({name for name in table.nodes if name}, key=natural)
            of_node = np.array(table.nodes)
            ratios = np.array([np.nanmax(ratios[of_node == name], axis=0) for name in known])
            names = nodes = known
        typical = np.nanmedian(ratios, axis=1)
    levels = np.where(np.isfinite(ratios), np.searchsorted(LEVELS, ratios, side="right"), -1).astype(np.int8)
    slowest = np.argsort(-np.nan_to_num(typical))[:SLOW_SHOWN]
    slow = [Slow(names[at], nodes[at], float(typical[at])) for at in slowest if typical[at] > SLOW_RATIO]
    median = float(np.nanmedian(medians))
    return Heat(tuple(names), tuple(nodes), first, levels, median, tuple(slow), by_node)


def drawn(shown: Heat) -> Markup:
    rows, steps = shown.levels.shape
    width, height = LABELS + steps * CELL_WIDTH, rows * CELL_HEIGHT + 22
    cells = [cell for row in range(rows) for cell in _row(shown, row)]
    last = shown.first_step + steps - 1
    return Markup(
        '<svg class="heat" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">{cells}'
        '<text class="axis" x="{x0}" y="{y}">step {first}</text><text class="axis end" x="{w}" y="{y}">step {last}'
        "</text></svg>"
    ).format(
        w=width,
        h=height,
        label=f"Step times of {rows} {'nodes' if shown.by_node else 'ranks'} from step {shown.first_step} to {last}",
        cells=Markup("").join(cells),
        x0=LABELS,
        y=height - 6,
        first=shown.first_step,
        last=last,
    )


def _row(shown: Heat, row: int) -> list[Markup]:
    y = row * CELL_HEIGHT
    node = "" if shown.by_node or not shown.nodes[row] else f" {shown.nodes[row]}"
    found = [
        Markup('<text class="name" x="{x}" y="{y}">{name}{node}</text>').format(
            x=LABELS - 8, y=y + 10, name=shown.rows[row], node=node
        )
    ]
    x = LABELS
    for level, run in groupby(shown.levels[row].tolist()):
        width = len(list(run)) * CELL_WIDTH
        if level >= 0:
            found.append(
                Markup('<rect class="h{level}" x="{x}" y="{y}" width="{w}" height="{h}"/>').format(
                    level=level, x=x, y=y + 1, w=width, h=CELL_HEIGHT - 2
                )
            )
        x += width
    return found
