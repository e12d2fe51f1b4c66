"""Old records are deleted; what an open incident, a recovery or a job that may run needs stays."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import Engine, event, func, insert, select, update
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from tests import builders as b
from tests.new_database import new_database
from tests.store.query_plans import GROWING, captured, plan_of, whole_tables_read
from understudy_controlplane.config import Retention
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.decide.retention import limits
from understudy_controlplane.fleet.durations import DAY_SECONDS
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.job import Attempt, Job
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.pruner import Pruner
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import DatabaseInMemory, open_database
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.gpus import GpuStore
from understudy_controlplane.store.parts import PartStore
from understudy_controlplane.store.requests import RequestStore
from understudy_controlplane.store.retention import RULES, RetentionStore, Rule
from understudy_controlplane.store.tickets import TicketStore
from understudy_controlplane.store.tokens import NewToken, TokenStore
from understudy_wire.facts import Anomaly, AnomalyKind, CheckpointShard, Fact, FirstStep, RankStarted
from understudy_wire.hardware import Part, PartKind

DAY = DAY_SECONDS
HOUR = 3600.0
NOW = 1000 * DAY_SECONDS
OWNER = b.job().slurm.user_id


class StoodClock:
    """Each reading of the monotonic clock is 3 ms after the one before."""

    def __init__(self) -> None:
        self.readings = 0

    def now(self) -> float:
        return NOW

    def monotonic(self) -> float:
        self.readings += 1
        return self.readings * 0.003


@pytest.fixture(scope="module")
def memory() -> DatabaseInMemory:
    return DatabaseInMemory()


@pytest.fixture
def engine(memory: DatabaseInMemory) -> Engine:
    memory.clear()
    return memory.engine


@pytest.fixture
def pruner(engine: Engine) -> Pruner:
    return Pruner(RetentionStore(engine), Retention, StoodClock())


def add(engine: Engine, table: Any, **values: Any) -> int:
    with engine.begin() as connection:
        return int(connection.execute(insert(table).values(**values).returning(table.c.id)).scalar_one())


def decision(engine: Engine, age_days: float, action: str = "nothing", **values: Any) -> int:
    fixed = {"key": "k", "table_row": 1, "rule": "", "subject": "n1", "because": "rule", "reason": "", "evidence": {}}
    return add(engine, tables.decision, **fixed | {"at": NOW - age_days * DAY, "action": action} | values)


def incident(engine: Engine, opened_days: float, closed_days: float | None = None) -> int:
    at = NOW - opened_days * DAY
    fixed = {"subject": "n1", "rule": "r", "signal": "s", "summary": "", "evidence": {}, "fault_at": at}
    closed_at = None if closed_days is None else NOW - closed_days * DAY
    number = add(engine, tables.incident, opened_at=at, closed_at=closed_at, **fixed)
    found = {"incident": number, "rule": "r", "signal": "s", "summary": "", "evidence": {}, "at": at}
    with engine.begin() as connection:
        connection.execute(insert(tables.incident_finding).values(**found))
    return number


def recovery(engine: Engine, begun_days: float, ended_days: float | None = None, job: int | None = None) -> int:
    at = NOW - begun_days * DAY
    ended_at = None if ended_days is None else NOW - ended_days * DAY
    status = "running" if ended_at is None else "succeeded"
    values: dict[str, Any] = {"kind": "pool", "plan": {}, "status": status, "job": job}
    times = {"fault_at": at, "detected_at": at, "decided_at": at, "ended_at": ended_at}
    number = add(engine, tables.recovery, **values, **times)
    step = {"recovery": number, "position": 0, "name": "drain_nodes", "status": "done"}
    with engine.begin() as connection:
        connection.execute(insert(tables.recovery_step).values(**step))
    return number


def newest(engine: Engine) -> None:
    """Recent records of each kind: the newest row of a table is never deleted."""
    decision(engine, 0, "quarantine")
    incident(engine, 0)
    recovery(engine, 0)


def ids(engine: Engine, table: Any) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(select(table.c.id).order_by(table.c.id)).scalars())


def rows(engine: Engine, table: Any) -> int:
    with engine.connect() as connection:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


class TestDecisions:
    def test_to_do_nothing_stay_a_week(self, engine: Engine, pruner: Pruner) -> None:
        old, young = decision(engine, 7.1), decision(engine, 6.9)
        newest(engine)
        assert pruner.prune() == {"decision": 1}
        assert (old in ids(engine, tables.decision), young in ids(engine, tables.decision)) == (False, True)

    def test_that_would_have_acted_stay_as_long_as_events(self, engine: Engine, pruner: Pruner) -> None:
        """The record of mode observe: how often people agreed with a rule."""
        decision(engine, 91, because="dry_run")
        stay = [decision(engine, 89, because=because) for because in ("dry_run", "rule_dry_run", "awaits_approval")]
        newest(engine)
        assert pruner.prune() == {"decision": 1}
        assert ids(engine, tables.decision)[:3] == stay

    def test_of_an_incident_to_do_nothing_stay_as_long_as_events_and_always_while_it_is_open(
        self, engine: Engine, pruner: Pruner
    ) -> None:
        over, still = incident(engine, 200, 100), incident(engine, 200)
        stay = [decision(engine, 80, incident=over), decision(engine, 199, incident=still)]
        decision(engine, 120, incident=over)
        newest(engine)
        assert pruner.prune() == {"decision": 1}
        assert ids(engine, tables.decision)[:2] == stay

    def test_that_act_stay_with_their_incident_and_their_recovery(self, engine: Engine, pruner: Pruner) -> None:
        ended = incident(engine, 800, 740)
        reopened, running = incident(engine, 800), recovery(engine, 800)
        stay = [
            decision(engine, 790, "quarantine", incident=reopened),
            decision(engine, 790, "repair", recovery=running),
            decision(engine, 700, "quarantine"),
        ]
        decision(engine, 790, "quarantine", incident=ended, recovery=recovery(engine, 790, 780))
        newest(engine)
        assert pruner.prune() == {"decision": 1, "recovery": 1, "incident": 1}
        assert ids(engine, tables.decision)[:3] == stay
        assert rows(engine, tables.incident_finding) == rows(engine, tables.incident) == 2
        assert rows(engine, tables.recovery_step) == rows(engine, tables.recovery) == 2

    def test_the_breaker_stays_as_it_is_for_ever(self, engine: Engine, pruner: Pruner) -> None:
        requests = RequestStore(engine)
        for age in (900, 850):
            decision(engine, age, "open_breaker")
        newest(engine)
        pruner.prune()
        assert in_force(requests.stored(), NOW).breaker.reason == "" and rows(engine, tables.decision) == 2
        with engine.begin() as connection:
            connection.execute(update(tables.decision).values(reason="too many"))
        assert in_force(requests.stored(), NOW).breaker.reason == "too many"
        reset = {"reason": "", "by": "alice", "subject": ""}
        add(engine, tables.request, at=NOW - 800 * DAY, verb=Verb.RESET_BREAKER.value, **reset)
        add(engine, tables.request, at=NOW, verb=Verb.HOLD.value, **reset)
        pruner.prune()
        assert in_force(requests.stored(), NOW).breaker.reason == ""

    def test_a_pause_of_years_ago_still_holds(self, engine: Engine, pruner: Pruner) -> None:
        requests = RequestStore(engine)
        for verb, age in ((Verb.PAUSE, 900), (Verb.RESUME, 850), (Verb.PAUSE_NOW, 800)):
            requests.ask(verb, FLEET, "moving", "alice", NOW - age * DAY)
        requests.ask(Verb.PAUSE_NOW, FLEET, "still moving", "alice", NOW - 790 * DAY)
        assert pruner.prune() == {"request": 1}
        assert in_force(requests.stored(), NOW).pause.halts


def test_a_request_stays_as_long_as_the_decision_that_answered_it(engine: Engine, pruner: Pruner) -> None:
    requests = RequestStore(engine)
    first = requests.ask(Verb.HOLD, "n1", "cables", "alice", NOW - 900 * DAY)
    requests.ask(Verb.HOLD, "n2", "cables", "alice", NOW - 900 * DAY)
    decision(engine, 900, "hold", request=first, incident=incident(engine, 900))
    requests.ask(Verb.RESUME, FLEET, "the newest row is never deleted", "alice", NOW)
    newest(engine)
    assert pruner.prune() == {"request": 1}, "the one without a decision"


def test_what_an_operator_chose_about_spares_years_ago_still_holds(engine: Engine, pruner: Pruner) -> None:
    requests = RequestStore(engine)
    for node, verb, age in (("n1", Verb.SPARE_ADD, 900), ("n1", Verb.SPARE_ADD, 890), ("n2", Verb.SPARE_ADD, 880)):
        requests.ask(verb, node, "the fastest", "alice", NOW - age * DAY)
    assert pruner.prune() == {"request": 1}
    assert in_force(requests.stored(), NOW).spare_choices == {"n1": True, "n2": True}


def test_the_incident_of_a_node_that_is_repaired_for_years_keeps_what_was_tried(engine: Engine, pruner: Pruner) -> None:
    FleetStore(engine).add_nodes(["n1"], NOW - 900 * DAY)
    with engine.begin() as connection:
        connection.execute(update(tables.node).values(state="repairing"))
    recovery(engine, 890, 889)
    newest(engine)
    assert pruner.prune() == {}


def sizes(engine: Engine) -> dict[int, tuple[int, int]]:
    """Step → shards and bytes."""
    table = tables.checkpoint
    with engine.connect() as connection:
        return {row.step: (row.shards, row.size_bytes) for row in connection.execute(select(table))}


def see(engine: Engine, age_days: float, job: Job) -> int:
    return FleetStore(engine).see_jobs([job], NOW - age_days * DAY)[0].row


def dated(fact: Fact, at: float) -> Fact:
    """No fact is dated days after it is reported."""
    name = "started_at" if isinstance(fact, RankStarted) else "at"
    return msgspec.structs.replace(fact, **{name: min(getattr(fact, name), at + DAY)})


def report(engine: Engine, age_days: float, job: Job, *facts: Fact) -> None:
    fleet = FleetStore(engine)
    known = fleet.known_jobs(b.CLUSTER, [job.key.job_id])
    at = NOW - age_days * DAY
    assert FactStore(engine).record("n1", [dated(fact, at) for fact in facts], at, known.get) == []


def reports_of(job: Job) -> list[Fact]:
    number = job.key.job_id
    return [
        RankStarted(number, 0, 0, 1, NOW, 10, user_id=OWNER),
        FirstStep(number, 0, 0, 1, 0, NOW, user_id=OWNER),
        CheckpointShard(number, 0, 0, 1, 5, "/c/5", "", 1, "", NOW, user_id=OWNER),
    ]


class TestJobs:
    def test_go_with_what_they_reported_when_slurm_has_not_shown_them_for_long(
        self, engine: Engine, pruner: Pruner
    ) -> None:
        gone, over, shown = (b.job(job_id=number) for number in (1, 2, 3))
        for job, age in ((gone, 400), (over, 40), (shown, 0)):
            see(engine, age, job)
            report(engine, age, job, *reports_of(job))
        FleetStore(engine).end_attempts({}, NOW - 39 * DAY)
        assert pruner.prune() == {"rank_start": 2, "first_step": 2, "checkpoint_shard": 2}
        nothing_saved = b.job(job_id=4)
        see(engine, 400, nothing_saved)
        see(engine, 0, b.job(job_id=5))
        FleetStore(engine).end_attempts({}, NOW - 39 * DAY)
        assert pruner.prune() == {"job": 1}
        assert FleetStore(engine).known_jobs(b.CLUSTER, [1, 2, 3, 4]).keys() == {1, 2, 3}
        assert pruner.prune() == {}

    def test_that_saved_something_keep_their_last_checkpoints_with_what_speaks_against_them(
        self, engine: Engine, pruner: Pruner
    ) -> None:
        """A job of their run is never answered that nothing was ever saved."""
        old, last = b.job(job_id=1), b.job(job_id=2)
        for job, age in ((old, 400), (last, 0)):
            see(engine, age, job)
            saved = [
                CheckpointShard(job.key.job_id, 0, 0, 1, n, f"/c/{n}", "", 1, "", NOW, user_id=OWNER) for n in range(6)
            ]
            half = CheckpointShard(job.key.job_id, 0, 0, 2, 9, "/c/9", "", 1, "", NOW, user_id=OWNER)
            nan = Anomaly(job.key.job_id, 0, 0, 1, AnomalyKind.LOSS_NAN, 5, NOW, user_id=OWNER)
            report(engine, age, job, RankStarted(job.key.job_id, 0, 0, 1, NOW, 10, user_id=OWNER), *saved, half, nan)
        FleetStore(engine).end_attempts({2: Attempt(0)}, NOW - 39 * DAY)
        pruner.look()
        pruner.prune()
        store = CheckpointStore(engine)
        assert [one.step for one in store.complete_checkpoints(old.key)] == [3, 4, 5]
        assert [one.step for one in store.announced_checkpoints(old.key)] == [3, 4, 5, 9]
        known = FleetStore(engine).known_jobs(b.CLUSTER, [1])[1]
        points = RestorePoints(store, FleetStore(engine), StoodClock())
        assert points.give(known, Attempt(1)).step == 4, "step 5 is suspect as long as it is known"
        assert rows(engine, tables.checkpoint_map) == 4 + 6, "of the old one also the one that it never completed"

    def test_that_run_or_recover_stay_whatever_their_age(self, engine: Engine, pruner: Pruner) -> None:
        runs, recovers = b.job(job_id=1), b.job(job_id=2)
        see(engine, 400, runs)
        report(engine, 400, runs, *reports_of(runs))
        row = see(engine, 400, recovers)
        report(engine, 400, recovers, *reports_of(recovers))
        FleetStore(engine).end_attempts({1: (0, 0)}, NOW - 399 * DAY)  # type: ignore[dict-item]  # equal to an Attempt
        recovery(engine, 399, job=row)
        see(engine, 0, b.job(job_id=3))
        pruner.look()
        assert pruner.prune() == {"checkpoint_shard": 1}
        assert [one.step for one in CheckpointStore(engine).complete_checkpoints(recovers.key)] == [5]

    def test_do_not_age_while_slurm_is_not_read(self, engine: Engine, pruner: Pruner) -> None:
        """After a year without a control plane: whether the job still waits is not known before the first reading."""
        waiting = b.job(job_id=1, state="PENDING", nodes=())
        see(engine, 400, waiting)
        see(engine, 395, b.job(job_id=2, state="PENDING", nodes=()))
        assert pruner.prune() == {}

    def test_a_shard_that_is_announced_again_after_it_was_packed_is_not_counted_twice(
        self, engine: Engine, pruner: Pruner
    ) -> None:
        job = b.job(job_id=1)
        see(engine, 0, job)
        half = CheckpointShard(1, 0, 0, 2, 5, "/c/5", "", 1, "", NOW - 2 * HOUR, user_id=OWNER)
        whole = [CheckpointShard(1, 0, rank, 2, 9, "/c/9", "", 1, "", NOW, user_id=OWNER) for rank in range(2)]
        young = CheckpointShard(1, 0, 0, 2, 12, "/c/12", "", 1, "", NOW, user_id=OWNER)
        started = [RankStarted(1, 0, rank, 2, NOW, 10, user_id=OWNER) for rank in range(2)]
        report(engine, 0.1, job, *started, half, *whole, young)
        pruner.look()
        assert pruner.prune() == {"checkpoint_shard": 3}
        report(engine, 0.1, job, half, *whole)
        assert sizes(engine) == {5: (1, 1), 9: (2, 2), 12: (1, 1)}
        pruner.look()
        assert pruner.prune() == {"checkpoint_shard": 2}, "the newest row stays"
        assert [one.step for one in CheckpointStore(engine).complete_checkpoints(job.key)] == [9]
        report(engine, 0.1, job, msgspec.structs.replace(half, rank=1))
        assert [one.step for one in CheckpointStore(engine).complete_checkpoints(job.key)] == [5, 9]
        pruner.look()
        assert sizes(engine)[5] == (2, 2)


def test_events_parts_tickets_and_tokens_go_when_they_are_old(engine: Engine, pruner: Pruner) -> None:
    facts, tickets = FactStore(engine), TicketStore(engine)
    for age in (91, 89):
        at = NOW - age * DAY
        facts.record("n1", [b.xid_event("n1", 79, at, sequence=age).event], at, lambda _: None)
        PartStore(engine).see({f"n{age}": [Part(PartKind.BOARD, "board", "", f"{age}")]}, NOW - (age + 640) * DAY)
        GpuStore(engine).see_gpus({f"n{age}": [b.gpu(uuid=f"GPU-{age}")]}, NOW - (age + 640) * DAY)
        tickets.open_ticket(f"closed {age}", "n1", {}, NOW - (age + 640) * DAY, closed=True)
        token = NewToken(f"{age}", Role.NODE, "", "n1", 0.0, "", NOW - age * DAY)
        TokenStore(engine).add([token])
    tickets.open_ticket("open", "n1", {}, NOW - 900 * DAY)
    assert pruner.prune() == {"kernel_event": 1, "gpu_seen": 1, "part_seen": 1, "ticket": 1, "token": 1}
    assert [event.event.sequence for event in facts.kernel_events(0, 0.0)] == [89]


def test_the_newest_row_stays_and_its_number_is_not_given_again(engine: Engine, pruner: Pruner) -> None:
    """Who reads on after the last event that it knows would miss one with a lower number."""
    facts = FactStore(engine)
    for sequence in (1, 2):
        at = NOW - 200 * DAY
        facts.record("n1", [b.xid_event("n1", 79, at, sequence=sequence).event], at, lambda _: None)
    (last,) = [one.id for one in facts.kernel_events(1, 0.0)]
    pruner.prune()
    facts.record("n1", [b.xid_event("n1", 79, sequence=3).event], NOW, lambda _: None)
    assert [one.event.sequence for one in facts.kernel_events(last, 0.0)] == [3]


def test_every_table_that_grows_has_a_rule() -> None:
    forgotten = {rule.table.name for rule in RULES} | {part.table.name for rule in RULES for part in rule.parts}
    assert GROWING - forgotten == {"audit"}


def test_the_audit_is_kept_for_ever(engine: Engine, pruner: Pruner) -> None:
    fixed = {"who": "a", "role": "admin", "address": "", "action": "x", "subject": "", "reason": ""}
    for _ in range(2):
        add(engine, tables.audit, at=0.0, before={}, after={}, **fixed)
    assert pruner.prune() == {}
    assert rows(engine, tables.audit) == 2


class TestAPass:
    def test_deletes_few_rows_in_each_transaction_and_fewer_when_they_take_long(self, engine: Engine) -> None:
        for _ in range(100):
            decision(engine, 8)
        newest(engine)
        sizes, waits = [], list[float]()
        clock = StoodClock()

        def note(_connection: object, _cursor: object, statement: str, values: Any, *_more: object) -> None:
            if statement.startswith("DELETE FROM decision"):
                sizes.append(len(values))

        event.listen(engine, "before_cursor_execute", note)
        slow = Pruner(RetentionStore(engine), Retention, clock)
        assert slow.prune(waits.append) == {"decision": 100}
        assert sizes == [10] * 10
        assert waits == pytest.approx([0.03] * 10)

    def test_that_is_stopped_in_the_middle_goes_on_in_the_next_process(self, engine: Engine) -> None:
        for _ in range(100):
            decision(engine, 8)
        newest(engine)
        first = Pruner(RetentionStore(engine), Retention, StoodClock())
        assert first.prune(lambda _: first.stop()) == {"decision": 10}
        assert Pruner(RetentionStore(engine), Retention, StoodClock()).prune() == {"decision": 90}

    def test_counts_what_it_would_delete(self, engine: Engine, pruner: Pruner) -> None:
        decision(engine, 8)
        newest(engine)
        assert pruner.count() == {"decision": 1}
        assert pruner.count() == pruner.prune() == Counter({"decision": 1})

    def test_spares_what_has_changed_since_it_was_found(self, engine: Engine) -> None:
        """A job that Slurm shows again after months."""
        store, job = RetentionStore(engine), b.job(job_id=1)
        see(engine, 400, job)
        FleetStore(engine).end_attempts({}, NOW - 399 * DAY)
        see(engine, 0, b.job(job_id=2))
        before = limits(Retention(), NOW, store.jobs_seen_at())
        (rule,) = [one for one in _rules_of("job") if store.expired(one, before, 10) == [1]]
        see(engine, 0, job)
        assert store.delete(rule, before, [1]) == 0


class SetClock:
    def __init__(self) -> None:
        self.at, self.set_by = NOW, 0.0

    def now(self) -> float:
        return self.at + self.set_by

    def monotonic(self) -> float:
        return self.at

    def pass_hours(self, hours: float) -> None:
        self.at += hours * 3600


class TestPasses:
    def looked(self, engine: Engine, *steps: Callable[[SetClock], None]) -> list[int]:
        """How many old decisions there are after a look, before and after each step; each look finds a new one."""
        clock = SetClock()
        pruner, left = Pruner(RetentionStore(engine), Retention, clock), list[int]()
        for step in (lambda _: None, *steps):
            step(clock)
            decision(engine, 8)
            newest(engine)
            pruner.look()
            left.append(sum(at < NOW - DAY for at in _times(engine)))
        return left

    def test_come_every_hour_and_none_comes_in_the_first(self, engine: Engine) -> None:
        hour = lambda clock: clock.pass_hours(1)  # noqa: E731 - the same step again and again
        assert self.looked(engine, lambda clock: clock.pass_hours(0.9), hour, lambda _: None, hour) == [1, 2, 0, 1, 0]

    def test_do_not_come_for_a_day_after_the_clock_was_set(self, engine: Engine) -> None:
        """All records are old with a clock that is wrong."""

        def set_ahead(clock: SetClock) -> None:
            clock.set_by = 3 * 365 * DAY
            clock.pass_hours(2)

        def set_back(clock: SetClock) -> None:
            clock.set_by = 0.0
            clock.pass_hours(1)

        assert self.looked(engine, set_ahead, set_back, lambda clock: clock.pass_hours(23.5)) == [1, 2, 3, 4]
        assert rows(engine, tables.recovery) == 4

    def test_that_fail_are_logged_and_the_next_one_works(self, engine: Engine) -> None:
        def fail(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
            if failing and statement.startswith("DELETE"):
                raise OperationalError(statement, None, sqlite3.OperationalError("database or disk is full"))

        failing, clock = True, SetClock()
        pruner = Pruner(RetentionStore(engine), Retention, clock)
        decision(engine, 8)
        newest(engine)
        event.listen(engine, "before_cursor_execute", fail)
        clock.pass_hours(1)
        with capture_logs() as logged:
            pruner.look()
        assert [one["event"] for one in logged] == ["records_not_deleted"]
        assert rows(engine, tables.decision) == 2
        failing = False
        clock.pass_hours(1)
        pruner.look()
        assert rows(engine, tables.decision) == 1


def _times(engine: Engine) -> list[float]:
    with engine.connect() as connection:
        return list(connection.execute(select(tables.decision.c.at)).scalars())


def _rules_of(table: str) -> list[Rule]:
    return [rule for rule in RULES if rule.table.name == table]


def test_no_pass_reads_a_whole_table_that_grows(tmp_path: Path) -> None:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    pruner = Pruner(RetentionStore(engine), Retention, StoodClock())
    for _ in range(2):
        decision(engine, 8)
    with captured(engine) as asked:
        pruner.count()
        assert pruner.prune() == {"decision": 1}
    requests = "request"  # few: people make them
    found = {query: names for query, names in whole_tables_read(engine, asked).items() if names != requests}
    engine.dispose()
    assert not found, "\n".join(f"{names}: {query}" for query, names in found.items())


def test_a_transaction_looks_at_the_rows_that_it_deletes_and_at_no_others(engine: Engine) -> None:
    """A list of all jobs that are over, made within each transaction, held ticks up for a second."""
    store = RetentionStore(engine)
    for rule in RULES:
        with captured(engine) as asked:
            store.delete(rule, limits(Retention(), NOW), [1, 2])
        (query,) = [query for query in asked if query.startswith("SELECT")]
        with engine.connect() as connection:
            first, *others = plan_of(connection, query, asked[query][0])
        assert first.startswith(f"SEARCH {rule.table.name} USING")
        assert "(rowid=?" in first or " id=?" in first, first
        assert not [step for step in others if "_at<?" in step or "_at>?" in step], query


@pytest.mark.integration
@pytest.mark.parametrize(
    "scenario",
    [
        TestDecisions().test_that_act_stay_with_their_incident_and_their_recovery,
        TestJobs().test_go_with_what_they_reported_when_slurm_has_not_shown_them_for_long,
        test_events_parts_tickets_and_tokens_go_when_they_are_old,
    ],
)
def test_it_is_the_same_on_postgresql(scenario: Callable[[Engine, Pruner], None], postgres_url: str) -> None:
    engine = open_database(postgres_url)
    scenario(engine, Pruner(RetentionStore(engine), Retention, StoodClock()))
    engine.dispose()
