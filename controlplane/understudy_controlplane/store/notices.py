"""What people are notified of: notices, the messages about them, and the rows that they are made from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeVar

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    and_,
    bindparam,
    func,
    insert,
    not_,
    select,
    update,
)

from understudy_controlplane.config import Importance
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.notice import Message, MessageStatus, Notice, NoticeSource, Stage
from understudy_controlplane.fleet.notice_facts import (
    MOVES,
    IncidentFacts,
    MoveFacts,
    ProgramFacts,
    RequestFacts,
    TicketFacts,
    XidFacts,
)
from understudy_controlplane.fleet.recovery import AllocationSwapPlan, RecoveryStatus, SwapPlan
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Store, insert_new, reading
from understudy_controlplane.store.launches import ANY_LAUNCH, COUNT_FROM, RESTORED_STEP
from understudy_controlplane.store.recoveries import plan_of
from understudy_wire.facts import LaunchCause

AT_ONCE = 500
"""Rows of one query."""
XID_SECONDS = 120.0
"""Seconds from an Xid of a program to its decision: reports of the other nodes of its job are awaited."""

_NOTICE, _MESSAGE, _JOB = tables.notice, tables.message, tables.job
_INCIDENT, _TICKET, _DECISION, _RECOVERY = tables.incident, tables.ticket, tables.decision, tables.recovery
_END = tables.launch_end

APPLICATION_FAULT_ROW, LEMON_ROW = 60, 151
"""Rows of decide.table: a program caused an error, and a node fails repeatedly."""

GIVEN_UP = ("L30", "L100")
"""Rows of the launcher by which it starts a program that failed no more."""

_TABLES: Mapping[NoticeSource, Any] = {
    NoticeSource.INCIDENT: _INCIDENT,
    NoticeSource.STOPPED: _INCIDENT,
    NoticeSource.TICKET: _TICKET,
    NoticeSource.BREAKER: _DECISION,
    NoticeSource.APPROVAL: _RECOVERY,
    NoticeSource.MOVE: _RECOVERY,
    NoticeSource.LAUNCH: _END,
    NoticeSource.XID: _DECISION,
    NoticeSource.LEMON: _DECISION,
}
_EARLIER = _END.alias()
_PROGRAM_ENDED = _END.c.cause == LaunchCause.PROGRAM.value
_FIRST_ENDS = select(_END.c.id, _END.c.job).where(
    _PROGRAM_ENDED,
    ~select(_EARLIER.c.id)
    .where(_EARLIER.c.job == _END.c.job, _EARLIER.c.cause == LaunchCause.PROGRAM.value, _EARLIER.c.id < _END.c.id)
    .exists(),
)
"""Selects the first launch of each job that its program ended."""

_ENDS_OF = (
    select(_END.c.job, _END.c.at, _END.c.reason, _END.c.table_row)
    .where(_END.c.job.in_(bindparam("these", expanding=True)), _PROGRAM_ENDED)
    .order_by(_END.c.id)
)
_NOTHING_BY_ROW = (
    select(_DECISION.c.id, _DECISION.c.at, _DECISION.c.subject, _DECISION.c.reason, _DECISION.c.evidence)
    .where(
        _DECISION.c.action == Action.NOTHING.value,
        _DECISION.c.id > bindparam("after"),
        _DECISION.c.table_row == bindparam("row"),
    )
    .order_by(_DECISION.c.id)
    .limit(AT_ONCE)
)
_JOBS_THERE = select(tables.kernel_event.c.jobs).where(
    tables.kernel_event.c.node == bindparam("of"),
    tables.kernel_event.c.received_at.between(bindparam("since"), bindparam("until")),
    tables.kernel_event.c.xid.is_not(None),
)
_ACCEPTED = and_(_MESSAGE.c.accepted > 0, _MESSAGE.c.accepted >= _MESSAGE.c.revision)
_OF_STATUS: Mapping[MessageStatus, tuple[ColumnElement[bool], ...]] = {
    MessageStatus.SENT: (_ACCEPTED,),
    MessageStatus.GIVEN_UP: (not_(_ACCEPTED), _MESSAGE.c.closed),
    MessageStatus.FAILING: (not_(_ACCEPTED), _MESSAGE.c.closed.is_(False), _MESSAGE.c.error != ""),
    MessageStatus.WAITING: (not_(_ACCEPTED), _MESSAGE.c.closed.is_(False), _MESSAGE.c.error == ""),
}
_LAST = select(func.max(_NOTICE.c.number)).where(_NOTICE.c.source == bindparam("of"))
_GOING_ON = select(_NOTICE).where(_NOTICE.c.stage.in_([Stage.OPEN.value, Stage.RECOVERED.value, Stage.FAILED.value]))
_BEGAN = select(_NOTICE).where(_NOTICE.c.at >= bindparam("since"))
_ENDED = select(_NOTICE).where(_NOTICE.c.over_at >= bindparam("since"))
_SENDING = select(_MESSAGE).where(_MESSAGE.c.closed.is_(False)).order_by(_MESSAGE.c.id)
_OF_INCIDENTS = (
    select(_DECISION.c.incident, _DECISION.c.recovery)
    .where(_DECISION.c.incident.in_(bindparam("these", expanding=True)), _DECISION.c.recovery.is_not(None))
    .distinct()
)
_WITHOUT_SPARE = (
    select(_DECISION.c.incident, _DECISION.c.reason)
    .where(_DECISION.c.incident.in_(bindparam("these", expanding=True)), _DECISION.c.because == Because.NO_SPARE.value)
    .order_by(_DECISION.c.id.desc())
)
_CAUSES = (
    select(_DECISION.c.recovery, _INCIDENT.c.signal, _INCIDENT.c.summary)
    .join(_INCIDENT, _INCIDENT.c.id == _DECISION.c.incident)
    .where(_DECISION.c.recovery.in_(bindparam("these", expanding=True)))
)
_WITH_JOB = select(_RECOVERY, _JOB.c.job_id, _JOB.c.name, _JOB.c.user).join_from(
    _RECOVERY, _JOB, _JOB.c.id == _RECOVERY.c.job, isouter=True
)


_Found = TypeVar("_Found")


class NoticeStore(Store):
    def begin(self, now: float) -> dict[NoticeSource, int]:
        """Number of the last row of each source that was looked at. What happened before the first start of a release
        that notifies is not reported: a row without words stands for it.
        """
        found: dict[NoticeSource, int] = {}
        with self._engine.begin() as connection:
            for source, table in _TABLES.items():
                last = connection.execute(_LAST, {"of": source.value}).scalar()
                if last is None:
                    last = connection.execute(select(func.max(table.c.id))).scalar() or 0
                    mark = Notice(source, last, Importance.INFO, Stage.REPORTED, "", "", (), now)
                    insert_new(connection, _NOTICE, [_values_of_notice(mark)])
                found[source] = last
        return found

    # -- what notices are made from ----------------------------------------------------------------------------

    def new_incidents(self, after: int) -> list[IncidentFacts]:
        return self._incidents(_INCIDENT.c.id > after)

    def opened_before(self, after: int, opened_before: float) -> list[IncidentFacts]:
        """New incidents up to the first that was opened later."""
        found = self.new_incidents(after)
        return [*takewhile(lambda one: one.opened_at <= opened_before, found)]

    def incidents(self, numbers: Collection[int]) -> list[IncidentFacts]:
        return self._by_number(numbers, lambda some: self._incidents(_INCIDENT.c.id.in_(some)))

    def new_tickets(self, after: int) -> list[TicketFacts]:
        return self._tickets(_TICKET.c.id > after)

    def tickets(self, numbers: Collection[int]) -> list[TicketFacts]:
        return self._by_number(numbers, lambda some: self._tickets(_TICKET.c.id.in_(some)))

    def new_breakers(self, after: int) -> list[RequestFacts]:
        table = _DECISION
        query = select(table.c.id, table.c.subject, table.c.reason, table.c.at).where(
            table.c.action == Action.OPEN_BREAKER.value, table.c.id > after
        )
        return [RequestFacts(*row) for row in self._rows(query.order_by(table.c.id).limit(AT_ONCE))]

    def new_approvals(self, after: int) -> list[RequestFacts]:
        status = _RECOVERY.c.status == RecoveryStatus.AWAITS_APPROVAL.value
        return [_approval(row) for row in self._oldest(_WITH_JOB.where(status, _RECOVERY.c.id > after), _RECOVERY.c.id)]

    def approvals(self, numbers: Collection[int]) -> list[RequestFacts]:
        return self._by_number(
            numbers,
            lambda some: [
                _approval(row) for row in self._oldest(_WITH_JOB.where(_RECOVERY.c.id.in_(some)), _RECOVERY.c.id)
            ],
        )

    def new_moves(self, after: int) -> list[MoveFacts]:
        return self._moves(_RECOVERY.c.id > after, _RECOVERY.c.kind.in_(MOVES), _RECOVERY.c.approve_by.is_(None))

    def moves(self, numbers: Collection[int]) -> list[MoveFacts]:
        return self._by_number(numbers, lambda some: self._moves(_RECOVERY.c.id.in_(some)))

    def new_program_ends(self, after: int) -> list[ProgramFacts]:
        return self._program_ends(_END.c.id > after)

    def program_ends(self, numbers: Collection[int]) -> list[ProgramFacts]:
        return self._by_number(numbers, lambda some: self._program_ends(_END.c.id.in_(some)))

    def _program_ends(self, which: ColumnElement[bool]) -> list[ProgramFacts]:
        query = _FIRST_ENDS.where(which).order_by(_END.c.id).limit(AT_ONCE)
        with reading(self._engine) as connection:
            first = connection.execute(query).all()
            if not first:
                return []
            these = [row.job for row in first]
            jobs = {row.id: row for row in connection.execute(select(_JOB).where(_JOB.c.id.in_(these)))}
            ends: dict[int, list[Any]] = {}
            for end in connection.execute(_ENDS_OF, {"these": these}):
                ends.setdefault(end.job, []).append(end)
        return [_program(row.id, jobs[row.job], ends[row.job]) for row in first if row.job in jobs]

    def new_program_xids(self, after: int) -> list[XidFacts]:
        """Xids of jobs that were alone on their node then."""
        with reading(self._engine) as connection:
            rows = connection.execute(_NOTHING_BY_ROW, {"after": after, "row": APPLICATION_FAULT_ROW}).all()
            found = [(row, _job_there(connection, row)) for row in rows]
        return [XidFacts(row.id, *(there or (0, "")), (row.subject,), row.reason, row.at) for row, there in found]

    def new_lemons(self, after: int) -> list[RequestFacts]:
        rows = self._rows(_NOTHING_BY_ROW, {"after": after, "row": LEMON_ROW})
        return [RequestFacts(row.id, row.subject, row.reason, row.at) for row in rows]

    def newest(self, source: NoticeSource) -> int:
        """Number of the newest row of the table that notices of this source are made from."""
        return self._scalar(select(func.max(_TABLES[source].c.id))) or 0

    def has(self, source: NoticeSource, number: int) -> bool:
        query = select(_NOTICE.c.id).where(_NOTICE.c.source == source.value, _NOTICE.c.number == number)
        return self._first(query) is not None

    def _by_number(self, numbers: Collection[int], read: Callable[[list[int]], list[_Found]]) -> list[_Found]:
        ordered = sorted(numbers)
        return [one for begin in range(0, len(ordered), AT_ONCE) for one in read(ordered[begin : begin + AT_ONCE])]

    def _oldest(self, query: Select[Any], number: ColumnElement[int]) -> Sequence[Row[Any]]:
        return self._rows(query.order_by(number).limit(AT_ONCE))

    def _incidents(self, *which: ColumnElement[bool]) -> list[IncidentFacts]:
        rows = self._oldest(select(_INCIDENT).where(*which), _INCIDENT.c.id)
        if not rows:
            return []
        with reading(self._engine) as connection:
            these = {"these": [row.id for row in rows]}
            links = connection.execute(_OF_INCIDENTS, these).all()
            without_spare: dict[int, str] = {
                row.incident: row.reason for row in connection.execute(_WITHOUT_SPARE, these)
            }
            gangs = _gangs(connection, [row.subject for row in rows if row.subject_kind == SubjectKind.GANG.value])
        moves = {one.number: one for one in self.moves({link.recovery for link in links}) if one.kind in MOVES}
        of_incident: dict[int, list[MoveFacts]] = {}
        for link in sorted(links, key=lambda one: one.recovery):
            if link.recovery in moves:
                of_incident.setdefault(link.incident, []).append(moves[link.recovery])
        found = (_incident(row, of_incident.get(row.id, ()), gangs) for row in rows)
        return [replace(one, without_spare=without_spare.get(one.number, "")) for one in found]

    def _tickets(self, *which: ColumnElement[bool]) -> list[TicketFacts]:
        return [_ticket(row) for row in self._oldest(select(_TICKET).where(*which), _TICKET.c.id)]

    def _moves(self, *which: ColumnElement[bool]) -> list[MoveFacts]:
        rows = self._oldest(_WITH_JOB.where(*which), _RECOVERY.c.id)
        if not rows:
            return []
        with reading(self._engine) as connection:
            these = {"these": [row.id for row in rows]}
            causes = {row.recovery: (row.signal, row.summary) for row in connection.execute(_CAUSES, these)}
            return [_move(connection, row, *causes.get(row.id, ("", ""))) for row in rows]

    # -- notices and messages ----------------------------------------------------------------------------------

    def going_on(self) -> list[Notice]:
        """Notices whose end is waited for."""
        return sorted((_notice(row) for row in self._rows(_GOING_ON)), key=lambda one: one.id)

    def notices(self, ids: Collection[int]) -> dict[int, Notice]:
        def read(some: list[int]) -> list[Notice]:
            return [_notice(row) for row in self._rows(select(_NOTICE).where(_NOTICE.c.id.in_(some)))]

        return {one.id: one for one in self._by_number(ids, read)}

    def recent(self, since: float) -> list[Notice]:
        """Those that began or ended since then."""
        with reading(self._engine) as connection:
            rows = [row for query in (_BEGAN, _ENDED) for row in connection.execute(query, {"since": since})]
        return [*{row.id: _notice(row) for row in rows}.values()]

    def sending(self) -> list[Message]:
        """Messages to which something may still be added, or that were not taken yet."""
        return [_message(row) for row in self._rows(_SENDING)]

    def messages(
        self, limit: int, before: int, status: MessageStatus | None = None, receiver: str | None = None
    ) -> list[Message]:
        """Newest first."""
        query = select(_MESSAGE).where(_MESSAGE.c.id < before)
        if status is not None:
            query = query.where(*_OF_STATUS[status])
        if receiver is not None:
            query = query.where(_MESSAGE.c.receiver == receiver)
        return [_message(row) for row in self._rows(query.order_by(_MESSAGE.c.id.desc()).limit(limit))]

    def record(
        self,
        new: Iterable[Notice],
        changed: Iterable[Notice],
        messages_about: Callable[[list[Notice]], Iterable[Message]],
    ) -> None:
        """Writes what is new, with the messages about it, in one transaction. A known notice is not written again."""
        with self._engine.begin() as connection:
            for one in changed:
                connection.execute(update(_NOTICE).where(_NOTICE.c.id == one.id).values(_values_of_notice(one)))
            written: list[Notice] = []
            for one in new:
                insert_new(connection, _NOTICE, [_values_of_notice(one)])
                key = (_NOTICE.c.source == one.source.value, _NOTICE.c.number == one.number)
                written.append(_notice(connection.execute(select(_NOTICE).where(*key)).one()))
            for message in messages_about(written):
                _put(connection, message)

    def put(self, messages: Iterable[Message]) -> None:
        with self._engine.begin() as connection:
            for message in messages:
                _put(connection, message)


def _put(connection: Connection, message: Message) -> None:
    values = {name: getattr(message, name) for name in Message.__slots__ if name not in ("id", "notices", "importance")}
    values |= {"notices": [*message.notices], "importance": message.importance.value}
    if message.id:
        connection.execute(update(_MESSAGE).where(_MESSAGE.c.id == message.id).values(values))
    else:
        connection.execute(insert(_MESSAGE).values(values))


def _values_of_notice(one: Notice) -> dict[str, Any]:
    return {
        "source": one.source.value,
        "number": one.number,
        "importance": one.importance.value,
        "stage": one.stage.value,
        "title": one.title,
        "text": one.text,
        "about": [*one.about],
        "at": one.at,
        "page": one.page,
        "user": one.user,
        "over_at": one.over_at,
        "needs": one.needs,
        "mail": one.mail,
    }


def _notice(row: Row[Any]) -> Notice:
    values = dict(row._mapping)
    values |= {
        "source": NoticeSource(row.source),
        "importance": Importance(row.importance),
        "stage": Stage(row.stage),
        "about": tuple(row.about),
    }
    return Notice(**values)


def _message(row: Row[Any]) -> Message:
    values = dict(row._mapping)
    return Message(**values | {"notices": tuple(row.notices), "importance": Importance(row.importance)})


def _gangs(connection: Connection, subjects: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Subject → name and user of the gang's job."""
    keys = {name: key for name in subjects if (key := _job_of(name)) is not None}
    if not keys:
        return {}
    query = select(_JOB.c.job_id, _JOB.c.submit_at, _JOB.c.name, _JOB.c.user).where(
        _JOB.c.job_id.in_({key[0] for key in keys.values()})
    )
    known = {(row.job_id, row.submit_at): (row.name, row.user) for row in connection.execute(query)}
    return {subject: known.get(key, ("", "")) for subject, key in keys.items()}


def _job_of(subject: str) -> tuple[int, int] | None:
    """Job id and time of submission of a gang's name, `cluster/17@1700000000`."""
    job, _, submitted = subject.rpartition("/")[2].partition("@")
    return (int(job), int(submitted)) if job.isdecimal() and submitted.isdecimal() else None


def _incident(row: Row[Any], moves: Sequence[MoveFacts], gangs: Mapping[str, tuple[str, str]]) -> IncidentFacts:
    kind = SubjectKind(row.subject_kind)
    job = _job_of(row.subject) if kind is SubjectKind.GANG else None
    return IncidentFacts(
        row.id,
        kind,
        row.subject,
        row.rule,
        row.signal,
        row.summary,
        row.fault_at,
        row.opened_at,
        row.closed_at,
        row.outcome,
        job[0] if job else None,
        *gangs.get(row.subject, ("", "")),
        tuple(moves),
    )


def _ticket(row: Row[Any]) -> TicketFacts:
    about = row.body.get("about") or [row.node]
    waits = "about" not in row.body
    return TicketFacts(
        row.id, row.node, tuple(map(str, about)), str(row.body.get("reason", "")), row.opened_at, row.closed_at, waits
    )


def _program(number: int, job: Row[Any], ends: Sequence[Row[Any]]) -> ProgramFacts:
    last = ends[-1]
    given_up = last.table_row in GIVEN_UP
    return ProgramFacts(number, job.job_id, job.name, job.user, last.at, len(ends), last.reason, given_up, job.state)


def _job_there(connection: Connection, row: Any) -> tuple[int, str] | None:
    """Id and user of the only job that was on the node at the Xids before this decision; None: none, or several."""
    values = {"of": row.subject, "since": row.at - XID_SECONDS, "until": row.at}
    jobs = {(int(one[0]), str(one[2])) for there in connection.execute(_JOBS_THERE, values).scalars() for one in there}
    return jobs.pop() if len(jobs) == 1 else None


def _approval(row: Row[Any]) -> RequestFacts:
    nodes = plan_of(row.kind, row.plan).nodes
    subject = f"job {row.job_id}" if row.job_id is not None else ", ".join(nodes)
    waits = row.status == RecoveryStatus.AWAITS_APPROVAL.value
    named = f"{subject} ({row.name}) of {row.user}" if row.job_id is not None else subject
    reason = f"{row.kind.replace('_', ' ')} of {named}" + (f" on {', '.join(nodes)}" if nodes else "")
    ended_at = None if waits else (row.approved_at or row.ended_at or row.decided_at)
    return RequestFacts(row.id, subject, reason, row.decided_at, ended_at, row.outcome or row.status.replace("_", " "))


def _move(connection: Connection, row: Row[Any], signal: str, summary: str) -> MoveFacts:
    plan = plan_of(row.kind, row.plan)
    swap = plan if isinstance(plan, SwapPlan) else None
    restored: int | None = None
    last_step = swap.last_step if swap is not None else None
    if swap is not None and row.job is not None and row.status == RecoveryStatus.SUCCEEDED.value:
        of_next = (
            {"restarts": swap.restart_count, "launch": plan.launch + 1}
            if isinstance(plan, AllocationSwapPlan)
            else {"restarts": swap.restart_count + 1, "launch": 0}
        )
        restored = connection.execute(RESTORED_STEP, {"of": row.job, **of_next}).scalar()
        of_this = {"restarts": swap.restart_count, "launch": of_next["launch"] or ANY_LAUNCH}
        if last_step is not None:
            last_step -= connection.execute(COUNT_FROM, {"of": row.job, **of_this}).scalar_one()
    return MoveFacts(
        row.id,
        row.kind,
        row.status,
        row.outcome,
        row.job_id,
        row.name or "",
        row.user or "",
        tuple(plan.nodes),
        tuple(getattr(plan, "spares", ())),
        swap.hang if swap else "",
        row.fault_at,
        row.decided_at,
        row.ended_at,
        last_step,
        restored,
        signal,
        summary,
    )
