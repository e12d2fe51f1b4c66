"""The demo's result: drawn for people, written as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

BAR_WIDTH_MAX = 90
COLOURS = {
    "detected": "red",
    "decided": "magenta",
    "drained": "yellow",
    "relaunched": "cyan",
    "seats_held": "blue",
    "requeued": "cyan",
    "running": "green",
    "communicator": "bright_green",
    "first_step": "white",
}


@dataclass(frozen=True, slots=True)
class RecoveryShown:
    """One recovery; times in milliseconds since the fault was put in."""

    fault: str  # "xid" | "dead_node" | "straggler"
    node: str
    spare: str
    path: str  # "pool" | "allocation"
    phases_ms: dict[str, int]
    steps_lost: int
    restored_from: str  # "a replica" | "memory" | "files"


def write(
    path: Path,
    recoveries: Sequence[RecoveryShown],
    weights_identical: bool,
    ettr: float,
    first_start_seconds: float,
    step_seconds: float,
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "weights_identical": weights_identical,
        "ettr": round(ettr, 4),
        "first_start_ms": round(first_start_seconds * 1000),
        "step_ms": round(step_seconds * 1000, 1),
        "recoveries": [asdict(one) for one in recoveries],
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def draw(console: Console, recoveries: Sequence[RecoveryShown]) -> None:
    """A table of milliseconds, a column for each recovery, and under it each as a bar, all to one scale."""
    table = Table("milliseconds since the fault", box=None, header_style="bold")
    for one in recoveries:
        table.add_column(f"{one.fault}\n{one.node} → {one.spare}", justify="right")
    for phase, colour in COLOURS.items():
        times = (one.phases_ms.get(phase) for one in recoveries)
        table.add_row(Text(phase, colour), *("" if one is None else f"{one:,}" for one in times))
    table.add_row("spare of the", *(one.path for one in recoveries))
    table.add_row("restored from", *(one.restored_from for one in recoveries))
    table.add_row("steps lost", *(str(one.steps_lost) for one in recoveries))
    console.print(table)
    console.print()
    longest = max((one.phases_ms["first_step"] for one in recoveries), default=1)
    width = min(BAR_WIDTH_MAX, console.width - 24)
    for one in recoveries:
        console.print(_bar(one, longest, width))


def _bar(one: RecoveryShown, longest: int, width: int) -> Text:
    """Each colour ends where its phase is reached."""
    line = Text(f"{one.fault:>11}  ")
    drawn = 0
    for phase, milliseconds in sorted(one.phases_ms.items(), key=lambda item: item[1]):
        end = round(milliseconds / longest * width)
        line.append("█" * max(0, end - drawn), COLOURS[phase])
        drawn = max(drawn, end)
    return line.append(f" {one.phases_ms['first_step'] / 1000:.1f} s")
