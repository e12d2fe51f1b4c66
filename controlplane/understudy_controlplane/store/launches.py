"""What launchers and ranks reported of the launches of a gang."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, bindparam, case, func, or_, select

from understudy_controlplane.fleet.gang import BlackHole, BrokenOff, Earlier, Gang, RanOn
from understudy_controlplane.fleet.job import FIRST_ATTEMPT, Attempt, JobKey
from understudy_controlplane.fleet.recovery import FirstStepOfAll
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Store, reading
from understudy_controlplane.store.fleet import IS_JOB, of_job, rows_of_job
from understudy_wire.facts import LaunchCause
from understudy_wire.launcher import EarlierAllocations, LauncherPhase, LauncherState

_END, _JOB = tables.launch_end, tables.job
LAUNCHES_MAX = 200
"""Newest launches of a job that a round reads: a user's processes report as many as they like."""
_SAME_RANK = (_END.c.job, _END.c.restart_count, _END.c.rank)
_HAVE_HOLES = select(_END.c.job).where(
    _END.c.received_at >= bindparam("since"), _END.c.cause == LaunchCause.BLACK_HOLE.value
)
_WITH_LAST = (
    select(
        *(_END.c[name] for name in ("job", "restart_count", "launch", "cause", "failed_node", "rank", "received_at")),
        func.first_value(_END.c.failed_node)
        .over(partition_by=_SAME_RANK, order_by=(_END.c.launch.desc(), _END.c.at.desc()))
        .label("last_node"),
    )
    .where(_END.c.job.in_(_HAVE_HOLES))
    .subquery()
)
_ELSEWHERE = case((_WITH_LAST.c.failed_node != _WITH_LAST.c.last_node, _WITH_LAST.c.launch))
_FAILURES = select(
    _WITH_LAST,
    func.max(_ELSEWHERE)
    .over(partition_by=(_WITH_LAST.c.job, _WITH_LAST.c.restart_count, _WITH_LAST.c.rank))
    .label("elsewhere"),
).subquery()
_STAYED = or_(
    _FAILURES.c.rank.is_(None),
    and_(
        _FAILURES.c.failed_node == _FAILURES.c.last_node,
        func.coalesce(_FAILURES.c.elsewhere, -1) <= _FAILURES.c.launch,
    ),
)
"""No later failure of the rank was on another node. In one pass: a query for each failure would read all the others."""
_BLACK_HOLES = (
    select(
        _FAILURES.c.failed_node,
        _JOB.c.cluster,
        _JOB.c.job_id,
        _JOB.c.submit_at,
        _JOB.c.user_id,
        func.max(_FAILURES.c.received_at).label("at"),
    )
    .join(_JOB, _JOB.c.id == _FAILURES.c.job)
    .where(
        _FAILURES.c.received_at >= bindparam("since"),
        _FAILURES.c.cause == LaunchCause.BLACK_HOLE.value,
        _FAILURES.c.failed_node != "",
        _STAYED,
    )
    .group_by(_FAILURES.c.failed_node, _JOB.c.id)
    .order_by(_FAILURES.c.failed_node, _JOB.c.id)
)


def _newest(*columns: ColumnElement[Any]) -> Select[Any]:
    """Ends of launches of running jobs in their allocation, numbered in each job: 1 is the newest."""
    number = func.row_number().over(partition_by=_END.c.job, order_by=(_END.c.launch.desc(), _END.c.at.desc()))
    return (
        select(*columns, number.label("number"), _JOB.c.job_id, _JOB.c.submit_at)
        .join(_JOB, _JOB.c.id == _END.c.job)
        .where(
            _JOB.c.cluster == bindparam("of_cluster"),
            _JOB.c.state == "RUNNING",
            _JOB.c.restart_count == _END.c.restart_count,
        )
    )


_BY_HARDWARE = _newest(_END.c.id, _END.c.restart_count).where(_END.c.cause == LaunchCause.HARDWARE.value).subquery()
_REPLACEMENTS = (
    select(_BY_HARDWARE, _END.c.launch, _END.c.at, _END.c.blamed)
    .join(_END, _END.c.id == _BY_HARDWARE.c.id)
    .where(_BY_HARDWARE.c.number <= LAUNCHES_MAX)
    .order_by(_END.c.launch, _END.c.at)
)
_DONE = (
    select(
        _END.c.job,
        _END.c.restart_count,
        func.max(_END.c.at).label("at"),
        func.max(_END.c.received_at).label("received_at"),
        _JOB.c.job_id,
        _JOB.c.submit_at,
    )
    .join(_JOB, _JOB.c.id == _END.c.job)
    .where(_END.c.cause == LaunchCause.DONE.value)
    .group_by(_JOB.c.id, _END.c.job, _END.c.restart_count, _JOB.c.job_id, _JOB.c.submit_at)
)


def _ended_well(*of: ColumnElement[bool]) -> Select[Any]:
    """The last launch that ended well, where a batch script has not started a launcher after it."""
    done, start = _DONE.where(*of).subquery(), tables.launch_start
    later = select(start.c.id).where(
        start.c.job == done.c.job, start.c.restart_count == done.c.restart_count, start.c.at > done.c.at
    )
    return select(done).where(~later.exists())


_RUNNING_ENDED_WELL = _ended_well(
    _JOB.c.cluster == bindparam("of_cluster"), _JOB.c.state == "RUNNING", _JOB.c.restart_count == _END.c.restart_count
)
_HAS_ENDED_WELL = _ended_well(
    IS_JOB, _END.c.restart_count == bindparam("attempt"), _END.c.received_at >= bindparam("since")
)
SEEN_BY_LAUNCHERS = (LaunchCause.PROGRAM.value, LaunchCause.BLACK_HOLE.value, LaunchCause.HANG.value)
_OFF = (
    _newest(_END.c.id).where(_END.c.received_at >= bindparam("since"), _END.c.cause.in_(SEEN_BY_LAUNCHERS)).subquery()
)
_BROKEN_OFF = select(_OFF, _END).join(_END, _END.c.id == _OFF.c.id).where(_OFF.c.number == 1)


def _newest_of_job(table: Table, *columns: str) -> Select[Any]:
    """The newest launches of one job first."""
    return (
        select(*(table.c[name] for name in ("restart_count", "launch", *columns)))
        .where(table.c.job == bindparam("of"))
        .order_by(table.c.restart_count.desc(), table.c.launch.desc())
        .limit(LAUNCHES_MAX)
    )


_STEPPED = _newest_of_job(tables.attempt, "nodes").where(tables.attempt.c.last_step.is_not(None))
_PROGRESSED = _newest_of_job(_END).where(_END.c.progressed)
_SEATS = _newest_of_job(tables.launch_start, "seats", "at").order_by(tables.launch_start.c.at.desc())
_BLAMED = (
    _newest_of_job(_END)
    .where(_END.c.cause == LaunchCause.BLACK_HOLE.value, _END.c.restart_count < bindparam("before"))
    .limit(1)
)


def _ran_on(connection: Connection, job_row: int, restart_count: int) -> RanOn:
    """Nodes of a launch. Within an allocation only its launcher knows which of its nodes it used."""
    of, nodes = {"of": job_row}, dict[Attempt, Collection[str]]()
    for row in connection.execute(_STEPPED, of):
        nodes[_attempt(row)] = row.nodes
    for row in connection.execute(_PROGRESSED, of):
        nodes.setdefault(_attempt(row), ())
    seats = {_attempt(row): row.seats for row in reversed(connection.execute(_SEATS, of).all())}
    nodes |= {attempt: seats[attempt] for attempt in nodes.keys() & seats.keys()}
    blamed = connection.execute(_BLAMED, of | {"before": restart_count}).first()
    newest = max(nodes, default=FIRST_ATTEMPT)
    return RanOn(frozenset().union(*nodes.values()), newest, _attempt(blamed) if blamed is not None else None)


def _attempt(row: Row[Any]) -> Attempt:
    return Attempt(row.restart_count, row.launch)


def _of_attempt(table: Table) -> tuple[ColumnElement[bool], ...]:
    return (
        table.c.job == bindparam("of"),
        table.c.restart_count == bindparam("restarts"),
        table.c.launch == bindparam("launch"),
    )


RESTORED_STEP = select(
    func.coalesce(
        select(func.min(tables.first_step.c.step)).where(*_of_attempt(tables.first_step)).scalar_subquery(),
        select(tables.attempt.c.restore_step).where(*_of_attempt(tables.attempt)).limit(1).scalar_subquery(),
    )
)
"""Step with which an attempt's gang went on: the first one that it finished, else that of its restore point. It may
have gone on from what is in memory, of which no restore point knows.
"""


ANY_LAUNCH = 1 << 31
COUNT_FROM = select(func.coalesce(func.max(tables.attempt.c.count_from), 0)).where(
    tables.attempt.c.job == bindparam("of"),
    tables.attempt.c.restart_count == bindparam("restarts"),
    tables.attempt.c.launch < bindparam("launch"),
)
"""What the furthest step of an allocation's launches before this one is counted from."""


class LaunchStore(Store):
    def gangs(self, cluster: str) -> dict[int, Gang]:
        """Latest reported launch by job id, of jobs that ran when they were last seen."""
        start, job = tables.launch_start, tables.job
        query = (
            select(start, job.c.job_id)
            .join(job, job.c.id == start.c.job)
            .where(job.c.cluster == cluster, job.c.state == "RUNNING", job.c.restart_count == start.c.restart_count)
            .order_by(start.c.job, start.c.launch, start.c.at)
        )
        rows = self._rows(query)
        return {row.job_id: Gang(_state(row), row.node) for row in rows}

    def earlier_allocations(self, job_row: int, restart_count: int, nodes: Collection[str]) -> Earlier:
        """What the job's allocations before this one, on these nodes, have used up, and where its program ran."""
        end, attempt = tables.launch_end, tables.attempt
        ends = (
            select(end.c.progressed, end.c.counted)
            .where(end.c.job == job_row, end.c.restart_count < restart_count)
            .order_by(end.c.restart_count, end.c.launch, end.c.at)
        )
        reached = select(func.max(attempt.c.last_step), func.coalesce(func.max(attempt.c.count_from), 0)).where(
            attempt.c.job == job_row, attempt.c.restart_count < restart_count
        )
        without = 0
        with reading(self._engine) as connection:
            for row in connection.execute(ends):
                without = 0 if row.progressed else without + row.counted
            newcomers = _ran_on(connection, job_row, restart_count).newcomers(nodes)
            furthest, count_from = connection.execute(reached).one()
        best = furthest - count_from if furthest is not None else None
        return Earlier(EarlierAllocations(without, best, tuple(sorted(newcomers))), count_from)

    def black_holes_since(self, since: float) -> dict[str, list[BlackHole]]:
        """Jobs by node whose launchers blamed it because ranks failed first there repeatedly. If the failure followed
        the rank to another node afterwards, the node is not blamed.
        """
        found: dict[str, list[BlackHole]] = {}
        for row in self._rows(_BLACK_HOLES, {"since": since}):
            hole = BlackHole(JobKey(row.cluster, row.job_id, row.submit_at), row.user_id, row.at)
            found.setdefault(row.failed_node, []).append(hole)
        return found

    def replacements(self, cluster: str) -> dict[tuple[JobKey, int], dict[str, tuple[int, float]]]:
        """Nodes that a launcher blamed, by running job and restart count: in which launch last, and when that ended."""
        found: dict[tuple[JobKey, int], dict[str, tuple[int, float]]] = {}
        for row in self._rows(_REPLACEMENTS, {"of_cluster": cluster}):
            of_job = found.setdefault((JobKey(cluster, row.job_id, row.submit_at), row.restart_count), {})
            of_job |= dict.fromkeys(row.blamed, (row.launch, row.at))
        return found

    def broken_off(self, cluster: str, since: float) -> dict[JobKey, BrokenOff]:
        """Newest launch of each running job that a launcher has ended for a crash or a hang, reported since then."""
        found: dict[JobKey, BrokenOff] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(_BROKEN_OFF, {"of_cluster": cluster, "since": since}):
                hung, blames = row.cause == LaunchCause.HANG.value, row.cause == LaunchCause.BLACK_HOLE.value
                new = blames and _ran_on(connection, row.job, row.restart_count).newcomers([row.failed_node])
                one = BrokenOff(row.launch, hung, row.at, row.reason, row.failed_node, on_newcomer=bool(new))
                found[JobKey(cluster, row.job_id, row.submit_at)] = one
        return found

    def ended_well(self, cluster: str) -> dict[tuple[JobKey, int], float]:
        """Job and restart count of running jobs of whose last launch every rank has ended well, and when that was
        reported: they are done.
        """
        rows = self._rows(_RUNNING_ENDED_WELL, {"of_cluster": cluster})
        return {(JobKey(cluster, row.job_id, row.submit_at), row.restart_count): row.received_at for row in rows}

    def has_ended_well(self, job: JobKey, restart_count: int, since: float) -> bool:
        """True if every rank of this attempt's last launch ended well, as reported since then."""
        values = {**of_job(job), "attempt": restart_count, "since": since}
        return self._first(_HAS_ENDED_WELL, values) is not None

    def processes(self, job: JobKey, restart_count: int, after_launch: int = -1) -> tuple[int, int, float | None]:
        """Ranks connected in the latest launch after this one, ranks in all, and start of the last one's process."""
        query = _latest_launch(tables.rank_start, restart_count, after_launch)
        row = self._first(query.add_columns(func.max(tables.rank_start.c.started_at)), of_job(job))
        count, world, started = row or (0, 0, None)
        return count, world or 0, started

    def hook_was_used(self, job: JobKey) -> bool:
        """True if any rank of any attempt ever connected."""
        return self._first(rows_of_job(tables.rank_start).limit(1), of_job(job)) is not None

    def first_step_at(self, job: JobKey, restart_count: int, after_launch: int = -1) -> FirstStepOfAll | None:
        """The first step that every rank finished in the latest launch after this one; None: not yet."""
        table = tables.first_step
        latest = _latest_launch(table, restart_count, after_launch)
        query = latest.add_columns(
            func.min(table.c.step),
            func.max(table.c.at),
            func.max(table.c.communicator_at),
            func.count() - func.count(table.c.communicator_at),
        )
        row = self._first(query, of_job(job))
        count, world, step, at, communicator_at, unknown = row or (0, 0, 0, 0.0, None, 0)
        return FirstStepOfAll(step, at, None if unknown else communicator_at) if world and count >= world else None


def _state(row: Row[Any]) -> LauncherState:
    return LauncherState(
        row.job_id,
        row.restart_count,
        row.launch,
        LauncherPhase.RUNNING,
        tuple(row.seats),
        tuple(row.spares),
        tuple(row.lost),
    )


def _latest_launch(table: Table, restart_count: int, after_launch: int) -> Select[int, Any]:
    """How many ranks of IS_JOB reported in each launch after this one, the latest first, and how many there are."""
    return (
        select(func.count(table.c.rank.distinct()), func.max(table.c.world_size))
        .join(tables.job, tables.job.c.id == table.c.job)
        .where(IS_JOB, table.c.restart_count == restart_count, table.c.launch > after_launch)
        .group_by(table.c.launch)
        .order_by(table.c.launch.desc())
    )
