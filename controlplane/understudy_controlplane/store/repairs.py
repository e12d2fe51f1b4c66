"""What operators asked for, tickets for people, and which GPU sat in which node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from sqlalchemy import Connection, Engine, Row, and_, bindparam, exists, func, insert, select, tuple_, update

from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.decision import TAKES_OUT, Action, Quarantine
from understudy_controlplane.fleet.drill import Drill
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.gpu import MovedGpu
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import (
    BY_CONTROL_PLANE,
    NODE_VERBS,
    Breaker,
    JobPause,
    MoveRequest,
    Request,
    Verb,
    job_of_subject,
    job_subject,
    recovery_of,
)
from understudy_controlplane.fleet.recovery import REPAIR_KINDS
from understudy_controlplane.fleet.saving import SaveRequest
from understudy_controlplane.fleet.subject import SubjectKind
from understudy_controlplane.store import tables
from understudy_controlplane.store.audit import append
from understudy_controlplane.store.database import ID_MAX, insert_new, reading
from understudy_wire.hardware import Gpu

_DECISION, _INTENT = tables.decision, tables.operator_intent
_QUARANTINES = (
    select(_DECISION.c.subject, _DECISION.c.at, _DECISION.c.rule)
    .where(_DECISION.c.at >= bindparam("since"), _DECISION.c.action.in_(TAKES_OUT))
    .order_by(_DECISION.c.id)
)
_FIRST_QUARANTINE = (
    select(_DECISION.c.at).where(_DECISION.c.action == Action.QUARANTINE.value).order_by(_DECISION.c.at).limit(1)
)
_UNANSWERED = select(_INTENT).where(_INTENT.c.answered_at.is_(None)).order_by(_INTENT.c.id)
_REQUESTS = _UNANSWERED.where(
    _INTENT.c.at >= bindparam("since"), _INTENT.c.verb.in_([verb.value for verb in NODE_VERBS])
)
_IS_OPEN_DRILL = (_INTENT.c.verb == Verb.DRILL.value, _INTENT.c.answered_at.is_(None))
_CANCELS = _UNANSWERED.where(_INTENT.c.verb == Verb.CANCEL.value)
_JOB_PAUSES = _UNANSWERED.where(_INTENT.c.verb == Verb.PAUSE_JOB.value)
_DRILLS = _UNANSWERED.where(_INTENT.c.verb == Verb.DRILL.value)
_MOVES = _UNANSWERED.where(_INTENT.c.verb == Verb.MOVE_JOB.value)
_SAVES = _UNANSWERED.where(_INTENT.c.verb == Verb.SAVE_JOB.value)
_REPLACED = {
    Verb.SAVE_JOB.value: (Verb.SAVE_JOB.value,),
    Verb.PAUSE_JOB.value: (Verb.PAUSE_JOB.value,),
    Verb.RESUME_JOB.value: (Verb.PAUSE_JOB.value,),
    Verb.MOVE_JOB.value: (Verb.MOVE_JOB.value,),
    Verb.DRILL.value: (Verb.DRILL.value,),
}
"""Unanswered requests about the same subject that a request replaces, if not all."""
_BREAKER_OPENED = (
    select(_DECISION.c.at, _DECISION.c.reason)
    .where(_DECISION.c.action == Action.OPEN_BREAKER.value)
    .order_by(_DECISION.c.id.desc())
    .limit(1)
)
_NEWER, _BEGAN, _LATER = _INTENT.alias(), _DECISION.alias(), _DECISION.alias()
_KNOWN_FAULTY = (NodeState.QUARANTINED.value, NodeState.REPAIRING.value, NodeState.MANUAL_REPAIR.value)
_ENDED_HOLDS = (
    select(_INTENT)
    .join(_BEGAN, and_(_BEGAN.c.request == _INTENT.c.id, _BEGAN.c.to_state == NodeState.OPERATOR_HOLD.value))
    .where(
        _INTENT.c.verb == Verb.HOLD.value,
        _INTENT.c.until <= bindparam("now"),
        ~exists().where(
            _NEWER.c.subject == _INTENT.c.subject,
            _NEWER.c.id > _INTENT.c.id,
            _NEWER.c.verb.in_([verb.value for verb in NODE_VERBS]),
        ),
        # The node is still in that hold, and was not at fault before it: the end of a hold vouches for no node.
        ~exists().where(
            _LATER.c.subject == _INTENT.c.subject, _LATER.c.id > _BEGAN.c.id, _LATER.c.to_state.is_not(None)
        ),
        _BEGAN.c.from_state.not_in(_KNOWN_FAULTY),
    )
)
_SEATS = (
    select(tables.gpu_seen)
    .where(tables.gpu_seen.c.uuid.in_(bindparam("uuids", expanding=True)))
    .order_by(tables.gpu_seen.c.last_seen_at, tables.gpu_seen.c.id)
)
_SEE_AGAIN = update(tables.gpu_seen).where(tables.gpu_seen.c.id == bindparam("this"))
_OPEN_TICKETS = select(tables.ticket.c.opened_at).where(tables.ticket.c.closed_at.is_(None))
_BREAKER_RESET_AT = select(func.max(_INTENT.c.at)).where(_INTENT.c.verb == Verb.RESET_BREAKER.value)


class RepairStore:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def quarantined_since(self, since: float) -> tuple[Quarantine, ...]:
        """Oldest first."""
        with reading(self._engine) as connection:
            rows = connection.execute(_QUARANTINES, {"since": since})
            return tuple(Quarantine(row.at, row.subject, row.rule) for row in rows)

    def first_quarantine_at(self) -> float | None:
        """Time of the first quarantine that is still stored; None: there is none."""
        with reading(self._engine) as connection:
            first: float | None = connection.execute(_FIRST_QUARANTINE).scalar()
        return first

    # -- operators ---------------------------------------------------------------------------------------------

    def requests_since(self, since: float) -> dict[str, Request]:
        """Latest unanswered request of each node."""
        with reading(self._engine) as connection:
            return {
                row.subject: Request(row.id, row.subject, Verb(row.verb), row.reason, row.by, row.at, row.until)
                for row in connection.execute(_REQUESTS, {"since": since})
            }

    def cancels(self) -> dict[int, Request]:
        """Recovery → the latest request to cancel it, of those that are not answered yet."""
        with reading(self._engine) as connection:
            return {
                recovery_of(row.subject): Request(row.id, row.subject, Verb.CANCEL, row.reason, row.by, row.at)
                for row in connection.execute(_CANCELS)
            }

    def ask(self, verb: Verb, node: str, reason: str, by: str, now: float) -> None:
        """A request of the control plane itself. See `ask_audited`."""
        with self._engine.begin() as connection:
            ask(connection, {"at": now, "verb": verb.value, "reason": reason, "by": by, "subject": node})

    def ask_audited(
        self, verb: Verb, entry: AuditEntry, until: float | None = None, detail: Mapping[str, Any] | None = None
    ) -> int:
        """The number of the request. What was asked of the same subject before, and not answered yet, is not wanted
        any more.
        """
        row = {"at": entry.at, "reason": entry.reason, "by": entry.who, "subject": entry.subject, "until": until}
        with self._engine.begin() as connection:
            number = ask(connection, {"verb": verb.value, **row, **({} if detail is None else {"detail": detail})})
            append(connection, entry)
        return number

    def pause_job(self, entry: AuditEntry, until: float | None, job: JobKey) -> int:
        """The number of the request. It is unanswered until the job is resumed or paused again."""
        return self.ask_audited(Verb.PAUSE_JOB, entry, until, {"submit_at": job.submit_at})

    def resume_job(self, entry: AuditEntry, until: float | None = None) -> int:
        row = {"at": entry.at, "reason": entry.reason, "by": entry.who, "subject": entry.subject, "until": until}
        with self._engine.begin() as connection:
            number = ask(connection, {"verb": Verb.RESUME_JOB.value, **row, "answered_at": entry.at})
            append(connection, entry)
        return number

    def job_pauses(self, now: float) -> dict[int, JobPause]:
        """Current pauses by job id."""
        with reading(self._engine) as connection:
            return {
                job_of_subject(row.subject): JobPause(row.reason, row.by, row.at, row.until, row.detail["submit_at"])
                for row in connection.execute(_JOB_PAUSES)
                if row.until is None or row.until > now
            }

    def move_job(self, entry: AuditEntry, off: Sequence[str], job: JobKey, *, at_checkpoint: bool) -> int:
        """The number of the request."""
        row = {"at": entry.at, "reason": entry.reason, "by": entry.who, "subject": entry.subject}
        detail = {"off": [*off], "at_checkpoint": at_checkpoint, "submit_at": job.submit_at}
        with self._engine.begin() as connection:
            number = ask(connection, {"verb": Verb.MOVE_JOB.value, **row, "detail": detail})
            append(connection, entry)
        return number

    def moves(self) -> dict[int, MoveRequest]:
        """Unanswered moves by job id."""
        with reading(self._engine) as connection:
            return {job_of_subject(row.subject): _move_of(row) for row in connection.execute(_MOVES)}

    def saves(self) -> dict[int, SaveRequest]:
        """Unanswered save requests by job id."""
        with reading(self._engine) as connection:
            return {
                job_of_subject(row.subject): SaveRequest(row.id, row.reason, row.by, row.at)
                for row in connection.execute(_SAVES)
            }

    def answer_save(self, request: int, outcome: str, now: float, *, is_done: bool) -> None:
        detail = {"outcome": outcome, "is_done": is_done}
        with self._engine.begin() as connection:
            answered = update(_INTENT).where(_INTENT.c.id == request, _INTENT.c.answered_at.is_(None))
            connection.execute(answered.values(answered_at=now, detail=detail))

    def note_save(self, job_id: int, reason: str, outcome: str, now: float) -> None:
        """The control plane itself has asked for it, and that is settled."""
        row = {"at": now, "verb": Verb.SAVE_JOB.value, "subject": job_subject(job_id), "answered_at": now}
        detail = {"outcome": outcome, "is_done": True}
        with self._engine.begin() as connection:
            connection.execute(insert(_INTENT).values(**row, reason=reason, by=BY_CONTROL_PLANE, detail=detail))

    def drills(self) -> dict[str, Drill]:
        """Drills by node that have not ended."""
        with reading(self._engine) as connection:
            return {
                row.subject: Drill(row.id, row.subject, row.reason, row.by, row.at, row.until)
                for row in connection.execute(_DRILLS)
            }

    def end_drill(self, entry: AuditEntry) -> int | None:
        """The loop ends it in its next round. The number of the request; None: there is no drill on that node."""
        open_one = (_INTENT.c.subject == entry.subject, *_IS_OPEN_DRILL)
        row = {"at": entry.at, "reason": entry.reason, "by": entry.who, "subject": entry.subject}
        with self._engine.begin() as connection:
            if not connection.execute(update(_INTENT).where(*open_one).values(until=entry.at)).rowcount:
                return None
            values = {"verb": Verb.END_DRILL.value, **row, "answered_at": entry.at}
            number: int = connection.execute(insert(_INTENT).values(**values).returning(_INTENT.c.id)).scalar_one()
            append(connection, entry)
        return number

    def drill_ended(self, drill: Drill, now: float, release: str) -> None:
        """`release`: why its node is to return; empty: it is not."""
        with self._engine.begin() as connection:
            connection.execute(update(_INTENT).where(_INTENT.c.id == drill.request).values(answered_at=now))
            if release:
                row = {"at": now, "verb": Verb.RELEASE.value, "reason": release, "by": BY_CONTROL_PLANE}
                ask(connection, {**row, "subject": drill.node})

    def is_decision(self, number: int) -> bool:
        with reading(self._engine) as connection:
            return connection.execute(select(_DECISION.c.id).where(_DECISION.c.id == number)).first() is not None

    def ended_holds(self, now: float) -> dict[str, Request]:
        """Node → the latest request about it, where that is a hold in which the node still is, and its time is over."""
        with reading(self._engine) as connection:
            return {
                row.subject: Request(row.id, row.subject, Verb.HOLD, row.reason, row.by, row.at, row.until)
                for row in connection.execute(_ENDED_HOLDS, {"now": now})
            }

    def breaker(self) -> Breaker:
        """A decision opens it, and a person closes it."""
        with reading(self._engine) as connection:
            opened = connection.execute(_BREAKER_OPENED).first()
            reset_at: float = connection.execute(_BREAKER_RESET_AT).scalar() or 0.0
        is_open = opened is not None and opened.at > reset_at
        return Breaker(opened.reason if opened is not None and is_open else "", reset_at)

    # -- tickets -----------------------------------------------------------------------------------------------

    def open_ticket(self, label: str, node: str, body: Mapping[str, Json], now: float, *, closed: bool = False) -> None:
        """Once, however often. `closed`: nothing is waited for."""
        row = {"label": label, "node": node, "opened_at": now, "body": dict(body), "closed_at": now if closed else None}
        with self._engine.begin() as connection:
            insert_new(connection, tables.ticket, [row])

    def acknowledge_ticket(self, number: int, entry: AuditEntry) -> int | None:
        """The number of the request; None: there is no such open ticket."""
        return self._answer_ticket(number, entry, {"acknowledged_at": entry.at, "acknowledged_by": entry.who})

    def close_ticket(self, number: int, entry: AuditEntry) -> int | None:
        """Its node stays what it is. See `acknowledge_ticket`."""
        return self._answer_ticket(number, entry, {"closed_at": entry.at})

    def _answer_ticket(self, number: int, entry: AuditEntry, values: Mapping[str, Any]) -> int | None:
        table = tables.ticket
        is_open = (table.c.id == number, table.c.closed_at.is_(None))
        request = {"at": entry.at, "verb": entry.action, "reason": entry.reason, "by": entry.who}
        with self._engine.begin() as connection:
            if not connection.execute(update(table).where(*is_open).values(**values)).rowcount:
                return None
            asked = ask(connection, {**request, "subject": entry.subject, "answered_at": entry.at})
            append(connection, entry)
        return asked

    def is_ticket(self, label: str) -> bool:
        table = tables.ticket
        with reading(self._engine) as connection:
            return connection.execute(select(table.c.id).where(table.c.label == label)).first() is not None

    def open_tickets(self) -> tuple[float, ...]:
        """When each was opened."""
        with reading(self._engine) as connection:
            return tuple(row.opened_at for row in connection.execute(_OPEN_TICKETS))

    def tickets(
        self, limit: int, before: int = ID_MAX, *, is_open: bool | None = None, number: int | None = None
    ) -> list[dict[str, Any]]:
        """Newest first."""
        table = tables.ticket
        query = select(table).where(table.c.id < before)
        if is_open is not None:
            query = query.where(table.c.closed_at.is_(None) if is_open else table.c.closed_at.is_not(None))
        if number is not None:
            query = query.where(table.c.id == number)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(table.c.id.desc()).limit(limit)).mappings()
            return [dict(row) for row in rows]

    def history(self, node: str) -> dict[str, Any]:
        """What a person needs who is to look after the node: its open incident, what was found, tried and seen."""
        incident, found, decision = tables.incident, tables.incident_finding, tables.decision
        is_open = (incident.c.closed_at.is_(None), incident.c.subject_kind == SubjectKind.NODE.value)
        with reading(self._engine) as connection:
            query = select(incident).where(*is_open, incident.c.subject == node)
            query = query.order_by(incident.c.id.desc()).limit(1)
            last = connection.execute(query).mappings().first()
            findings = (
                connection.execute(
                    select(found.c.rule, found.c.signal, found.c.summary, found.c.evidence, found.c.at)
                    .where(found.c.incident == last["id"])
                    .order_by(found.c.id)
                )
                .mappings()
                .all()
                if last
                else []
            )
            decided = (
                connection.execute(
                    select(
                        decision.c.at, decision.c.table_row, decision.c.action, decision.c.reason, decision.c.evidence
                    )
                    .where(decision.c.subject == node)
                    .order_by(decision.c.id.desc())
                    .limit(20)
                )
                .mappings()
                .all()
            )
            events = (
                connection.execute(
                    select(tables.kernel_event.c.at, tables.kernel_event.c.boot_id, tables.kernel_event.c.text)
                    .where(tables.kernel_event.c.node == node)
                    .order_by(tables.kernel_event.c.id.desc())
                    .limit(50)
                )
                .mappings()
                .all()
            )
            recovery, step = tables.recovery, tables.recovery_step
            steps = (
                connection.execute(
                    select(recovery.c.id, recovery.c.kind, step.c.name, step.c.status, step.c.detail, step.c.done_at)
                    .join(step, step.c.recovery == recovery.c.id)
                    .join(decision, decision.c.recovery == recovery.c.id)
                    .where(decision.c.subject == node, recovery.c.kind.in_([kind.value for kind in REPAIR_KINDS]))
                    .order_by(recovery.c.id.desc(), step.c.position)
                    .limit(40)
                )
                .mappings()
                .all()
            )
        return {
            "incident": {key: last[key] for key in ("rule", "summary", "evidence", "fault_at")} if last else None,
            "findings": [dict(row) for row in findings],
            "decisions": [dict(row) for row in reversed(decided)],
            "kernel_log": [dict(row) for row in reversed(events)],
            "steps": [dict(row) for row in steps],
        }

    # -- inventory ---------------------------------------------------------------------------------------------

    def moved_gpus(self, seen: Mapping[str, Sequence[Gpu]]) -> list[MovedGpu]:
        """GPUs seen in these nodes now that were last recorded in another node. Call before `see_gpus`."""
        with reading(self._engine) as connection:
            known = _seats(connection, seen)
        return [
            _moved(node, gpu, rows)
            for node, gpus in seen.items()
            for gpu in _named(gpus).values()
            if (rows := known.get(gpu.uuid)) and rows[-1].node != node
        ]

    def see_gpus(self, seen: Mapping[str, Sequence[Gpu]], now: float) -> None:
        """Record, for each node, the GPUs that sit in it now."""
        new: list[dict[str, Any]] = []
        alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}  # by the columns that they change
        with self._engine.begin() as connection:
            known = _seats(connection, seen)
            for node, gpus in seen.items():
                named = _named(gpus)
                here = {uuid: row for uuid in named for row in known.get(uuid, ()) if row.node == node}
                new += [_seat(node, gpu, now) for uuid, gpu in named.items() if uuid not in here]
                for uuid, row in here.items():
                    news = {"last_seen_at": now, **_news(row, named[uuid])}
                    alike.setdefault(tuple(news), []).append({"this": row.id, **news})
            insert_new(connection, tables.gpu_seen, new)
            for rows in alike.values():
                connection.execute(_SEE_AGAIN, rows)

    def gpus(
        self, limit: int, before_at: float = inf, before_id: int = ID_MAX, node: str | None = None
    ) -> list[dict[str, Any]]:
        """Places where each GPU was seen, newest sight first."""
        table = tables.gpu_seen
        at, number = table.c.last_seen_at, table.c.id
        query = select(table).where(tuple_(at, number) < tuple_(before_at, before_id))
        if node is not None:
            query = query.where(table.c.node == node)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(at.desc(), number.desc()).limit(limit)).mappings()
            return [dict(row) for row in rows]


def _move_of(row: Row[Any]) -> MoveRequest:
    off, submit_at, at_checkpoint = (row.detail[name] for name in ("off", "submit_at", "at_checkpoint"))
    return MoveRequest(row.id, tuple(off), row.reason, row.by, row.at, submit_at, at_checkpoint)


def _named(gpus: Sequence[Gpu]) -> dict[str, Gpu]:
    """GPUs that have a UUID, by it, in order."""
    return {gpu.uuid: gpu for gpu in sorted(gpus, key=lambda gpu: gpu.uuid) if gpu.uuid}


def _seats(connection: Connection, seen: Mapping[str, Sequence[Gpu]]) -> dict[str, list[Row[Any]]]:
    """GPU → where it was recorded, the newest place last."""
    uuids = sorted({uuid for gpus in seen.values() for uuid in _named(gpus)})
    found: dict[str, list[Row[Any]]] = {}
    for row in connection.execute(_SEATS, {"uuids": uuids}) if uuids else ():
        found.setdefault(row.uuid, []).append(row)
    return found


def _moved(node: str, gpu: Gpu, rows: Sequence[Row[Any]]) -> MovedGpu:
    serial, faults = gpu.serial or rows[-1].serial, sum(row.faults for row in rows)
    return MovedGpu(gpu.uuid, serial, gpu.bus_id, node, rows[-1].node, faults)


def _seat(node: str, gpu: Gpu, now: float) -> dict[str, Any]:
    return {
        "uuid": gpu.uuid,
        "node": node,
        **{name: getattr(gpu, name) for name in _IDENTITY},
        "first_seen_at": now,
        "last_seen_at": now,
    }


_IDENTITY = ("serial", "name", "bus_id", "board_part_number")


def _news(row: Row[Any], gpu: Gpu) -> dict[str, str]:
    """Identity of this GPU that is new or changed, as in another slot. A GPU that fails reports little of it."""
    known = {name: str(getattr(gpu, name)) for name in _IDENTITY}
    return {name: text for name, text in known.items() if text and text != getattr(row, name)}


def ask(connection: Connection, row: dict[str, Any]) -> int:
    """The number of the request. What was asked of the same subject before, and not answered yet, is not wanted."""
    table = tables.operator_intent
    of_subject = [table.c.subject == row["subject"], table.c.answered_at.is_(None)]
    if row["verb"] in _REPLACED:
        of_subject.append(table.c.verb.in_(_REPLACED[row["verb"]]))
    connection.execute(update(table).where(*of_subject).values(answered_at=row["at"]))
    number: int = connection.execute(insert(table).values(**row).returning(table.c.id)).scalar_one()
    return number
