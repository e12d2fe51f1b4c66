"""What is stored of a span of time, as `plan.fleet_costs` needs it. Of each gang rank 0 is read: all step together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Engine,
    Row,
    RowMapping,
    Table,
    and_,
    bindparam,
    func,
    select,
)

from understudy_controlplane.fleet.decision import TAKES_OUT
from understudy_controlplane.fleet.history import (
    AttemptProgress,
    Interruption,
    JobHistory,
    Loss,
    Mark,
    PoolChange,
    Transition,
)
from understudy_controlplane.fleet.interruption_cause import OF_LAUNCH, OF_STATE, PEOPLE, SLURM, cause_of
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import (
    AllocationSwapPlan,
    FillPoolPlan,
    LeavePoolPlan,
    PoolSwapPlan,
    Recovery,
    RecoveryKind,
    RecoveryStatus,
    StepName,
    StepStatus,
)
from understudy_controlplane.fleet.slurm import ENDED_STATES
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Store, reading
from understudy_controlplane.store.fleet import IDS_AT_ONCE
from understudy_controlplane.store.recoveries import RecoveryStore

_JOB, _ATTEMPT, _FIRST, _START = tables.job, tables.attempt, tables.first_step, tables.rank_start
_LAUNCH, _END = tables.launch_start, tables.launch_end
_DECISION, _INCIDENT, _RECOVERY = tables.decision, tables.incident, tables.recovery

MOVES = (RecoveryKind.POOL_SWAP, RecoveryKind.ALLOCATION_SWAP)
INTERRUPTED = (RecoveryStatus.RUNNING, RecoveryStatus.SUCCEEDED, RecoveryStatus.FAILED, RecoveryStatus.SUPERSEDED)
"""A recovery that ended otherwise has ended no attempt."""

_STATES = [state.value for state in NodeState]
_JOBS = select(_JOB).where(_JOB.c.seen_at >= bindparam("since"), _JOB.c.managed)
_CHOSEN: BindParameter[int] = bindparam("jobs", expanding=True)


def _rank_0(table: Table) -> ColumnElement[bool]:
    """Selects rank 0 of an attempt."""
    same = (table.c[name] == _ATTEMPT.c[name] for name in ("job", "restart_count", "launch"))
    return and_(*same, table.c.rank == 0)


_ATTEMPTS = (
    select(
        _ATTEMPT.c.job,
        _ATTEMPT.c.restart_count,
        _ATTEMPT.c.launch,
        _ATTEMPT.c.nodes,
        _ATTEMPT.c.running_at,
        _ATTEMPT.c.ended_at,
        _ATTEMPT.c.last_step,
        _ATTEMPT.c.last_step_at,
        _ATTEMPT.c.count_from,
        func.min(_FIRST.c.step).label("first_step"),
        func.max(_FIRST.c.at).label("first_step_at"),
    )
    .select_from(_ATTEMPT.outerjoin(_FIRST, _rank_0(_FIRST)))
    .where(_ATTEMPT.c.job.in_(_CHOSEN))
    .group_by(_ATTEMPT.c.id)
    .order_by(_ATTEMPT.c.restart_count, _ATTEMPT.c.launch)
)
_STARTS = (
    select(_START.c.job, _START.c.started_at)
    .select_from(_ATTEMPT.join(_START, _rank_0(_START)))
    .where(_ATTEMPT.c.job.in_(_CHOSEN))
)
_LAUNCHES = select(_LAUNCH.c.job, _LAUNCH.c.restart_count, _LAUNCH.c.launch, _LAUNCH.c.spares, _LAUNCH.c.at).where(
    _LAUNCH.c.job.in_(_CHOSEN)
)
_ENDS = select(_END.c.job, _END.c.restart_count, _END.c.launch, _END.c.cause, _END.c.at).where(
    _END.c.job.in_(_CHOSEN), _END.c.cause.in_(list(OF_LAUNCH))
)
_RULES = (
    select(_DECISION.c.recovery, _DECISION.c.rule, _INCIDENT.c.rule.label("incident_rule"))
    .select_from(
        _RECOVERY.join(_DECISION, _DECISION.c.recovery == _RECOVERY.c.id).outerjoin(
            _INCIDENT, _INCIDENT.c.id == _DECISION.c.incident
        )
    )
    .where(_RECOVERY.c.kind.in_([kind.value for kind in MOVES]), _RECOVERY.c.decided_at >= bindparam("since"))
    .order_by(_DECISION.c.id)
)
_TRANSITIONS = (
    select(
        _DECISION.c.id,
        _DECISION.c.at,
        _DECISION.c.subject,
        _DECISION.c.from_state,
        _DECISION.c.to_state,
        _DECISION.c.rule,
        _DECISION.c.action,
    )
    .where(_DECISION.c.to_state.in_(_STATES), _DECISION.c.at >= bindparam("since"), _DECISION.c.at < bindparam("until"))
    .order_by(_DECISION.c.at, _DECISION.c.id)
)

AttemptKey = tuple[int, int, int]
"""Row of the job, restart count, launch."""


class HistoryStore(Store):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._recoveries = RecoveryStore(engine)

    def begins_at(self) -> float | None:
        """When the first decision was made, or the first attempt seen running; None: nothing is stored."""
        first_attempt = select(_ATTEMPT.c.running_at).where(_ATTEMPT.c.id > 0).order_by(_ATTEMPT.c.id).limit(1)
        with reading(self._engine) as connection:
            found = [connection.execute(query).scalar() for query in (select(func.min(_DECISION.c.at)), first_attempt)]
        return min((at for at in found if at is not None), default=None)

    def transitions(self, since: float, until: float) -> list[Transition]:
        """Transitions of nodes, oldest first."""
        rows = self._mappings(_TRANSITIONS, {"since": since, "until": until})
        return [_transition(row) for row in rows]

    def pool(self, since: float) -> list[PoolChange]:
        """What joined and left the spare pool."""
        changes: list[PoolChange] = []
        rows = self._job_rows(since)
        for recovery in self._recoveries.decided(since, (*MOVES, RecoveryKind.FILL_POOL, RecoveryKind.LEAVE_POOL)):
            changes += _pool_changes(recovery, rows.get(recovery.id))
        return changes

    def jobs(self, since: float, until: float, gpus: Callable[[str], int]) -> list[JobHistory]:
        """Those that asked for Understudy and that Slurm has shown since then. `gpus`: of a node."""
        recoveries = {one.id: one for one in self._recoveries.decided(since, MOVES)}
        moved: dict[int, list[Recovery]] = {}
        for number, row in self._job_rows(since).items():
            if number in recoveries:
                moved.setdefault(row, []).append(recoveries[number])
        found: list[JobHistory] = []
        with reading(self._engine) as connection:
            rules: dict[int, str] = {}
            for one in connection.execute(_RULES, {"since": since}):
                rules.setdefault(one.recovery, one.incident_rule or one.rule)
            jobs = sorted(connection.execute(_JOBS, {"since": since}), key=lambda one: one.id)
            for first in range(0, len(jobs), IDS_AT_ONCE):
                chosen = jobs[first : first + IDS_AT_ONCE]
                reader = _JobReader(connection, [one.id for one in chosen], until, gpus, moved, rules)
                found += [reader.history(one) for one in chosen]
        return found

    def _job_rows(self, since: float) -> dict[int, int]:
        """Recovery → the row of the job that it moves."""
        query = select(_RECOVERY.c.id, _RECOVERY.c.job).where(
            _RECOVERY.c.kind.in_([kind.value for kind in MOVES]), _RECOVERY.c.decided_at >= since
        )
        return {number: job for number, job in self._rows(query) if job is not None}


class _JobReader:
    """Reads some jobs in a few queries."""

    def __init__(
        self,
        connection: Connection,
        jobs: list[int],
        until: float,
        gpus: Callable[[str], int],
        recoveries: Mapping[int, list[Recovery]],
        rules: Mapping[int, str],
    ) -> None:
        """`recoveries`: by the job's row; `rules`: that caused them."""
        self._until = until
        self._gpus = gpus
        self._recoveries = recoveries
        self._rules = rules
        self._attempts, self._launches, self._starts, self._ends = (
            _by_job(connection.execute(query, {"jobs": jobs})) for query in (_ATTEMPTS, _LAUNCHES, _STARTS, _ENDS)
        )

    def history(self, job: Row[Any]) -> JobHistory:
        attempts, launches = self._attempts.get(job.id, []), self._launches.get(job.id, [])
        nodes: list[str] = max((one.nodes for one in attempts), key=len, default=[])
        spares: list[str] = max((one.spares for one in launches), key=len, default=[])
        progress = [
            AttemptProgress(
                one.running_at, one.first_step, one.first_step_at, one.last_step, one.last_step_at, one.count_from
            )
            for one in attempts
            if None not in (one.running_at, one.first_step, one.last_step)
        ]
        return JobHistory(
            job.id,
            job.job_id,
            job.user,
            job.account,
            job.partition,
            job.name,
            job.state,
            len(nodes),
            sum(map(self._gpus, nodes)),
            sum(map(self._gpus, spares)),
            progress,
            self._marks(job.id),
            self._interruptions(job),
            self._until if _stands(job, attempts) else None,
            _allocations(attempts),
        )

    def _marks(self, job: int) -> list[Mark]:
        """Causes of time without steps. After an allocation that no recovery has ended, the job waits in the queue."""
        found: list[Mark] = []
        launched = {_key(one): one.at for one in self._launches.get(job, [])}
        recoveries = self._recoveries.get(job, [])
        recovered = {one.swap.restart_count for one in recoveries if one.swap is not None and _interrupted(one)}
        last_launches = {one.restart_count: one.launch for one in self._attempts.get(job, [])}
        for one in self._attempts.get(job, []):
            began = launched.get(_key(one), one.running_at if one.launch == 0 else None)
            found += [] if began is None else [Mark(began, Loss.START)]
            has_ended = one.ended_at is not None and one.launch == last_launches[one.restart_count]
            if has_ended and one.restart_count not in recovered:
                found.append(Mark(one.ended_at, Loss.QUEUE))
        found += [Mark(one.at, Loss.SWAP) for one in self._ends.get(job, [])]
        found += [Mark(one.started_at, Loss.RESTORE) for one in self._starts.get(job, [])]
        for recovery in recoveries:
            found += [Mark(recovery.fault_at, Loss.DETECT), Mark(recovery.detected_at, Loss.DECIDE)]
            if recovery.approve_by is None:
                found.append(Mark(recovery.decided_at, Loss.SWAP))
        return found

    def _interruptions(self, job: Row[Any]) -> list[Interruption]:
        """Each end of an attempt once: its recovery names the cause before its launcher, and that before Slurm."""
        found: dict[tuple[int, int], Interruption] = {}
        attempts = self._attempts.get(job.id, [])
        for recovery in self._recoveries.get(job.id, []):
            swap = recovery.swap
            if swap is not None and _interrupted(recovery):
                by = PEOPLE if swap.requested else cause_of(self._rules.get(recovery.id, ""))
                launches = [one.launch for one in attempts if one.restart_count == swap.restart_count]
                launch = swap.launch if isinstance(swap, AllocationSwapPlan) else max(launches, default=0)
                found[swap.restart_count, launch] = Interruption(recovery.fault_at or recovery.decided_at, by)
        for end in self._ends.get(job.id, []):
            found.setdefault((end.restart_count, end.launch), Interruption(end.at, OF_LAUNCH[end.cause]))
        known = {count for count, _ in found}
        last = max((one.restart_count for one in attempts), default=0)
        for one in attempts:
            if one.ended_at is None or one.restart_count in known:
                continue
            cause = SLURM if one.restart_count < last else OF_STATE.get(job.state)
            if cause is not None:
                known.add(one.restart_count)
                found[one.restart_count, one.launch] = Interruption(one.ended_at, cause)
        return sorted(found.values(), key=lambda one: one.at)


def _interrupted(recovery: Recovery) -> bool:
    """It has ended an attempt."""
    return recovery.status in INTERRUPTED and recovery.approve_by is None


def _by_job(rows: Iterable[Row[Any]]) -> dict[int, list[Row[Any]]]:
    found: dict[int, list[Row[Any]]] = {}
    for row in rows:
        found.setdefault(row.job, []).append(row)
    return found


def _key(row: Row[Any]) -> AttemptKey:
    return row.job, row.restart_count, row.launch


def _allocations(attempts: Iterable[Row[Any]]) -> list[tuple[float, float | None]]:
    """Each from its first launch to the end of its last one."""
    found: dict[int, tuple[float, float | None]] = {}
    for one in attempts:
        if one.running_at is not None:
            begin, _ = found.get(one.restart_count, (one.running_at, None))
            found[one.restart_count] = (begin, one.ended_at)
    return list(found.values())


def _stands(job: Row[Any], attempts: Sequence[Row[Any]]) -> bool:
    """It was interrupted after its last step, and is not over."""
    with_steps = [number for number, one in enumerate(attempts) if one.first_step is not None]
    if not with_steps or job.state in ENDED_STATES:
        return False
    return with_steps[-1] < len(attempts) - 1 or attempts[-1].ended_at is not None


def _transition(row: RowMapping) -> Transition:
    before = NodeState(row["from_state"]) if row["from_state"] else None
    quarantines = row["id"] if row["action"] in TAKES_OUT else None
    return Transition(row["at"], row["subject"], before, NodeState(row["to_state"]), row["rule"], quarantines)


def _pool_changes(recovery: Recovery, job: int | None) -> list[PoolChange]:
    """Spares that a recovery gave back served no job. Idle nodes that it took beside them did not join the pool."""
    plan = recovery.plan
    if not isinstance(plan, PoolSwapPlan | FillPoolPlan | LeavePoolPlan):
        return []
    back, step = _done_at(recovery, StepName.RETURN_SPARES), recovery.step(StepName.RETURN_SPARES)
    returned = step.detail.split(", ") if step is not None and step.detail else ()
    moments = (
        (_done_at(recovery, StepName.FILL_POOL), True, None, plan.spares),
        (_done_at(recovery, StepName.TAKE_SPARES), False, job if back is None else None, plan.spares),
        (back, True, None, returned),
    )
    return [PoolChange(at, node, joins, of) for at, joins, of, nodes in moments if at is not None for node in nodes]


def _done_at(recovery: Recovery, name: StepName) -> float | None:
    step = recovery.step(name)
    return step.done_at if step is not None and step.status is StepStatus.DONE else None
