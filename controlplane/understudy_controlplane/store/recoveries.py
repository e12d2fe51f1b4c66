"""Recoveries and their steps. Each step is written before anything is done about it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    Connection,
    Engine,
    Row,
    Select,
    String,
    bindparam,
    cast,
    insert,
    or_,
    select,
    union_all,
    update,
)

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import Decision
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.operator import Verb, cancel_subject
from understudy_controlplane.fleet.recovery import (
    Plan,
    ProposalEnding,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    RecoveryStep,
    StepName,
    StepStatus,
    job_of,
)
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import ID_MAX, begins, check_term, has, reading
from understudy_controlplane.store.requests import answer

_RECOVERY, _STEP = tables.recovery, tables.recovery_step
_IS_RUNNING = _RECOVERY.c.status == RecoveryStatus.RUNNING.value
_RUNNING = select(_RECOVERY).where(_IS_RUNNING).order_by(_RECOVERY.c.id)
_NEW = select(_RECOVERY.c.id).where(_RECOVERY.c.id > bindparam("after"))
_PROPOSED = (RecoveryStatus.AWAITS_APPROVAL.value, RecoveryStatus.APPROVED.value)
_PROPOSALS = (
    select(_RECOVERY)
    .where(
        _RECOVERY.c.status.in_([*_PROPOSED, RecoveryStatus.CANCELLED.value]),
        or_(_RECOVERY.c.status.in_(_PROPOSED), _RECOVERY.c.approve_by > bindparam("now")),
        _RECOVERY.c.approve_by.is_not(None),
    )
    .order_by(_RECOVERY.c.id)
)
_CHANGED = (
    select(_RECOVERY)
    .where(
        _RECOVERY.c.approve_by.is_(None),
        _RECOVERY.c.id.in_(
            union_all(
                _NEW.where(_RECOVERY.c.decided_at >= bindparam("since")),
                _NEW.where(_IS_RUNNING),
                select(_RECOVERY.c.id).where(_RECOVERY.c.id.in_(bindparam("known", expanding=True))),
            )
        ),
    )
    .order_by(_RECOVERY.c.id)
)
_OPENED = select(tables.incident.c.rule, tables.incident.c.opened_at).where(
    tables.incident.c.id == bindparam("incident")
)
_ONE = select(_RECOVERY).where(_RECOVERY.c.id == bindparam("this"))
_STEPS = (
    select(_STEP)
    .where(_STEP.c.recovery.in_(bindparam("recoveries", expanding=True)))
    .order_by(_STEP.c.recovery, _STEP.c.position)
)

_WRITE_STEP = update(_STEP).where(_STEP.c.recovery == bindparam("of"), _STEP.c.position == bindparam("of_position"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryFilter:
    """A value of None admits all."""

    status: RecoveryStatus | None = None
    kind: RecoveryKind | None = None
    job_id: int | None = None
    node: str | None = None  # that a decision for the recovery was about
    user_id: int | None = None  # of the job that it moves
    id: int | None = None
    ids: Collection[int] | None = None
    text: str | None = None  # part of its kind or outcome, or the beginning of its job's id
    naming: Collection[str] = ()  # or its plan names one of these nodes, where there is a text


ALL_RECOVERIES = RecoveryFilter()


class RecoveryStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def running(self) -> list[Recovery]:
        """All of them, oldest first: one that is left out would be neither seen by the guards nor carried on."""
        return self._read(_RUNNING)

    def proposals(self, now: float) -> list[Recovery]:
        """Those that wait for approval, those that are approved, and those that were rejected and are not proposed
        again yet; oldest first.
        """
        return self._read(_PROPOSALS, {"now": now})

    def end_proposals(self, over: Sequence[ProposalEnding], now: float) -> None:
        table = tables.recovery
        if over:
            with self._engine.begin() as connection:
                for one in over:
                    values = {"status": one.status.value, "outcome": one.why, "ended_at": now}
                    is_open = (table.c.id == one.proposal, table.c.status.in_(_PROPOSED))
                    connection.execute(update(table).where(*is_open).values(**values))

    def newest(self, limit: int, before: int = ID_MAX, only: RecoveryFilter = ALL_RECOVERIES) -> list[Recovery]:
        """Newest first."""
        table = tables.recovery
        query = select(table).where(table.c.id < before)
        if only.status is not None:
            query = query.where(table.c.status == only.status.value)
        if only.kind is not None:
            query = query.where(table.c.kind == only.kind.value)
        if only.job_id is not None:
            query = query.where(table.c.job.in_(select(tables.job.c.id).where(tables.job.c.job_id == only.job_id)))
        if only.id is not None:
            query = query.where(table.c.id == only.id)
        if only.ids is not None:
            query = query.where(table.c.id.in_(only.ids))
        if only.user_id is not None:
            query = query.where(table.c.job.in_(select(tables.job.c.id).where(tables.job.c.user_id == only.user_id)))
        if only.text is not None:
            of_jobs = table.c.job.in_(select(tables.job.c.id).where(begins(only.text, tables.job.c.job_id)))
            named = (cast(table.c.plan, String).contains(f'"{name}"', autoescape=True) for name in only.naming)
            query = query.where(or_(has(only.text, table.c.kind, table.c.outcome), of_jobs, *named))
        if only.node is not None:
            decision = tables.decision
            query = query.where(table.c.id.in_(select(decision.c.recovery).where(decision.c.subject == only.node)))
        return self._read(query.order_by(table.c.id.desc()).limit(limit))

    def get(self, recovery_id: int) -> Recovery:
        """Raises ValueError for an id that does not exist."""
        found = self.find(recovery_id)
        if found is None:
            raise ValueError(f"there is no recovery {recovery_id}")
        return found

    def find(self, recovery_id: int) -> Recovery | None:
        return next(iter(self._read(_ONE, {"this": recovery_id})), None)

    def changed(self, after: int, running: Sequence[int], since: float) -> list[Recovery]:
        """Recoveries with ids above `after`, if decided since then or running, and those with the ids `running`; by
        their ids.
        """
        return self._read(_CHANGED, {"after": after, "known": list(running), "since": since})

    def decided(self, since: float, kinds: Sequence[RecoveryKind]) -> list[Recovery]:
        """Those decided since then, oldest first."""
        of_kinds = (_RECOVERY.c.kind.in_([kind.value for kind in kinds]), _RECOVERY.c.decided_at >= since)
        return self._read(select(_RECOVERY).where(*of_kinds).order_by(_RECOVERY.c.id))

    # Each returns the step as it is now: the runner need not read the recovery again.

    def intend(self, recovery: int, step: RecoveryStep, now: float) -> RecoveryStep:
        """Before the effect. The attempt counts from here on, unless it is taken back."""
        return self._write(
            recovery, replace(step, status=StepStatus.INTENDED, attempts=step.attempts + 1, intended_at=now)
        )

    def take_back(self, recovery: int, before: RecoveryStep) -> RecoveryStep:
        """Nothing of the effect was begun: the step is as it was before."""
        return self._write(recovery, before)

    def done(
        self, recovery: int, step: RecoveryStep, now: float, detail: str, communicator_at: float | None = None
    ) -> RecoveryStep:
        """After the effect was read back."""
        done = replace(step, status=StepStatus.DONE, done_at=now, detail=detail, communicator_at=communicator_at)
        return self._write(recovery, done)

    def reopen(self, recovery: int, step: RecoveryStep) -> RecoveryStep:
        """The effect of the step is gone: the step is due again. Its attempts still count."""
        return self._write(recovery, replace(step, status=StepStatus.PLANNED))

    def step_failed(
        self,
        recovery: Recovery,
        step: RecoveryStep,
        now: float,
        detail: str,
        *,
        never_began: bool = False,
        undo: Sequence[StepName] = (),
    ) -> RecoveryStep:
        """`never_began`: the recovery fails with this step before its job ran on the node. Written in one transaction
        with the step: the process that ends the recovery may be another one, and could not know it. `undo`: as of
        `end_early`.
        """
        failed = replace(step, status=StepStatus.FAILED, done_at=now, detail=detail)
        with self._engine.begin() as connection:
            _write_step(connection, recovery.id, failed)
            if never_began:
                table = tables.recovery
                connection.execute(update(table).where(table.c.id == recovery.id).values(never_began=True))
            _add_steps(connection, recovery, undo)
        return failed

    def end_early(
        self, recovery: Recovery, ends_as: RecoveryStatus, outcome: str, undo: Sequence[StepName], now: float
    ) -> None:
        """Nothing more of the plan is done; `undo` are steps that the plan does not have yet. A request to cancel it is
        answered.
        """
        with self._engine.begin() as connection:
            connection.execute(
                update(tables.recovery)
                .where(tables.recovery.c.id == recovery.id)
                .values(ends_as=ends_as.value, outcome=outcome)
            )
            answer(connection, now, verb=Verb.CANCEL.value, subject=cancel_subject(recovery.id))
            _add_steps(connection, recovery, undo)

    def end(self, recovery: int, status: RecoveryStatus, outcome: str, now: float) -> None:
        with self._engine.begin() as connection:
            _end_recovery(connection, recovery, status, outcome, now)

    def _write(self, recovery: int, step: RecoveryStep) -> RecoveryStep:
        with self._engine.begin() as connection:
            check_term(connection)
            _write_step(connection, recovery, step)
        return step

    def _read(self, query: Select[Any], values: Mapping[str, Any] | None = None) -> list[Recovery]:
        with reading(self._engine) as connection:
            rows = connection.execute(query, values).all()
            steps = _steps(connection, [row.id for row in rows]) if rows else {}
        return [_recovery(row, steps.get(row.id, ())) for row in rows]


def approve(recovery: int, connection: Connection, entry: AuditEntry) -> bool:
    """False: it does not wait for approval any more."""
    values = {"status": RecoveryStatus.APPROVED.value, "approved_at": entry.at, "approved_by": entry.who}
    return _answer_proposal(recovery, connection, values)


def reject(recovery: int, connection: Connection, entry: AuditEntry) -> bool:
    """It is not proposed again before the time until which it could have been approved. See `approve`."""
    outcome = f"rejected by {entry.who}: {entry.reason}"
    values = {"status": RecoveryStatus.CANCELLED.value, "ended_at": entry.at, "outcome": outcome}
    return _answer_proposal(recovery, connection, values)


def _answer_proposal(recovery: int, connection: Connection, values: Mapping[str, Any]) -> bool:
    waits = (_RECOVERY.c.id == recovery, _RECOVERY.c.status == RecoveryStatus.AWAITS_APPROVAL.value)
    return bool(connection.execute(update(_RECOVERY).where(*waits).values(**values)).rowcount)


class Times(NamedTuple):
    now: float
    looked_at: float  # the moment of which its snapshot is


def plan_recovery(
    connection: Connection,
    decision: Decision,
    times: Times,
    incident: int | None,
    job_rows: Mapping[JobKey, int],
    planned: dict[Plan, int],
) -> int | None:
    """The recovery of this decision: its id, or None where it plans nothing.

    `planned`: those of this round so far; several decisions may share a plan.
    """
    now = times.now
    plan = decision.plan or decision.proposed
    if plan is None:
        return None
    if plan in planned:
        return planned[plan]
    if plan.supersedes is not None:
        outcome = "a newer plan goes on from here"
        _end_recovery(connection, plan.supersedes, RecoveryStatus.SUPERSEDED, outcome, now)
    table, job = tables.recovery, job_of(plan)
    values = {
        "kind": plan.kind.value,
        "job": job_rows.get(job) if job is not None else None,
        "plan": msgspec.to_builtins(plan),
        "status": (RecoveryStatus.RUNNING if decision.plan else RecoveryStatus.AWAITS_APPROVAL).value,
        "approve_by": decision.approve_by,
        "fault_at": decision.finding.at if decision.finding else now,
        "detected_at": _detected_at(connection, decision.finding, incident, times),
        "decided_at": now,
        "outcome": "",
    }
    recovery: int = connection.execute(insert(table).values(**values).returning(table.c.id)).scalar_one()
    connection.execute(insert(tables.recovery_step), _planned(recovery, range(len(plan.steps)), plan.steps))
    planned[plan] = recovery
    if decision.proposal is not None:
        of_proposal = (table.c.id == decision.proposal, table.c.status == RecoveryStatus.APPROVED.value)
        taken_up = {"status": RecoveryStatus.SUPERSEDED.value, "outcome": f"recovery {recovery}", "ended_at": now}
        connection.execute(update(table).where(*of_proposal).values(**taken_up))
    return recovery


def _detected_at(connection: Connection, finding: Finding | None, incident: int | None, times: Times) -> float:
    """Time of detection: of an earlier round if the same rule has found it since then and nothing could be done, or it
    was held back.
    """
    if finding is None:
        return times.looked_at
    opened = connection.execute(_OPENED, {"incident": incident}).one_or_none()
    waited = opened is not None and opened.rule == finding.rule and finding.at <= opened.opened_at < times.looked_at
    return float(opened.opened_at) if opened is not None and waited else times.looked_at


def _add_steps(connection: Connection, recovery: Recovery, names: Sequence[StepName]) -> None:
    if names:
        positions = range(len(recovery.steps), len(recovery.steps) + len(names))
        connection.execute(insert(tables.recovery_step), _planned(recovery.id, positions, names))


def _planned(recovery: int, positions: Iterable[int], names: Sequence[StepName]) -> list[dict[str, Any]]:
    return [
        {
            "recovery": recovery,
            "position": position,
            "name": name.value,
            "status": StepStatus.PLANNED.value,
            "attempts": 0,
            "detail": "",
        }
        for position, name in zip(positions, names, strict=True)
    ]


def _write_step(connection: Connection, recovery: int, step: RecoveryStep) -> None:
    values = {
        "status": step.status.value,
        "attempts": step.attempts,
        "intended_at": step.intended_at,
        "done_at": step.done_at,
        "detail": step.detail,
        "communicator_at": step.communicator_at,
    }
    connection.execute(_WRITE_STEP, {"of": recovery, "of_position": step.position, **values})


def _end_recovery(connection: Connection, recovery: int, status: RecoveryStatus, outcome: str, now: float) -> None:
    table = tables.recovery
    connection.execute(
        update(table)
        .where(table.c.id == recovery, table.c.status == RecoveryStatus.RUNNING.value)
        .values(status=status.value, outcome=outcome, ended_at=now)
    )


def _steps(connection: Connection, recoveries: Sequence[int]) -> dict[int, tuple[RecoveryStep, ...]]:
    steps: dict[int, tuple[RecoveryStep, ...]] = {}
    for row in connection.execute(_STEPS, {"recoveries": list(recoveries)}):
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
        communicator_at=row.communicator_at,
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
        ends_as=RecoveryStatus(row.ends_as) if row.ends_as else None,
        never_began=row.never_began,
        approve_by=row.approve_by,
        approved_at=row.approved_at,
        approved_by=row.approved_by,
    )
