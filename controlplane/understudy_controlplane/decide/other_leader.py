"""Another control plane leads here: the circuit breaker opens, which notifies a person. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from understudy_controlplane.decide.table import row_without_node
from understudy_controlplane.fleet.decision import Because, Decision
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.snapshot import Snapshot


def breaker_for_other_leader(snapshot: Snapshot) -> Iterator[Decision]:
    other, row = snapshot.other_leader, row_without_node(Signal.OTHER_LEADER)
    if other is not None and other.is_believed and not snapshot.operator.breaker_holds_all:
        reason = f"{other.words}; {row.why}"
        yield Decision(row=row.number, subject="fleet", action=row.action, because=Because.OTHER_LEADER, reason=reason)
