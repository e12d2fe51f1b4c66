"""Facts from agents: stored once each, however often they arrive."""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import structlog
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Row,
    Select,
    String,
    Table,
    UniqueConstraint,
    and_,
    bindparam,
    case,
    delete,
    func,
    or_,
    select,
    update,
)

from understudy_controlplane.fleet.job import Condition, JobThere, KnownJob, Refusal, TrainingRun
from understudy_controlplane.fleet.node import Generation, StoredHardwareEvent, StoredKernelEvent
from understudy_controlplane.fleet.packed_nodes import with_nodes
from understudy_controlplane.fleet.run_attempts import INPUTS
from understudy_controlplane.hostlist import HostListError
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import (
    Columns,
    Store,
    caused_by_content,
    insert_if_new,
    insert_new,
    insert_or_update,
    number_in_order,
    reading,
)
from understudy_controlplane.store.fleet import OF_ATTEMPT, note_run
from understudy_controlplane.store.shard_map import unpack
from understudy_wire.facts import (
    Anomaly,
    CheckpointDeleted,
    CheckpointShard,
    Fact,
    FirstStep,
    HardwareEvent,
    HardwareKind,
    JobFact,
    JobRefused,
    KernelEvent,
    LaunchEnded,
    LaunchEvidence,
    LaunchStarted,
    Layout,
    RankFact,
    RankStarted,
    RestoreReport,
    Tier,
    TrainingInputs,
)
from understudy_wire.values import NOT_UNDERSTOOD

log = structlog.get_logger()

JOB_FACT_TABLES: dict[type, Table] = {
    RankStarted: tables.rank_start,
    TrainingInputs: tables.attempt,
    FirstStep: tables.first_step,
    CheckpointShard: tables.checkpoint_shard,
    CheckpointDeleted: tables.checkpoint,
    Anomaly: tables.anomaly,
    RestoreReport: tables.restore_report,
    LaunchStarted: tables.launch_start,
    LaunchEnded: tables.launch_end,
    LaunchEvidence: tables.launch_evidence,
}

OF_SAVE = ("layout", "tier", "copy_to", "then_copy_to", "blocked_seconds", "write_seconds")
"""Fields of a shard that are kept with its checkpoint alone."""

TIERS = tuple(one for one in Tier if one is not Tier.UNKNOWN)

OF_CHECKPOINT = ("job", "restart_count", "launch", "step", "path", "world_size")
"""What the shards of one checkpoint have in common."""


ATTEMPTS_NAMED_MAX = 1000
"""Attempts kept for a job: its processes choose the numbers that they name."""
_ATTEMPTS = select(func.count()).where(tables.attempt.c.job == bindparam("job"))

OF_WORLD = ("job", "restart_count", "launch", "world_size")
"""What the ranks of one gang have in common."""

_START = tables.rank_start.c
_EARLIER_START = select(_START.id).where(*(_START[name] == bindparam(name) for name in (*OF_WORLD, "rank"))).limit(1)

_PACKED = (
    select(tables.checkpoint_map.c.shards)
    .join(tables.checkpoint, tables.checkpoint.c.id == tables.checkpoint_map.c.checkpoint)
    .where(*(tables.checkpoint.c[name] == bindparam(name) for name in OF_CHECKPOINT))
)

GOES_ON = -1
"""`anomaly.until` where it is not over."""

UNKNOWN = Generation()

WAITING_SECONDS_MAX = 3600.0
"""A fact about a job that Slurm does not name within this is about no job."""

WAITING_AT_ONCE = 10_000

JOBS_AT_ONCE = 500
TEXT_SHOWN_MAX = 200

WAITING_OF_A_USER_MAX = 256
"""Facts that wait for a job, of one user on one node. A gang has a few for each of its ranks there, and Slurm shows its
job within a second."""

UNREADABLE = -1
"""Instead of the restart count of a fact that cannot be read."""

AHEAD_SECONDS_MAX = 24 * 3600.0
"""Seconds that a fact may be dated after the control plane's clock. MUNGE, and with it Slurm, does without a node whose
clock is minutes ahead.
"""

SIZE_BYTES_MAX = 2**62
"""Largest size of a checkpoint that is stored."""

KEY_BYTES_MAX = 2000
"""Longest text by which facts are recognised: PostgreSQL's indices hold 2704 bytes."""

REFUSALS_AT_ONCE = 1000

_TERMINAL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would carry out. Line ends and tabs stay."""


def _received_since(table: Table) -> Select[Any]:
    return select(table).where(table.c.received_at >= bindparam("since"))


def _newer(table: Table) -> Select[Any]:
    return _received_since(table).where(table.c.id > bindparam("after")).order_by(table.c.id)


_EVENTS = (tables.kernel_event, tables.hardware_event)
_NEW_EVENTS = {table: _newer(table) for table in _EVENTS}
_RECENT_EVENTS = {table: _received_since(table).order_by(table.c.received_at) for table in _EVENTS}
"""Queries for a process that has just started: in the order of their ids, SQLite would read events of months."""
_REFUSALS = (
    select(tables.job_refusal)
    .where(tables.job_refusal.c.received_at >= bindparam("since"))
    .order_by(tables.job_refusal.c.received_at.desc(), tables.job_refusal.c.id.desc())
    .limit(REFUSALS_AT_ONCE)
)

KeyT = TypeVar("KeyT")

Place = tuple[str, int]
"""A node, and a user whose processes run there."""

Run = tuple[int, int]
"""Slurm's job id, and the restart count of an attempt."""

NodesNow = Callable[[int, int], Collection[str] | None]
"""Nodes on which Slurm shows this attempt (job id, restart count) now; None: it does not show it running."""


def _nowhere(_job_id: int, _restart_count: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What else is known when facts of a node arrive."""

    jobs_at: Callable[[float], Sequence[JobThere]] = lambda _: ()
    """The jobs that were on the node at this time."""
    generation: Generation = UNKNOWN
    """The node's driver and set of GPUs."""
    nodes_now: NodesNow = _nowhere


NOTHING_KNOWN = Circumstances()


class Attached(NamedTuple):
    found: int  # facts whose job is known now
    unreadable: tuple[str, ...] = ()  # rows that were set aside just now, in words


def _take_one(counter: Counter[KeyT], key: KeyT) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


@dataclass(slots=True)
class _Waiting:
    """What waits in the database, counted: a reading of Slurm that names no new job costs no query."""

    runs: Counter[Run] = field(default_factory=Counter)
    places: Counter[Place] = field(default_factory=Counter)
    oldest_at: float = math.inf
    set_aside: set[int] = field(default_factory=set)  # ids of rows that cannot be read

    def add(self, run: Run, place: Place, at: float) -> None:
        self.runs[run] += 1
        self.places[place] += 1
        self.oldest_at = min(self.oldest_at, at)

    def remove(self, run: Run, place: Place) -> None:
        _take_one(self.runs, run)
        _take_one(self.places, place)


class FactStore(Store):
    """One for each database and process: it counts what waits."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._lock = threading.Lock()  # taken before the database's own
        self._waiting: _Waiting | None = None  # None: not counted yet

    def record(
        self,
        node: str,
        facts: Iterable[Fact],
        now: float,
        known_job: Callable[[int], KnownJob | None],
        around: Circumstances = NOTHING_KNOWN,
    ) -> list[str]:
        """One transaction: all of them or, with an exception, none. Returns what was not believed, in words, or not
        stored: a fact that cannot be stored fails alone.

        A fact about a job is believed when its owner's process reports it from a node of that attempt. It waits where
        Slurm has not shown the attempt yet.
        """
        facts = tuple(facts)
        try:
            return self._record(node, facts, now, known_job, around)
        except Exception as error:
            if not caused_by_content(error):
                raise
        dropped: list[str] = []
        for fact in facts:
            try:
                dropped += self._record(node, [fact], now, known_job, around)
            except Exception as error:
                if not caused_by_content(error):
                    raise
                log.exception("fact_not_stored", node=node)
                dropped.append(f"a {type(fact).__name__} cannot be stored: {type(error).__name__}")
        return dropped

    def _record(
        self,
        node: str,
        facts: Sequence[Fact],
        now: float,
        known_job: Callable[[int], KnownJob | None],
        around: Circumstances,
    ) -> list[str]:
        rows: list[tuple[Table, dict[str, Any]]] = []
        waiting: list[JobFact] = []
        of_jobs: list[tuple[KnownJob, JobFact]] = []
        for fact in facts:
            if isinstance(fact, KernelEvent | HardwareEvent | JobRefused):
                rows.append(_storable(*_of_node(node, fact, now, around)))
            elif (job := known_job(fact.job_id)) is None:
                waiting.append(fact)
            elif job.managed:
                of_jobs.append((job, fact))
        dropped: list[str] = []
        shown = self._nodes_shown(node, of_jobs, around.nodes_now)
        for job, fact in of_jobs:
            nodes = shown[job.row, fact.restart_count]
            objection = _objection(node, job, fact, nodes, now)
            if objection:
                dropped.append(objection)
            elif nodes is None:
                waiting.append(fact)
            else:
                rows.append(_of_job(node, fact, now, job.row, nodes))
        if facts and not rows and not waiting:
            return dropped  # of no facts, all of which were over a quota, none is acknowledged without a database
        with self._lock if waiting else nullcontext(), self._engine.begin() as connection:
            number_in_order(connection)
            _store(connection, rows)
            for row, run in {(job.row, run) for job, fact in of_jobs if (run := _training_run(fact)) is not None}:
                note_run(connection, row, run)
            if waiting:
                dropped += self._wait(connection, node, waiting, now)
        return dropped

    def _nodes_shown(
        self, node: str, facts: Iterable[tuple[KnownJob, JobFact]], nodes_now: NodesNow
    ) -> dict[Run, Collection[str] | None]:
        """Nodes of the attempt by job row and restart count. The database is asked only if Slurm does not show the
        attempt on this node now, and if a launcher may name one that Slurm has taken out of the job.
        """
        shown: dict[Run, Collection[str] | None] = {}
        for job, fact in facts:
            run, names_others = (job.row, fact.restart_count), isinstance(fact, LaunchStarted | LaunchEnded)
            if run in shown and not names_others:
                continue
            shown[run] = nodes_now(fact.job_id, fact.restart_count)
            if names_others or node not in (shown[run] or ()):
                with reading(self._engine) as connection:
                    shown[run] = _nodes_of(connection, job.row, fact, nodes_now)
        return shown

    def _wait(self, connection: Connection, node: str, facts: Sequence[JobFact], now: float) -> list[str]:
        """Keeps facts until Slurm names their job, within bounds. Needs the lock. Returns what is not kept."""
        waiting, self._waiting = self._counted(connection), None  # counted again if this transaction fails
        refused: Counter[int] = Counter()
        for fact in facts:
            place = (node, fact.user_id)
            if waiting.places[place] >= WAITING_OF_A_USER_MAX:
                refused[fact.user_id] += 1
            elif self._keep(connection, node, fact, now):
                waiting.add(_run_of(fact), place, now)
        self._waiting = waiting
        return [
            f"{count} facts of user {user} about jobs that Slurm does not show: {WAITING_OF_A_USER_MAX} wait already"
            for user, count in refused.items()
        ]

    @staticmethod
    def _keep(connection: Connection, node: str, fact: JobFact, now: float) -> bool:
        """True if it is new."""
        table, text = tables.waiting_fact, msgspec.json.encode(fact).decode()
        digest = hashlib.sha256(f"{node} {text}".encode()).hexdigest()
        if connection.execute(select(table.c.id).where(table.c.digest == digest)).first() is not None:
            return False
        row = {"job_id": fact.job_id, "node": node, "received_at": now, "fact": text, "digest": digest}
        insert_new(connection, table, [row])
        return True

    def _counted(self, connection: Connection) -> _Waiting:
        """Counts what an earlier process has left first. Needs the lock."""
        if self._waiting is not None:
            return self._waiting
        waiting = _Waiting()
        for row in connection.execute(select(tables.waiting_fact)):
            fact = _read(row)
            waiting.oldest_at = min(waiting.oldest_at, row.received_at)
            if fact is not None:
                waiting.add(_run_of(fact), (row.node, fact.user_id), row.received_at)
            else:
                waiting.runs[row.job_id, UNREADABLE] += 1  # until it is read once more, and set aside
        return waiting

    def attach_waiting(
        self, known_job: Callable[[int], KnownJob | None], now: float, nodes_now: NodesNow = _nowhere
    ) -> Attached:
        """Give facts that waited for their attempt to its job, and drop those that waited too long or are not believed.

        A row that cannot be read is set aside until it has waited too long, and stops no other. One that cannot be
        stored is dropped.
        """
        try:
            return self._attach(known_job, now, nodes_now, each_alone=False)
        except Exception as error:
            if not caused_by_content(error):
                raise
        return self._attach(known_job, now, nodes_now, each_alone=True)

    def _attach(
        self, known_job: Callable[[int], KnownJob | None], now: float, nodes_now: NodesNow, *, each_alone: bool
    ) -> Attached:
        table = tables.waiting_fact
        with self._lock:
            if self._waiting is None:
                with reading(self._engine) as connection:
                    self._waiting = self._counted(connection)
            waiting = self._waiting
            named = {
                job_id
                for job_id, count in waiting.runs
                if known_job(job_id) is not None and (count == UNREADABLE or nodes_now(job_id, count) is not None)
            }
            too_old = now - waiting.oldest_at > WAITING_SECONDS_MAX
            if not named and not too_old:
                return Attached(0)
            due = or_(table.c.job_id.in_(sorted(named)[:JOBS_AT_ONCE]), table.c.received_at < now - WAITING_SECONDS_MAX)
            with self._engine.begin() as connection:
                number_in_order(connection)
                self._waiting = None  # counted again if this transaction fails
                rows = connection.execute(select(table).where(due).order_by(table.c.id).limit(WAITING_AT_ONCE)).all()
                attachment = _Attachment(connection, waiting, known_job, nodes_now, now, each_alone)
                attached = attachment.attach(rows)
                if too_old:
                    oldest = connection.execute(select(func.min(table.c.received_at))).scalar()
                    waiting.oldest_at = math.inf if oldest is None else oldest
            self._waiting = waiting
        return attached

    def kernel_events(self, after_id: int, since: float) -> list[StoredKernelEvent]:
        """Events newer than the one with this id received at or after `since`, in the order of arrival."""
        return [_kernel_event(row) for row in self._events(tables.kernel_event, after_id, since)]

    def hardware_events(self, after_id: int, since: float) -> list[StoredHardwareEvent]:
        return [_hardware_event(row) for row in self._events(tables.hardware_event, after_id, since)]

    def _events(self, table: Table, after_id: int, since: float) -> Sequence[Row[Any]]:
        with reading(self._engine) as connection:
            if after_id:
                return connection.execute(_NEW_EVENTS[table], {"after": after_id, "since": since}).all()
            return sorted(connection.execute(_RECENT_EVENTS[table], {"since": since}), key=lambda row: row.id)

    def refusals_since(self, since: float) -> tuple[Refusal, ...]:
        """Newest first, at most REFUSALS_AT_ONCE of them."""
        return tuple(
            Refusal(row.node, row.job_id, row.restart_count, row.at, row.received_at, row.reason)
            for row in self._rows(_REFUSALS, {"since": since})
        )


@dataclass(slots=True)
class _Attachment:
    """One pass over facts that wait."""

    connection: Connection
    waiting: _Waiting
    known_job: Callable[[int], KnownJob | None]
    nodes_now: NodesNow
    now: float
    each_alone: bool  # as where a row cannot be stored: it must not undo the others
    found: int = 0
    unreadable: list[str] = field(default_factory=list)

    def attach(self, rows: Sequence[Row[Any]]) -> Attached:
        over: list[int] = []
        for row in rows:
            too_old = self.now - row.received_at > WAITING_SECONDS_MAX
            fact = _read(row)
            if fact is None and row.id not in self.waiting.set_aside:
                self.waiting.set_aside.add(row.id)
                _take_one(self.waiting.runs, (row.job_id, UNREADABLE))
                self._note_unreadable(row, "cannot be read")
            judged = fact is not None and (self._judge_alone if self.each_alone else self._judge)(row, fact)
            if judged or too_old:
                over.append(row.id)
            if fact is not None and (judged or too_old):
                self.waiting.remove(_run_of(fact), (row.node, fact.user_id))
        self.connection.execute(delete(tables.waiting_fact).where(tables.waiting_fact.c.id.in_(over)))
        return Attached(self.found, tuple(self.unreadable))

    def _note_unreadable(self, row: Row[Any], why: str) -> None:
        shown = f"fact {row.id} of node {row.node} about job {row.job_id}"
        self.unreadable.append(f"{shown} {why}: {row.fact[:TEXT_SHOWN_MAX]}")

    def _judge_alone(self, row: Row[Any], fact: JobFact) -> bool:
        try:
            with self.connection.begin_nested():
                return self._judge(row, fact)
        except Exception as error:
            if not caused_by_content(error):
                raise
            self._note_unreadable(row, f"cannot be stored ({type(error).__name__})")
        return True

    def _judge(self, row: Row[Any], fact: JobFact) -> bool:
        """Store the fact where it is believed. False: Slurm has not shown its attempt yet."""
        job = self.known_job(fact.job_id)
        if job is None:
            return False
        nodes = _nodes_of(self.connection, job.row, fact, self.nodes_now)
        if not job.managed or _objection(row.node, job, fact, nodes, row.received_at):
            return True
        if nodes is None:
            return False
        _store(self.connection, [_of_job(row.node, fact, row.received_at, job.row, nodes)])
        if (run := _training_run(fact)) is not None:
            note_run(self.connection, job.row, run)
        self.found += 1
        return True


def _objection(node: str, job: KnownJob, fact: JobFact, nodes: Collection[str] | None, now: float) -> str:
    """Why the fact is not believed; empty: nothing speaks against it. `nodes` are those of its attempt."""
    if not job.believes(fact.user_id):
        return f"user {fact.user_id} speaks for job {fact.job_id} of user {job.user_id}"
    if nodes is not None and node not in nodes:
        return f"{node} speaks for attempt {fact.restart_count} of job {fact.job_id}, which does not run there"
    impossible = _impossible(node, fact, now)
    if impossible:
        return f"a fact about job {fact.job_id}: {impossible}"
    paths = [fact.path] if isinstance(fact, CheckpointShard | CheckpointDeleted) else []
    if isinstance(fact, CheckpointShard):
        paths += filter(None, (fact.copy_to, fact.then_copy_to))
    outside = [path for path in paths if not job.may_save_at(path)]
    if outside:
        shown = outside[0][:TEXT_SHOWN_MAX]
        return f"job {fact.job_id} announced a checkpoint outside the folders in its comment: {shown}"
    return ""


def _impossible(node: str, fact: JobFact, now: float) -> str:
    """What in it cannot be, or not be stored; empty: nothing."""
    if isinstance(fact, RankFact) and fact.rank >= fact.world_size:
        return f"rank {fact.rank} is not in a world of {fact.world_size}"
    at = fact.started_at if isinstance(fact, RankStarted) else getattr(fact, "at", now)
    if at > now + AHEAD_SECONDS_MAX:
        return f"it is dated more than a day ahead: the clock of {node} is wrong, or the program"
    text = _key_too_long(JOB_FACT_TABLES[type(fact)], msgspec.structs.asdict(fact))
    return f"no database stores it: {text}" if text else ""


def _training_run(fact: JobFact) -> TrainingRun | None:
    """The arguments are those of rank 0: an option may differ from rank to rank."""
    if not isinstance(fact, RankStarted) or not fact.run:
        return None
    return TrainingRun(fact.run, fact.run_folder, fact.arguments if fact.rank == 0 else "")


def _run_of(fact: JobFact) -> Run:
    return fact.job_id, fact.restart_count


def _nodes_of(connection: Connection, job_row: int, fact: JobFact, nodes_now: NodesNow) -> Collection[str] | None:
    """The nodes of the fact's attempt, as Slurm showed them first and as it shows them now; None: not shown yet."""
    now, table = nodes_now(fact.job_id, fact.restart_count), tables.attempt
    query = select(table.c.nodes).where(
        table.c.job == job_row,
        table.c.restart_count == fact.restart_count,
        table.c.launch == 0,
        table.c.running_at.is_not(None),
    )
    first = connection.execute(query).scalar()
    return None if first is None and now is None else frozenset(first or ()) | frozenset(now or ())


def _read(row: Row[Any]) -> JobFact | None:
    """None: it cannot be read, as after a release that wrote it otherwise."""
    try:
        fact: JobFact = msgspec.json.decode(row.fact, type=JobFact)
    except NOT_UNDERSTOOD:
        return None
    return fact


def _key_too_long(table: Table, values: Mapping[str, Any]) -> str:
    """Name of the text that no index stores; empty: none."""
    keys = {key.name for one in table.constraints if isinstance(one, UniqueConstraint) for key in one.columns}
    for name in sorted(keys & values.keys()):
        if isinstance(values[name], str) and len(values[name].encode()) > KEY_BYTES_MAX:
            return f"{name} has {len(values[name].encode())} bytes, at most {KEY_BYTES_MAX} are stored"
    return ""


def _storable(table: Table, values: dict[str, Any]) -> tuple[Table, dict[str, Any]]:
    """What a node's hardware reports is stored in any case: without the characters that no database stores, and cut."""
    for name, value in values.items():
        if isinstance(value, str):
            kind = table.c[name].type
            length = kind.length if isinstance(kind, String) else None
            values[name] = value.replace("\0", "\N{REPLACEMENT CHARACTER}")[:length]
    return table, values


def _of_node(
    node: str, fact: KernelEvent | HardwareEvent | JobRefused, now: float, around: Circumstances
) -> tuple[Table, dict[str, Any]]:
    at = fact.at if 0 <= fact.at <= now + AHEAD_SECONDS_MAX else now  # what hardware reports counts all the same
    values: dict[str, Any] = msgspec.structs.asdict(fact) | {"node": node, "received_at": now, "at": at}
    if isinstance(fact, JobRefused):
        return tables.job_refusal, values
    values |= {"driver_version": around.generation.driver_version, "gpu_set": around.generation.gpu_set}
    if isinstance(fact, HardwareEvent):
        return tables.hardware_event, values | {"kind": fact.kind.value}
    return tables.kernel_event, values | {"jobs": [list(job) for job in around.jobs_at(at)]}


def _of_job(
    node: str, fact: JobFact, received_at: float, job_row: int, nodes: Collection[str]
) -> tuple[Table, dict[str, Any]]:
    """A launcher names and blames no nodes but those of its attempt."""
    if isinstance(fact, LaunchStarted):
        try:
            fact = with_nodes(fact)
        except HostListError as error:
            log.warning("launch_without_nodes", job=fact.job_id, error=str(error))
        seats, spares, lost = (
            tuple(name for name in dict.fromkeys(names) if name in nodes)
            for names in (fact.seats, fact.spares, fact.lost)
        )
        fact = msgspec.structs.replace(fact, seats=seats, spares=spares, lost=lost)
    if isinstance(fact, LaunchEnded):
        failed, blamed = fact.failed_node, tuple(name for name in fact.blamed if name in nodes)
        fact = msgspec.structs.replace(fact, failed_node=failed if failed in nodes else "", blamed=blamed)
    values: dict[str, Any] = msgspec.structs.asdict(fact) | {"job": job_row, "received_at": received_at}
    for name in ("job_id", "user_id", "run", "run_folder", "arguments", "nodes_packed"):
        values.pop(name, None)
    if isinstance(fact, TrainingInputs):
        new = {"nodes": [], "restore_path": ""}  # where Slurm has not shown the attempt yet
        return tables.attempt, {name: values[name] for name in (*OF_ATTEMPT, *INPUTS)} | new
    if isinstance(fact, CheckpointShard):
        values["layout"] = "" if fact.layout is Layout.UNKNOWN else fact.layout.value
        values["tier"] = "" if fact.tier is Tier.UNKNOWN else fact.tier.value
        values["more_files"] = [list(msgspec.structs.astuple(one)) for one in fact.more_files]
    if isinstance(fact, LaunchEvidence):
        values |= {name: _TERMINAL.sub("\N{REPLACEMENT CHARACTER}", values[name]) for name in ("summary", "text")}
        values["kind"] = fact.kind.value
    if isinstance(fact, Anomaly):
        values["until"] = GOES_ON if fact.until is None else fact.until
    table = JOB_FACT_TABLES[type(fact)]
    return table, values | ({"node": node} if "node" in table.c else {})


def _store(connection: Connection, rows: Iterable[tuple[Table, dict[str, Any]]]) -> None:
    """What is stored already is no news. New shards are counted to their checkpoints."""
    shards: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    ranks: Counter[tuple[Any, ...]] = Counter()
    for table, row in rows:
        if table is tables.checkpoint:
            _delete_checkpoints(connection, row)
            continue
        if table is tables.attempt:
            if connection.execute(_ATTEMPTS, row).scalar_one() < ATTEMPTS_NAMED_MAX:
                insert_or_update(connection, table, OF_ATTEMPT, row, _with_inputs)
            continue
        of_save = {name: row.pop(name) for name in OF_SAVE} if table is tables.checkpoint_shard else {}
        is_first = table is tables.rank_start and connection.execute(_EARLIER_START, row).first() is None
        is_new = insert_if_new(connection, table, row)
        if is_new and is_first:
            ranks[tuple(row[name] for name in OF_WORLD)] += 1
        if is_new and table is tables.checkpoint_shard and row["rank"] < row["world_size"]:
            shards.setdefault(tuple(row[name] for name in OF_CHECKPOINT), []).append(row | of_save)
    for key, found in shards.items():
        same = dict(zip(OF_CHECKPOINT, key, strict=True))
        packed = _packed_ranks(connection, same)
        new, at = [one for one in found if one["rank"] not in packed], max(one["at"] for one in found)
        counted = {
            "shards": len(new),
            "size_bytes": min(sum(map(_size, new)), SIZE_BYTES_MAX),
            "at": at,
            "packed": False,
        }
        counted |= {name: _longest(one[name] for one in found) for name in ("blocked_seconds", "write_seconds")}
        counted["layout"] = _layout({one["layout"] for one in found})
        counted["tier"] = _tier({one["tier"] for one in found})
        counted |= {name: max(one[name] for one in found) for name in ("copy_to", "then_copy_to")}
        insert_or_update(connection, tables.checkpoint, OF_CHECKPOINT, same | counted, _with_more_shards)
    for key, count in ranks.items():
        world = dict(zip(OF_WORLD, key, strict=True)) | {"ranks": count}
        insert_or_update(connection, tables.gang_world, OF_WORLD, world, _with_more_ranks)


def _longest(seconds: Iterable[float | None]) -> float | None:
    """None: not known of any."""
    return max((one for one in seconds if one is not None), default=None)


def _layout(found: Set[str]) -> str:
    """Layout that promises least, if ranks name different ones."""
    return next((one.value for one in (Layout.FIXED, Layout.RESHARDABLE) if one.value in found), "")


def _tier(found: Set[str]) -> str:
    """Tier that is lost first, if ranks name different ones."""
    return next((one.value for one in TIERS if one.value in found), "")


def _size(shard: Mapping[str, Any]) -> int:
    return int(shard["size_bytes"] + sum(size for _, size, _ in shard["more_files"]))


def _delete_checkpoints(connection: Connection, row: Mapping[str, Any]) -> None:
    """Those of this step and path that the job or an earlier one of its run has written. Their maps are of no use."""
    table, job, own = tables.checkpoint, tables.job, tables.job.alias()
    same_run = and_(*(job.c[name] == own.c[name] for name in ("run_name", "user_id", "cluster", "run_folder")))
    jobs = select(job.c.id).join(own, or_(job.c.id == own.c.id, and_(same_run, own.c.run_name != "")))
    there = and_(
        table.c.job.in_(jobs.where(own.c.id == row["job"])), table.c.step == row["step"], table.c.path == row["path"]
    )
    maps = tables.checkpoint_map
    connection.execute(delete(maps).where(maps.c.checkpoint.in_(select(table.c.id).where(there))))
    gone = {"condition": Condition.DELETED.value, "condition_why": "by the training"}
    if not connection.execute(update(table).where(there).values(gone)).rowcount:  # its shards come later
        of_checkpoint = {name: row[name] for name in (*OF_CHECKPOINT, "at")}
        insert_if_new(connection, table, of_checkpoint | gone | {"shards": 0, "size_bytes": 0})


def _packed_ranks(connection: Connection, checkpoint: Mapping[str, Any]) -> frozenset[int]:
    """Those whose shards are in the checkpoint's map: they only repeat themselves."""
    packed = connection.execute(_PACKED, checkpoint).scalar()
    return frozenset() if packed is None else _ranks_in(packed)


@lru_cache(maxsize=2)
def _ranks_in(packed: bytes) -> frozenset[int]:
    """A map of 100,000 ranks takes a quarter of a second, and each batch that repeats shards asks for it."""
    return frozenset(one.rank for one in unpack(packed))


def _with_inputs(stored: Columns, new: Columns) -> dict[str, Any]:
    """What was named first stays."""
    return {name: case((stored[name] == "", new[name]), else_=stored[name]) for name in INPUTS}


def _with_more_ranks(stored: Columns, new: Columns) -> dict[str, Any]:
    return {"ranks": stored.ranks + new.ranks}


def _with_more_shards(stored: Columns, new: Columns) -> dict[str, Any]:
    return {
        "shards": stored.shards + new.shards,
        "size_bytes": case(
            (stored.size_bytes > SIZE_BYTES_MAX - new.size_bytes, SIZE_BYTES_MAX),
            else_=stored.size_bytes + new.size_bytes,
        ),
        "at": case((stored.at < new.at, new.at), else_=stored.at),
        "packed": new.packed,
        "layout": case(
            (stored.layout == Layout.FIXED.value, stored.layout), (new.layout == "", stored.layout), else_=new.layout
        ),
        "tier": case(
            *((or_(stored.tier == one.value, new.tier == one.value), one.value) for one in TIERS), else_=new.tier
        ),
        **{name: case((new[name] == "", stored[name]), else_=new[name]) for name in ("copy_to", "then_copy_to")},
        **{name: _greater(stored[name], new[name]) for name in ("blocked_seconds", "write_seconds")},
    }


def _greater(stored: ColumnElement[float | None], new: ColumnElement[float | None]) -> ColumnElement[float | None]:
    return case((stored.is_(None), new), (new > stored, new), else_=stored)


def _kernel_event(row: Row[Any]) -> StoredKernelEvent:
    event = KernelEvent(row.boot_id, row.sequence, row.at, row.text, row.xid, row.bus_id)
    jobs = tuple(JobThere(*job) for job in row.jobs)
    return StoredKernelEvent(row.id, row.node, row.received_at, event, jobs, generation=_generation(row))


def _hardware_event(row: Row[Any]) -> StoredHardwareEvent:
    kind = HardwareKind(row.kind)
    event = HardwareEvent(row.boot_id, row.at, kind, row.part, row.number, row.seconds, row.text)
    return StoredHardwareEvent(row.id, row.node, row.received_at, event, _generation(row))


def _generation(row: Row[Any]) -> Generation:
    return Generation(row.driver_version, row.gpu_set)
