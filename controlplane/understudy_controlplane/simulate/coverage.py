"""What simulations have seen: rows of the table, and recovery steps that were done, failed, or were under way when the
control plane was killed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from understudy_controlplane.decide.table import TABLE
from understudy_controlplane.fleet.recovery import StepName, StepStatus
from understudy_controlplane.recover.steps import STEPS
from understudy_controlplane.simulate.world import World
from understudy_controlplane.store.queries import Queries

DECISIONS_MAX = 10_000
SEEN = {StepStatus.DONE: "done", StepStatus.FAILED: "failed"}


@dataclass
class Coverage:
    rows: Counter[int] = field(default_factory=Counter)
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, world: World) -> None:
        self.rows.update(row["table_row"] for row in Queries(world.engine).decisions(DECISIONS_MAX))
        if world.core is not None:
            for recovery in world.core.stores.recoveries.newest(DECISIONS_MAX):
                self.steps.update(
                    (step.name.value, SEEN[step.status]) for step in recovery.steps if step.status in SEEN
                )
        self.steps.update((name, "killed") for name in world.crashed_in.elements())

    def missing(self) -> list[str]:
        """One line for each kind."""
        rows = [str(row.number) for row in TABLE if not self.rows[row.number]]
        lines = [f"rows never entered: {', '.join(rows) or 'none'}"]
        for how in ("done", "failed", "killed"):
            steps = [name.value for name in StepName if name in STEPS and not self.steps[name.value, how]]
            lines.append(f"steps never {how}: {', '.join(steps) or 'none'}")
        return lines
