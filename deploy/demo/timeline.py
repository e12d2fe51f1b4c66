"""The demo's result: drawn for people, written as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 64
COLOURS = {
    "detected": "red",
    "decided": "magenta",
    "drained": "yellow",
    "seats_held": "blue",
    "requeued": "cyan",
    "running": "green",
    "first_step": "white",
}


@dataclass(frozen=True, slots=True)
class RecoveryTold:
    """One recovery; times in milliseconds since the fault was put in."""

    fault: str  # "xid" | "dead_node" | "straggler"
    node: str
    spare: str
    path: str
    phases_ms: dict[str, int]
    steps_lost: int


def write(path: Path, recoveries: Sequence[RecoveryTold], weights_identical: bool, ettr: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "weights_identical": weights_identical,
        "ettr": round(ettr, 4),
        "recoveries": [asdict(one) for one in recoveries],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def draw(console: Console, recoveries: Sequence[RecoveryTold]) -> None:
    """A table of milliseconds, and under it each recovery as a bar, all to one scale."""
    table = Table("fault", "node", "spare", *COLOURS, "steps lost", box=None, header_style="bold")
    for one in recoveries:
        phases = [str(one.phases_ms.get(phase, "")) for phase in COLOURS]
        table.add_row(one.fault, one.node, one.spare, *phases, str(one.steps_lost))
    console.print(table)
    console.print("\nmilliseconds since the fault; each colour ends where its phase is reached:")
    longest = max((one.phases_ms["first_step"] for one in recoveries), default=1)
    for one in recoveries:
        console.print(_bar(one, longest))
    legend = Text("             ")
    for phase, colour in COLOURS.items():
        legend.append("█ ", colour).append(f"{phase}  ")
    console.print(legend)


def _bar(one: RecoveryTold, longest: int) -> Text:
    line = Text(f"{one.fault:>11}  ")
    drawn = 0
    for phase, colour in COLOURS.items():
        end = round(one.phases_ms[phase] / longest * BAR_WIDTH)
        line.append("█" * max(0, end - drawn), colour)
        drawn = max(drawn, end)
    return line.append(f" {one.phases_ms['first_step'] / 1000:.1f} s")
