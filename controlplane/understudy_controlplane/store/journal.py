"""The journal: decisions with all that they change, written before anything is done about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Engine, bindparam, insert, select

from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import TAKES_OUT, Action, DecisionKey, Quarantine
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeRecord
from understudy_controlplane.fleet.recovery import Plan
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import check_term, reading
from understudy_controlplane.store.incidents import end_incident, open_by_subject, open_incident
from understudy_controlplane.store.node_records import write_records
from understudy_controlplane.store.recoveries import Times, plan_recovery
from understudy_controlplane.store.requests import answer
from understudy_controlplane.store.tickets import close_of_node

_DECISION = tables.decision
_QUARANTINES = (
    select(_DECISION.c.subject, _DECISION.c.at, _DECISION.c.rule)
    .where(_DECISION.c.at >= bindparam("since"), _DECISION.c.action.in_(TAKES_OUT))
    .order_by(_DECISION.c.id)
)
_FIRST_QUARANTINE = (
    select(_DECISION.c.at).where(_DECISION.c.action == Action.QUARANTINE.value).order_by(_DECISION.c.at).limit(1)
)


class Journal:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def record(
        self,
        changes: Sequence[Change],
        now: float,
        job_rows: Mapping[JobKey, int],
        *,
        looked_at: float | None = None,
    ) -> None:
        """Decisions with all that they change, in one transaction: records, incidents, tickets, recoveries.

        `looked_at`: of what moment the snapshot is by which they were made; None: now.
        """
        times = Times(now, now if looked_at is None else looked_at)
        planned: dict[Plan, int] = {}  # several decisions of one round may share a plan
        nodes: dict[str, tuple[NodeRecord, NodeRecord]] = {}  # before and after the round
        rows: list[dict[str, Any]] = []
        with self._engine.begin() as connection:
            check_term(connection)
            open_incidents = open_by_subject(connection)
            for change in changes:
                decision, before, after = change.decision, change.before, change.after
                incident = open_incident(connection, decision, now, open_incidents)
                recovery = plan_recovery(connection, decision, times, incident, job_rows, planned)
                if before is not None and after is not None and change.changes_record:
                    nodes[after.name] = (nodes.get(after.name, (before, after))[0], after)
                if change.closes_ticket:
                    close_of_node(connection, decision.subject, now)
                if change.ends_incident:
                    end_incident(connection, Subject.of_node(decision.subject), decision.reason, now, open_incidents)
                if decision.request is not None:
                    answer(connection, now, id=decision.request)
                if not change.noted:
                    continue
                entered = decision.to_state is not None and before is not None
                rows.append(
                    {
                        "at": now,
                        "key": decision.key.text,
                        "table_row": decision.row,
                        "rule": decision.finding.rule if decision.finding else "",
                        "subject": decision.subject,
                        "action": decision.action.value,
                        "because": decision.because.value,
                        "reason": decision.reason,
                        "from_state": before.state.value if entered and before else None,
                        "to_state": decision.to_state.value if entered and decision.to_state else None,
                        "evidence": decision.evidence.shown(),
                        "incident": incident,
                        "recovery": recovery,
                        "request": decision.request,
                    }
                )
            write_records(connection, nodes.values())
            if rows:
                connection.execute(insert(tables.decision), rows)

    def keys_since(self, since: float) -> set[DecisionKey]:
        table = tables.decision
        with reading(self._engine) as connection:
            rows = connection.execute(select(table.c.subject, table.c.key).where(table.c.at >= since))
            return {DecisionKey(*row) for row in rows}

    def quarantined_since(self, since: float) -> tuple[Quarantine, ...]:
        """Oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(_QUARANTINES, {"since": since})
            return tuple(Quarantine(row.at, row.subject, row.rule) for row in rows)

    def first_quarantine_at(self) -> float | None:
        """Time of the first one that is still stored. None: there is none."""
        with reading(self._engine) as connection:
            first: float | None = connection.execute(_FIRST_QUARANTINE).scalar()
        return first

    def is_decision(self, number: int) -> bool:
        with reading(self._engine) as connection:
            return connection.execute(select(_DECISION.c.id).where(_DECISION.c.id == number)).first() is not None
