"""What a decision changes."""

from __future__ import annotations

from dataclasses import dataclass

from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.node import NodeRecord


@dataclass(frozen=True, slots=True)
class Change:
    decision: Decision
    before: NodeRecord | None = None  # None: the decision is about no node that is known
    after: NodeRecord | None = None
    ends_incident: bool = False  # the node's open incident; its outcome is the decision's reason
    closes_ticket: bool = False  # the node's open tickets
    noted: bool = True  # its decision is recorded by itself; if not, one decision for the fleet stands for many

    @property
    def changes_record(self) -> bool:
        return self.after != self.before
