"""Deletes what `decide.retention` lets go, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Engine,
    FromClause,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    or_,
    select,
    true,
)

from understudy_controlplane.fleet.decision import HELD_FOR_PEOPLE, Action
from understudy_controlplane.fleet.node import IN_REPAIR
from understudy_controlplane.fleet.notice import ENDED, Stage
from understudy_controlplane.fleet.operator import LASTING
from understudy_controlplane.fleet.record_class import Limits, RecordClass
from understudy_controlplane.fleet.recovery import RecoveryStatus
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import is_complete
from understudy_controlplane.store.database import reading
from understudy_controlplane.store.facts import OF_CHECKPOINT
from understudy_controlplane.store.packing import PackingStore

_DECISION, _INCIDENT, _RECOVERY = tables.decision, tables.incident, tables.recovery
_REQUEST, _JOB, _ATTEMPT = tables.request, tables.job, tables.attempt

_SHARD, _CHECKPOINT, _MAP = tables.checkpoint_shard, tables.checkpoint, tables.checkpoint_map

_DETAILS = (tables.rank_start, tables.first_step, _SHARD)

ALWAYS = true()

_ABOUT_CHECKPOINTS = (tables.gang_world, tables.anomaly, tables.anomaly_clearance, tables.restore_report)
"""Tables without which a bad checkpoint would look like a good one."""

CHECKPOINTS_KEPT = 3
"""Newest checkpoints, and newest complete ones, that stay for ever of a job that is over. A job that saved something is
never one that saved nothing.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """`expired` names the rows of the table that may go; `parts` refer to them and go with them. `found` is the query
    that finds them, where a better one is known: it may take its time, while `expired` is asked of few rows within a
    transaction.
    """

    table: Table
    expired: ColumnElement[bool]
    parts: tuple[Column[Any], ...] = ()
    found: Select[Any] | None = None


def _before(kept: RecordClass) -> ColumnElement[float]:
    return bindparam(kept.value)


def _is_over(before: ColumnElement[float]) -> ColumnElement[bool]:
    """Selects a job that is over: Slurm has not shown it since then, it does not run, and no recovery works on it."""
    runs = exists().where(
        _ATTEMPT.c.job == _JOB.c.id, _ATTEMPT.c.running_at.is_not(None), _ATTEMPT.c.ended_at.is_(None)
    )
    recovers = exists().where(_RECOVERY.c.job == _JOB.c.id, _RECOVERY.c.status == RecoveryStatus.RUNNING.value)
    return and_(_JOB.c.seen_at < before, ~runs, ~recovers)


def _of_jobs_that_are_over(
    table: Table, is_over: ColumnElement[bool], also: ColumnElement[bool] = ALWAYS, parts: tuple[Column[Any], ...] = ()
) -> Rule:
    """Rule that reads jobs youngest first: most of the older ones have no details any more."""
    found = select(table.c.id).join(_JOB, _JOB.c.id == table.c.job).where(is_over, also).order_by(_JOB.c.seen_at.desc())
    return Rule(table, and_(exists().where(_JOB.c.id == table.c.job, is_over), also), parts, found)


def _newer_checkpoints(such: Callable[[FromClause], ColumnElement[bool]] | None = None) -> ColumnElement[int]:
    """Counts the newer checkpoints of a checkpoint's job."""
    other = _CHECKPOINT.alias()
    query = (
        select(func.count()).select_from(other).where(other.c.job == _CHECKPOINT.c.job, other.c.id > _CHECKPOINT.c.id)
    )
    return (query if such is None else query.where(such(other))).scalar_subquery()


def _rules() -> Iterator[Rule]:
    """What refers to other records comes before them."""
    incidents, events = _before(RecordClass.INCIDENTS), _before(RecordClass.EVENTS)
    is_idle = _DECISION.c.action == Action.NOTHING.value
    of_incident = _INCIDENT.c.id == _DECISION.c.incident
    incident_is_open = exists().where(of_incident, _INCIDENT.c.closed_at.is_(None))
    incident_stays = exists().where(
        of_incident, or_(_INCIDENT.c.closed_at.is_(None), _INCIDENT.c.closed_at >= incidents)
    )
    recovery_stays = exists().where(
        _RECOVERY.c.id == _DECISION.c.recovery, or_(_RECOVERY.c.ended_at.is_(None), _RECOVERY.c.ended_at >= incidents)
    )
    yield Rule(
        _DECISION,
        and_(
            is_idle,
            _DECISION.c.at < _before(RecordClass.IDLE_DECISIONS),
            _DECISION.c.because.not_in([one.value for one in HELD_FOR_PEOPLE]),  # the record of their rules
            _DECISION.c.incident.is_(None),
            _DECISION.c.recovery.is_(None),
        ),
    )
    yield Rule(_DECISION, and_(is_idle, _DECISION.c.at < events, ~incident_is_open, ~recovery_stays))
    other = _DECISION.alias()
    opened = select(func.max(other.c.id)).where(other.c.action == Action.OPEN_BREAKER.value).group_by(other.c.action)
    yield Rule(
        _DECISION,
        and_(
            _DECISION.c.at < incidents,
            ~incident_stays,
            ~recovery_stays,
            _DECISION.c.id.not_in(opened),
        ),
    )
    yield Rule(
        _RECOVERY,
        and_(
            _RECOVERY.c.decided_at < incidents,
            _RECOVERY.c.ended_at < incidents,
            ~exists().where(_DECISION.c.recovery == _RECOVERY.c.id),
        ),
        (tables.recovery_step.c.recovery, tables.stage_result.c.recovery),
    )
    yield Rule(
        _INCIDENT,
        and_(_INCIDENT.c.closed_at < incidents, ~exists().where(_DECISION.c.incident == _INCIDENT.c.id)),
        (tables.incident_finding.c.incident,),
    )
    yield Rule(tables.maintenance, tables.maintenance.c.closed_at < incidents)
    yield Rule(tables.ticket, tables.ticket.c.closed_at < incidents)
    yield Rule(tables.message, and_(tables.message.c.made_at < incidents, tables.message.c.closed.is_not(False)))
    goes_on = [stage.value for stage in Stage if stage not in ENDED]
    yield Rule(tables.notice, and_(tables.notice.c.at < incidents, tables.notice.c.stage.not_in(goes_on)))
    request = _REQUEST.alias()
    lasting = request.c.verb.in_([verb.value for verb in LASTING])
    holds = select(func.max(request.c.id)).where(lasting).group_by(request.c.verb, request.c.subject)
    answered = exists().where(_DECISION.c.request == _REQUEST.c.id)
    yield Rule(_REQUEST, and_(_REQUEST.c.at < incidents, _REQUEST.c.id.not_in(holds), ~answered))
    for table in (tables.kernel_event, tables.hardware_event, tables.job_refusal, tables.launch_evidence):
        yield Rule(table, table.c.received_at < events)
    yield Rule(tables.site_signal, tables.site_signal.c.until < events)
    of_whole = [_SHARD.c[name] == _CHECKPOINT.c[name] for name in OF_CHECKPOINT]
    is_packed = exists().where(*of_whole, _MAP.c.checkpoint == _CHECKPOINT.c.id, _MAP.c.packed_through >= _SHARD.c.id)
    of_no_world = _SHARD.c.rank >= _SHARD.c.world_size
    yield Rule(_SHARD, and_(_SHARD.c.received_at < _before(RecordClass.SHARDS), or_(is_packed, of_no_world)))
    is_over = _is_over(_before(RecordClass.JOB_DETAILS))
    for table in _DETAILS:
        yield _of_jobs_that_are_over(table, is_over)
    newer, newer_complete = _newer_checkpoints(), _newer_checkpoints(is_complete)
    dispensable = and_(newer >= CHECKPOINTS_KEPT, or_(~is_complete(_CHECKPOINT), newer_complete >= CHECKPOINTS_KEPT))
    yield _of_jobs_that_are_over(_CHECKPOINT, is_over, dispensable, (_MAP.c.checkpoint,))
    for table in _ABOUT_CHECKPOINTS:
        yield _of_jobs_that_are_over(table, is_over, ~exists().where(_CHECKPOINT.c.job == table.c.job))
    yield Rule(
        _JOB,
        and_(
            _is_over(_before(RecordClass.JOBS)),
            *(
                ~exists().where(table.c.job == _JOB.c.id)
                for table in (*_DETAILS, *_ABOUT_CHECKPOINTS, _CHECKPOINT, _RECOVERY)
            ),
        ),
        (_ATTEMPT.c.job, tables.launch_start.c.job, tables.launch_end.c.job, tables.launch_evidence.c.job),
    )
    yield Rule(tables.gpu_seen, tables.gpu_seen.c.last_seen_at < _before(RecordClass.GPUS))
    yield Rule(tables.part_seen, tables.part_seen.c.last_seen_at < _before(RecordClass.GPUS))
    yield Rule(tables.token, tables.token.c.expires_at < _before(RecordClass.TOKENS))


RULES = tuple(_rules())


class RetentionStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def jobs_seen_at(self) -> float:
        """When Slurm last showed any job; infinite where there is none."""
        with reading(self._engine) as connection:
            seen: float | None = connection.execute(select(func.max(_JOB.c.seen_at))).scalar()
        return inf if seen is None else seen

    def repairs_since(self) -> float:
        """When the longest repair under way began; infinite where there is none."""
        table = tables.node
        query = select(func.min(table.c.since)).where(table.c.state.in_([state.value for state in IN_REPAIR]))
        with reading(self._engine) as connection:
            since: float | None = connection.execute(query).scalar()
        return inf if since is None else since

    def pack(self, now: float) -> int:
        """How many checkpoints had their shards packed."""
        return PackingStore(self._engine).pack(now)

    def expired(self, rule: Rule, limits: Limits, at_most: int) -> list[int]:
        with reading(self._engine) as connection:
            return list(connection.execute(_found(rule).limit(at_most), _values(limits)).scalars())

    def count(self, rule: Rule, limits: Limits) -> int:
        with reading(self._engine) as connection:
            return connection.execute(
                select(func.count()).select_from(_found(rule).order_by(None).subquery()), _values(limits)
            ).scalar_one()

    def delete(self, rule: Rule, limits: Limits, ids: Sequence[int]) -> int:
        """Deletes those that are still expired, with their parts, in one transaction. Returns how many."""
        number = rule.table.c.id
        with self._engine.begin() as connection:
            over = list(connection.execute(_expired(rule).where(number.in_(ids)), _values(limits)).scalars())
            for part in rule.parts:
                connection.execute(delete(part.table).where(part.in_(over)))
            connection.execute(delete(rule.table).where(number.in_(over)))
        return len(over)


def _found(rule: Rule) -> Select[Any]:
    return _expired(rule) if rule.found is None else rule.found.where(_is_not_newest(rule.table))


def _expired(rule: Rule) -> Select[Any]:
    return select(rule.table.c.id).where(rule.expired, _is_not_newest(rule.table))


def _is_not_newest(table: Table) -> ColumnElement[bool]:
    """SQLite would give the id of the newest row to the next one, and those who read on after an id miss that one."""
    other = table.alias()
    return table.c.id < select(func.max(other.c.id)).scalar_subquery()


def _values(limits: Limits) -> dict[str, float]:
    return {kept.value: before for kept, before in limits.items()}
