"""Requests of operators. No other module writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, and_, exists, func, insert, select, update

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import Action, Because
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import (
    BY_CONTROL_PLANE,
    FLEET,
    LASTING,
    NODE_VERBS,
    NOTES,
    REPLACES,
    WAITING,
    Ending,
    Request,
    StoredRequests,
    TimedHold,
    Verb,
    decision_of,
    job_subject,
)
from understudy_controlplane.store import tables
from understudy_controlplane.store.audit import append
from understudy_controlplane.store.database import reading

Effect = Callable[[Connection, AuditEntry], bool]
"""What a request changes besides, in its transaction. False: it comes too late, and is not stored."""

_REQUEST, _DECISION = tables.request, tables.decision
_IS_WAITING = _REQUEST.c.answered_at.is_(None)
_NEWER, _NEWEST, _BEGAN, _LATER = _REQUEST.alias(), _REQUEST.alias(), _DECISION.alias(), _DECISION.alias()


def _values(verbs: Iterable[Verb]) -> list[str]:
    return [verb.value for verb in verbs]


_WAITING = select(_REQUEST).where(_IS_WAITING, _REQUEST.c.verb.in_(_values(WAITING))).order_by(_REQUEST.c.id)
_LASTING = (
    select(_REQUEST)
    .where(
        _REQUEST.c.id.in_(
            select(func.max(_NEWEST.c.id))
            .where(_NEWEST.c.verb.in_(_values(LASTING)))
            .group_by(_NEWEST.c.verb, _NEWEST.c.subject)
        )
    )
    .order_by(_REQUEST.c.id)
)
_TIMED_HOLDS = (
    select(_REQUEST, _BEGAN.c.from_state)
    .join(_BEGAN, and_(_BEGAN.c.request == _REQUEST.c.id, _BEGAN.c.to_state == NodeState.OPERATOR_HOLD.value))
    .where(
        _REQUEST.c.verb == Verb.HOLD.value,
        _REQUEST.c.until.is_not(None),
        ~exists().where(
            _NEWER.c.subject == _REQUEST.c.subject,
            _NEWER.c.id > _REQUEST.c.id,
            _NEWER.c.verb.in_(_values(NODE_VERBS)),
        ),
        ~exists().where(
            _LATER.c.subject == _REQUEST.c.subject, _LATER.c.id > _BEGAN.c.id, _LATER.c.to_state.is_not(None)
        ),
    )
    .order_by(_REQUEST.c.id)
)
_BREAKER_OPENED = (
    select(_DECISION.c.at, _DECISION.c.reason, _DECISION.c.because)
    .where(_DECISION.c.action == Action.OPEN_BREAKER.value)
    .order_by(_DECISION.c.id.desc())
    .limit(1)
)


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """A value of None admits all."""

    node: str | None = None
    id: int | None = None
    by: str | None = None


class RequestStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def stored(self) -> StoredRequests:
        """All that may hold now."""
        with reading(self._engine) as connection:
            opened = connection.execute(_BREAKER_OPENED).first()
            return StoredRequests(
                [_request(row) for row in connection.execute(_WAITING)],
                [_request(row) for row in connection.execute(_LASTING)],
                [TimedHold(_request(row), NodeState(row.from_state)) for row in connection.execute(_TIMED_HOLDS)],
                *(() if opened is None else (opened.at, opened.reason, opened.because == Because.OTHER_LEADER.value)),
            )

    def ask(self, verb: Verb, subject: str, reason: str, by: str, now: float) -> int:
        """A request that needs no audit: of the control plane itself. The number of the request."""
        with self._engine.begin() as connection:
            return ask(connection, verb, subject, reason, by, now)

    def ask_audited(
        self,
        entry: AuditEntry,
        until: float | None = None,
        detail: Mapping[str, Any] | None = None,
        effect: Effect | None = None,
    ) -> int | None:
        """The number of the request; None: its effect comes too late. The entry's action is the verb."""
        with self._engine.begin() as connection:
            if effect is not None and not effect(connection, entry):
                return None
            of_entry = (Verb(entry.action), entry.subject, entry.reason, entry.who, entry.at)
            number = ask(connection, *of_entry, until, detail, is_answered=effect is not None)
            append(connection, entry)
        return number

    def answer(self, number: int, outcome: str, now: float, *, is_done: bool) -> None:
        """Answers a request that no decision answers."""
        with self._engine.begin() as connection:
            answer(connection, now, {"outcome": outcome, "is_done": is_done}, id=number)

    def note_save(self, job_id: int, reason: str, outcome: str, now: float) -> None:
        """The control plane itself has asked for it, and that is settled."""
        detail = {"outcome": outcome, "is_done": True}
        of_job = {"verb": Verb.SAVE_JOB.value, "subject": job_subject(job_id), "reason": reason, "detail": detail}
        with self._engine.begin() as connection:
            _insert(connection, **of_job, by=BY_CONTROL_PLANE, at=now, answered_at=now)

    def note_acting(self, acting: bool, now: float, known: Mapping[int, Iterable[str]]) -> None:
        """The control plane begins to act, or ends it. `known`: rules that accuse the subject of each open incident."""
        verb = Verb.ACT_BEGAN if acting else Verb.ACT_ENDED
        detail = {str(incident): [*rules] for incident, rules in known.items()}
        with self._engine.begin() as connection:
            ask(connection, verb, FLEET, "", BY_CONTROL_PLANE, now, detail=detail)

    def end(self, ending: Ending, now: float) -> bool:
        """Its time is over. False: a newer request or decision about its node came since, and counts instead."""
        with self._engine.begin() as connection:
            holds = connection.execute(_TIMED_HOLDS.where(_REQUEST.c.id == ending.request)).first() is not None
            counts = answer(connection, now, id=ending.request) or holds  # a drill waits until it ends
            if counts and ending.release:
                ask(connection, Verb.RELEASE, ending.node, ending.release, BY_CONTROL_PLANE, now)
        return counts

    def newest(self, limit: int, before: int, only: RequestFilter) -> list[dict[str, Any]]:
        """Newest first, each with the decision that answered it and its recovery; without the control plane's own notes
        on its mode.
        """
        recovery = tables.recovery
        of_decision = (
            _DECISION.c.id.label("decision"),
            _DECISION.c.table_row,
            _DECISION.c.reason.label("decided"),
            _DECISION.c.recovery,
        )
        query = select(_REQUEST, *of_decision, recovery.c.status.label("recovery_status"), recovery.c.outcome)
        query = query.select_from(
            _REQUEST.outerjoin(_DECISION, _DECISION.c.request == _REQUEST.c.id).outerjoin(
                recovery, recovery.c.id == _DECISION.c.recovery
            )
        )
        query = query.where(_REQUEST.c.verb.not_in(_values(NOTES)))
        if only.node is not None:
            query = query.where(_REQUEST.c.subject == only.node)
        if only.id is not None:
            query = query.where(_REQUEST.c.id == only.id)
        if only.by is not None:
            query = query.where(_REQUEST.c.by == only.by)
        query = query.where(_REQUEST.c.id < before).order_by(_REQUEST.c.id.desc()).limit(limit)
        with reading(self._engine) as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def verdicts(self, since: float) -> dict[int, bool]:
        """Decision → whether an operator agreed with it; the last answer counts."""
        query = select(_REQUEST.c.subject, _REQUEST.c.verb).where(
            _REQUEST.c.verb.in_(_values((Verb.AGREE, Verb.DISAGREE))), _REQUEST.c.at >= since
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(_REQUEST.c.id))
            return {decision_of(row.subject): row.verb == Verb.AGREE.value for row in rows}


def ask(  # noqa: PLR0913, PLR0917 - the columns of a request
    connection: Connection,
    verb: Verb,
    subject: str,
    reason: str,
    by: str,
    at: float,
    until: float | None = None,
    detail: Mapping[str, Any] | None = None,
    *,
    is_answered: bool = False,
) -> int:
    """The number of the request. Those that it replaces are not wanted any more."""
    if verb in REPLACES:
        replaced = (_REQUEST.c.subject == subject, _REQUEST.c.verb.in_(_values(REPLACES[verb])), _IS_WAITING)
        connection.execute(update(_REQUEST).where(*replaced).values(answered_at=at))
    values = {"verb": verb.value, "subject": subject, "reason": reason, "by": by, "at": at, "until": until}
    answered_at = at if is_answered or verb not in WAITING else None
    return _insert(connection, **values, detail=detail, answered_at=answered_at)


def answer(connection: Connection, now: float, detail: Mapping[str, Any] | None = None, **of: object) -> bool:
    """Those that wait and have these values. False: there is none."""
    values = {"answered_at": now} if detail is None else {"answered_at": now, "detail": detail}
    which = (_REQUEST.c[name] == value for name, value in of.items())
    return bool(connection.execute(update(_REQUEST).where(*which, _IS_WAITING).values(values)).rowcount)


def waits_of_others(connection: Connection, nodes: Iterable[str], reason: str) -> set[str]:
    """Nodes about which a request waits that has another reason."""
    waits = (_REQUEST.c.subject.in_([*nodes]), _REQUEST.c.verb.in_(_values(NODE_VERBS)), _IS_WAITING)
    return {*connection.execute(select(_REQUEST.c.subject).where(*waits, _REQUEST.c.reason != reason)).scalars()}


def end_drill(connection: Connection, entry: AuditEntry) -> bool:
    """The loop ends it in its next round. False: there is no drill on that node."""
    is_open = (_REQUEST.c.subject == entry.subject, _REQUEST.c.verb == Verb.DRILL.value, _IS_WAITING)
    return bool(connection.execute(update(_REQUEST).where(*is_open).values(until=entry.at)).rowcount)


def _insert(connection: Connection, **values: object) -> int:
    number: int = connection.execute(insert(_REQUEST).values(values).returning(_REQUEST.c.id)).scalar_one()
    return number


def _request(row: Row[Any]) -> Request:
    more = (row.reason, row.by, row.at, row.until, row.detail or {})
    return Request(row.id, row.subject, Verb(row.verb), *more)
