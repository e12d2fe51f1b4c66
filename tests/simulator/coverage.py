"""What simulations have seen: events, rows of the table, and what became of recovery steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulator.scenario import Kind
from tests.simulator.world import World
from understudy_controlplane.decide.table import TABLE
from understudy_controlplane.fleet.recovery import StepName, StepStatus
from understudy_controlplane.recover.steps import STEPS
from understudy_controlplane.store.queries import Queries

DECISIONS_MAX = 10_000
HOW = ("done", "failed", "killed")
"""Killed: it was begun, or waited, when the control plane was killed."""

SEEN = {StepStatus.DONE: "done", StepStatus.FAILED: "failed"}


EVERYTHING = frozenset(
    [f"row {row.number}" for row in TABLE] + [f"step {name.value} {how}" for name in STEPS for how in HOW]
)
"""What can be seen, of rows and steps."""


@dataclass
class Coverage:
    kinds: Counter[Kind] = field(default_factory=Counter)
    rows: Counter[int] = field(default_factory=Counter)
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, world: World) -> None:
        self.kinds.update(event.kind for event in world.scenario.events)
        self.rows.update(row["table_row"] for row in Queries(world.engine).decisions(DECISIONS_MAX))
        if world.core is not None:
            for recovery in world.core.stores.recoveries.newest(DECISIONS_MAX):
                self.steps.update(
                    (step.name.value, SEEN[step.status]) for step in recovery.steps if step.status in SEEN
                )
        self.steps.update((name, "killed") for name in world.crashed_in.elements())

    def seen(self) -> set[str]:
        """Names of rows that were entered, and of steps with what became of them."""
        rows = {f"row {number}" for number, times in self.rows.items() if times}
        return rows | {f"step {name} {how}" for (name, how), times in self.steps.items() if times}

    def report(self) -> list[str]:
        """One line for each row and step that was seen, with how often; then what was not seen."""
        rows = [f"row {row.number}: entered {self.rows[row.number]} times" for row in TABLE if self.rows[row.number]]
        steps = [
            f"step {name.value}: {', '.join(f'{how} {self.steps[name.value, how]} times' for how in HOW)}"
            for name in StepName
            if any(self.steps[name.value, how] for how in HOW)
        ]
        return [*rows, *steps, *self.missing()]

    def missing(self) -> list[str]:
        """One line for each kind."""
        kinds = [f"{kind.value}" for kind in Kind if not self.kinds[kind]]
        rows = [str(row.number) for row in TABLE if not self.rows[row.number]]
        lines = [f"events never seen: {'; '.join(kinds) or 'none'}", f"rows never entered: {', '.join(rows) or 'none'}"]
        for how in HOW:
            steps = [name.value for name in StepName if name in STEPS and not self.steps[name.value, how]]
            lines.append(f"steps never {how}: {', '.join(steps) or 'none'}")
        return lines
