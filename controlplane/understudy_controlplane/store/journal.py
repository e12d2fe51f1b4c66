"""The journal: decisions, incidents, recoveries and their steps. Written before anything is done about them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from sqlalchemy import Connection, Engine, Row, insert, select, update

from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import TAKES_OUT, Decision
from understudy_controlplane.fleet.finding import Finding, HardwareDetail
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeRecord
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    Plan,
    PlanBase,
    PoolSwapPlan,
    Recovery,
    RecoveryStatus,
    RecoveryStep,
    ReleaseJobPlan,
    StepName,
    StepStatus,
    job_of,
)
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import insert_new, reading
from understudy_controlplane.store.node_records import write_records

PlanT = TypeVar("PlanT", bound=PlanBase)


class Journal:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # -- decisions ---------------------------------------------------------------------------------------------

    def record(self, changes: Sequence[Change], now: float, job_rows: Mapping[JobKey, int]) -> None:
        """Decisions with all that they change, in one transaction: records, incidents, tickets, recoveries."""
        planned: dict[Plan, int] = {}  # several decisions of one round may share a plan
        nodes: dict[str, tuple[NodeRecord, NodeRecord]] = {}  # before and after the round
        rows: list[dict[str, Any]] = []
        with self._engine.begin() as connection:
            open_incidents = self._open_incidents(connection)
            for change in changes:
                decision, before, after = change.decision, change.before, change.after
                incident = self._incident(connection, decision, now, open_incidents)
                recovery = self._plan(connection, decision, now, job_rows, planned)
                if before is not None and after is not None and change.changes_record:
                    nodes[after.name] = (nodes.get(after.name, (before, after))[0], after)
                if change.closes_ticket:
                    self._close_tickets(connection, decision.subject, now)
                if change.ends_incident:
                    self._end_incident(connection, decision, now, open_incidents)
                if decision.request is not None:
                    intent = tables.operator_intent
                    connection.execute(update(intent).where(intent.c.id == decision.request).values(answered_at=now))
                entered = decision.to_state is not None and before is not None
                rows.append(
                    {
                        "at": now,
                        "key": decision.key,
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
                    }
                )
            write_records(connection, nodes.values())
            if rows:
                connection.execute(insert(tables.decision), rows)

    def keys_since(self, since: float) -> set[str]:
        table = tables.decision
        with reading(self._engine) as connection:
            return set(connection.execute(select(table.c.key).where(table.c.at >= since)).scalars())

    def quarantines_since(self, since: float) -> tuple[float, ...]:
        table = tables.decision
        query = select(table.c.at).where(table.c.at >= since, table.c.action.in_(TAKES_OUT))
        with reading(self._engine) as connection:
            return tuple(connection.execute(query).scalars())

    # -- incidents ---------------------------------------------------------------------------------------------

    def open_incidents(self) -> dict[str, int]:
        """Node → id of its open incident."""
        table = tables.incident
        query = select(table.c.node, table.c.id).where(table.c.closed_at.is_(None)).order_by(table.c.id)
        with reading(self._engine) as connection:
            return {row.node: row.id for row in connection.execute(query)}

    def close_incidents(self, incidents: Iterable[int], outcome: str, now: float) -> None:
        table = tables.incident
        ids = list(incidents)
        if ids:
            with self._engine.begin() as connection:
                connection.execute(
                    update(table)
                    .where(table.c.id.in_(ids), table.c.closed_at.is_(None))
                    .values(closed_at=now, outcome=outcome)
                )

    def add_evidence(self, found: Iterable[tuple[int, Finding]]) -> None:
        """More findings on nodes with an open incident; each rule counts once an incident."""
        rows = [
            {
                "incident": incident,
                "rule": finding.rule,
                "summary": finding.summary,
                "signal": finding.signal.value,
                "evidence": finding.evidence.shown(),
                "detail": msgspec.to_builtins(finding.detail),
                "at": finding.at,
            }
            for incident, finding in found
        ]
        if rows:
            with self._engine.begin() as connection:
                insert_new(connection, tables.incident_finding, rows)

    # -- recoveries --------------------------------------------------------------------------------------------

    def recoveries(self, only_open: bool = True, limit: int = 100) -> list[Recovery]:
        """Open ones oldest first; all of them newest first."""
        table = tables.recovery
        query = select(table).limit(limit)
        if only_open:
            query = query.where(table.c.status == RecoveryStatus.RUNNING.value).order_by(table.c.id)
        else:
            query = query.order_by(table.c.id.desc())
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            steps = self._steps(connection, [row.id for row in rows])
        return [_recovery(row, steps.get(row.id, ())) for row in rows]

    def recovery(self, recovery_id: int) -> Recovery:
        """Raises sqlalchemy.exc.NoResultFound for an id that was never given."""
        with reading(self._engine) as connection:
            row = connection.execute(select(tables.recovery).where(tables.recovery.c.id == recovery_id)).one()
            steps = self._steps(connection, [recovery_id])
        return _recovery(row, steps.get(recovery_id, ()))

    def swaps_since(self, since: float) -> tuple[tuple[float, JobKey], ...]:
        """Gangs moved or restarted, from the pool or within their allocation."""
        inside = [(at, plan.job) for at, plan in self._plans_since(since, AllocationSwapPlan) if plan.launch >= 0]
        return (*((at, plan.job) for at, plan in self._plans_since(since, PoolSwapPlan)), *inside)

    def hangs_since(self, since: float) -> tuple[tuple[JobKey, int | None], ...]:
        """Gangs restarted because they hung, oldest first: the job, and the furthest step it had finished."""
        both = [*self._plans_since(since, PoolSwapPlan), *self._plans_since(since, AllocationSwapPlan)]
        hung = sorted(((at, plan) for at, plan in both if plan.hang), key=lambda one: one[0])
        return tuple((plan.job, plan.last_step) for _, plan in hung)

    def limits_since(self, since: float) -> dict[tuple[JobKey, int], int]:
        """Job and restart count → its time limit at the first fault that was dealt with within its allocation."""
        found: dict[tuple[JobKey, int], int] = {}
        for _, plan in self._plans_since(since, AllocationSwapPlan):
            if plan.time_limit_minutes is not None:
                found.setdefault((plan.job, plan.restart_count), plan.time_limit_minutes)
        return found

    def disobeyed_since(self, since: float) -> frozenset[tuple[JobKey, int]]:
        """Job and restart count of launchers that did not follow their orders."""
        failed = self._plans_since(since, AllocationSwapPlan, RecoveryStatus.FAILED)
        return frozenset((plan.job, plan.restart_count) for _, plan in failed)

    def releases_since(self, since: float) -> tuple[tuple[float, JobKey], ...]:
        return tuple((at, plan.job) for at, plan in self._plans_since(since, ReleaseJobPlan))

    def _plans_since(
        self, since: float, of: type[PlanT], status: RecoveryStatus | None = None
    ) -> list[tuple[float, PlanT]]:
        """When such recoveries were decided, and what was planned, in the order of the decisions."""
        table = tables.recovery
        query = select(table.c.decided_at, table.c.kind, table.c.plan)
        query = query.where(table.c.decided_at >= since, table.c.kind == of.kind.value)
        if status is not None:
            query = query.where(table.c.status == status.value)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(table.c.id)).all()
        return [(row.decided_at, plan) for row in rows if isinstance(plan := plan_of(row.kind, row.plan), of)]

    def intend(self, recovery: int, step: RecoveryStep, now: float) -> None:
        """Before the effect. The attempt counts from here on, whatever becomes of it."""
        self._update_step(recovery, step, status=StepStatus.INTENDED.value, attempts=step.attempts + 1, intended_at=now)

    def done(self, recovery: int, step: RecoveryStep, now: float, detail: str) -> None:
        """After the effect was read back."""
        self._update_step(recovery, step, status=StepStatus.DONE.value, done_at=now, detail=detail)

    def reopen(self, recovery: int, step: RecoveryStep) -> None:
        """What the step had done is there no longer: it is to be done again. Its attempts still count."""
        self._update_step(recovery, step, status=StepStatus.PLANNED.value)

    def step_failed(
        self, recovery: int, step: RecoveryStep, now: float, detail: str, *, never_began: bool = False
    ) -> None:
        """`never_began`: with it the recovery fails before its job ran on the node. Written in one go with the step:
        who goes on after us ends the recovery, and could not know it any more.
        """
        values = {"status": StepStatus.FAILED.value, "done_at": now, "detail": detail}
        with self._engine.begin() as connection:
            self._write_step(connection, recovery, step, values)
            if never_began:
                table = tables.recovery
                connection.execute(update(table).where(table.c.id == recovery).values(never_began=True))

    def end(self, recovery: int, status: RecoveryStatus, outcome: str, now: float) -> None:
        with self._engine.begin() as connection:
            self._end(connection, recovery, status, outcome, now)

    # -- inside ------------------------------------------------------------------------------------------------

    @staticmethod
    def _open_incidents(connection: Connection) -> dict[str, int]:
        """By node, whole: a round may be about more nodes than a query takes parameters. The oldest of several."""
        table = tables.incident
        query = select(table.c.node, table.c.id).where(table.c.closed_at.is_(None))
        return {row.node: row.id for row in connection.execute(query.order_by(table.c.id.desc()))}

    @staticmethod
    def _incident(connection: Connection, decision: Decision, now: float, open_incidents: dict[str, int]) -> int | None:
        """`open_incidents` gets the one that is opened here."""
        finding = decision.finding
        table = tables.incident
        known = open_incidents.get(decision.subject)
        if known is not None or not decision.opens_incident or finding is None:
            return known
        values = {
            "node": finding.node,
            "rule": finding.rule,
            "signal": finding.signal.value,
            "summary": finding.summary,
            "evidence": finding.evidence.shown(),
            "detail": msgspec.to_builtins(finding.detail),
            "fault_at": finding.at,
            "opened_at": now,
            "outcome": "",
        }
        new: int = connection.execute(insert(table).values(**values).returning(table.c.id)).scalar_one()
        open_incidents.setdefault(finding.node, new)
        gpu = tables.gpu_seen
        part = finding.detail if isinstance(finding.detail, HardwareDetail) else HardwareDetail()
        this = gpu.c.uuid == part.uuid if part.uuid else gpu.c.bus_id == part.part
        if part.uuid or part.part:
            connection.execute(update(gpu).where(gpu.c.node == finding.node, this).values(faults=gpu.c.faults + 1))
        return new

    def _plan(
        self,
        connection: Connection,
        decision: Decision,
        now: float,
        job_rows: Mapping[JobKey, int],
        planned: dict[Plan, int],
    ) -> int | None:
        plan = decision.plan
        if plan is None:
            return None
        if plan in planned:
            return planned[plan]
        if plan.supersedes is not None:
            outcome = "a newer plan goes on from here"
            self._end(connection, plan.supersedes, RecoveryStatus.SUPERSEDED, outcome, now)
        table, job = tables.recovery, job_of(plan)
        values = {
            "kind": plan.kind.value,
            "job": job_rows.get(job) if job is not None else None,
            "plan": msgspec.to_builtins(plan),
            "status": RecoveryStatus.RUNNING.value,
            "fault_at": decision.finding.at if decision.finding else now,
            "detected_at": now,
            "decided_at": now,
            "outcome": "",
        }
        recovery: int = connection.execute(insert(table).values(**values).returning(table.c.id)).scalar_one()
        steps = [
            {
                "recovery": recovery,
                "position": position,
                "name": name.value,
                "status": StepStatus.PLANNED.value,
                "attempts": 0,
                "detail": "",
            }
            for position, name in enumerate(plan.steps)
        ]
        connection.execute(insert(tables.recovery_step), steps)
        planned[plan] = recovery
        return recovery

    @staticmethod
    def _close_tickets(connection: Connection, node: str, now: float) -> None:
        table = tables.ticket
        connection.execute(update(table).where(table.c.node == node, table.c.closed_at.is_(None)).values(closed_at=now))

    @staticmethod
    def _end_incident(connection: Connection, decision: Decision, now: float, open_incidents: dict[str, int]) -> None:
        """Keeps `open_incidents` true for the decisions that come after."""
        table = tables.incident
        open_incidents.pop(decision.subject, None)
        connection.execute(
            update(table)
            .where(table.c.node == decision.subject, table.c.closed_at.is_(None))
            .values(closed_at=now, outcome=decision.reason)
        )

    def _update_step(self, recovery: int, step: RecoveryStep, **values: Any) -> None:
        with self._engine.begin() as connection:
            self._write_step(connection, recovery, step, values)

    @staticmethod
    def _write_step(connection: Connection, recovery: int, step: RecoveryStep, values: Mapping[str, Any]) -> None:
        table = tables.recovery_step
        connection.execute(
            update(table).where(table.c.recovery == recovery, table.c.position == step.position).values(**values)
        )

    @staticmethod
    def _end(connection: Connection, recovery: int, status: RecoveryStatus, outcome: str, now: float) -> None:
        table = tables.recovery
        connection.execute(
            update(table)
            .where(table.c.id == recovery, table.c.status == RecoveryStatus.RUNNING.value)
            .values(status=status.value, outcome=outcome, ended_at=now)
        )

    @staticmethod
    def _steps(connection: Connection, recoveries: Sequence[int]) -> dict[int, tuple[RecoveryStep, ...]]:
        table = tables.recovery_step
        query = select(table).where(table.c.recovery.in_(recoveries)).order_by(table.c.recovery, table.c.position)
        steps: dict[int, tuple[RecoveryStep, ...]] = {}
        for row in connection.execute(query):
            steps[row.recovery] = (*steps.get(row.recovery, ()), _step(row))
        return steps


def _step(row: Row[Any]) -> RecoveryStep:
    return RecoveryStep(
        position=row.position,
        name=StepName(row.name),
        status=StepStatus(row.status),
        attempts=row.attempts,
        intended_at=row.intended_at,
        done_at=row.done_at,
        detail=row.detail,
    )


def plan_of(kind: str, stored: Mapping[str, Any]) -> Plan:
    """The plan of a row of `recovery`, from its columns."""
    plan: Plan = msgspec.convert({**stored, "kind": kind}, Plan)
    return plan


def _recovery(row: Row[Any], steps: tuple[RecoveryStep, ...]) -> Recovery:
    return Recovery(
        id=row.id,
        plan=plan_of(row.kind, row.plan),
        status=RecoveryStatus(row.status),
        decided_at=row.decided_at,
        steps=steps,
        fault_at=row.fault_at,
        detected_at=row.detected_at,
        ended_at=row.ended_at,
        outcome=row.outcome,
    )
