"""What happened in a span of time: sums, by indexes of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Select, func, select

from understudy_controlplane.fleet.decision import TAKES_OUT, Action, Because
from understudy_controlplane.fleet.recovery import RecoveryKind
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Store

_INCIDENT, _RECOVERY, _DECISION = tables.incident, tables.recovery, tables.decision
_KINDS = [kind.value for kind in SubjectKind]
_MOVES = [RecoveryKind.POOL_SWAP.value, RecoveryKind.ALLOCATION_SWAP.value]
WORST_MAX = 10


@dataclass(frozen=True, slots=True)
class Count:
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class RecoveryCount:
    kind: str
    status: str
    count: int
    median_seconds: float  # from the detection of the fault to the end of the recovery


class ReportStore(Store):
    """Reports what began between `since` and `until`."""

    def incidents(self, since: float, until: float) -> list[Count]:
        """Incidents by the rule that opened them."""
        opened = (_INCIDENT.c.subject_kind.in_(_KINDS), _INCIDENT.c.opened_at >= since, _INCIDENT.c.opened_at < until)
        return self._counts(select(_INCIDENT.c.rule, func.count()).where(*opened).group_by(_INCIDENT.c.rule))

    def first_incident_at(self) -> float | None:
        """None: there was none."""
        first: float | None = self._scalar(select(func.min(_INCIDENT.c.opened_at)))
        return first

    def quarantines(self, since: float, until: float) -> list[Count]:
        """Quarantines by rule."""
        taken_out = (_DECISION.c.action.in_(TAKES_OUT), *_decided(since, until))
        return self._counts(select(_DECISION.c.rule, func.count()).where(*taken_out).group_by(_DECISION.c.rule))

    def worst_nodes(self, since: float, until: float) -> list[Count]:
        """Those that were quarantined most often."""
        taken_out = (_DECISION.c.action.in_(TAKES_OUT), *_decided(since, until))
        query = select(_DECISION.c.subject, func.count()).where(*taken_out).group_by(_DECISION.c.subject)
        return self._counts(query)[:WORST_MAX]

    def held_back(self, since: float, until: float) -> list[Count]:
        """Decisions to do nothing, by the guard that objected."""
        held = (_DECISION.c.action == Action.NOTHING.value, _DECISION.c.because != Because.RULE.value)
        query = select(_DECISION.c.because, func.count()).where(*held, *_decided(since, until))
        return self._counts(query.group_by(_DECISION.c.because))

    def recoveries(self, since: float, until: float) -> list[RecoveryCount]:
        """Those that have ended, by their path and outcome."""
        group = (_RECOVERY.c.kind, _RECOVERY.c.status)
        seconds = _RECOVERY.c.ended_at - _RECOVERY.c.detected_at
        ranked = (
            select(
                *group,
                seconds.label("seconds"),
                func.row_number().over(partition_by=group, order_by=seconds).label("position"),
                func.count().over(partition_by=group).label("of"),
            )
            .where(*_planned(since, until))
            .subquery()
        )
        query = select(ranked.c.kind, ranked.c.status, ranked.c.of, ranked.c.seconds)
        query = query.where(ranked.c.position == (ranked.c.of + 1) // 2).order_by(ranked.c.of.desc(), ranked.c.kind)
        return [RecoveryCount(*row) for row in self._rows(query)]

    def seconds_lost(self, since: float, until: float) -> float:
        """Seconds that gangs lost by moves and restarts, from the fault to the end of the recovery."""
        moved = (_RECOVERY.c.kind.in_(_MOVES), _RECOVERY.c.fault_at > 0, *_planned(since, until))
        query = select(func.sum(_RECOVERY.c.ended_at - _RECOVERY.c.fault_at)).where(*moved)
        return self._scalar(query) or 0.0

    def _counts(self, query: Select[Any]) -> list[Count]:
        """The largest first."""
        found = [Count(name, count) for name, count in self._rows(query)]
        return sorted(found, key=lambda one: (-one.count, one.name))


def _decided(since: float, until: float) -> tuple[Any, ...]:
    return (_DECISION.c.at >= since, _DECISION.c.at < until)


def _planned(since: float, until: float) -> tuple[Any, ...]:
    return (_RECOVERY.c.decided_at >= since, _RECOVERY.c.decided_at < until, _RECOVERY.c.ended_at.is_not(None))
