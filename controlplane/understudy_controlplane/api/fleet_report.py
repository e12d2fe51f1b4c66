"""What a report says, before it has a form."""

from __future__ import annotations

import msgspec

from understudy_controlplane.decide.observed import RuleRecord
from understudy_controlplane.figures.fleet_costs import FleetCosts
from understudy_controlplane.store.report import Count, RecoveryCount


class FleetReport(msgspec.Struct, frozen=True):
    """Report on what began in the span. `recoveries` have ended; `observed` are decisions that were not carried out,
    with what people answered, also later.
    """

    since: float
    until: float
    incidents: list[Count]
    incidents_open: int
    recoveries: list[RecoveryCount]
    seconds_lost: float
    quarantines: list[Count]
    worst_nodes: list[Count]
    held_back: list[Count]
    observed: list[RuleRecord]
    cluster: str
    costs: FleetCosts
