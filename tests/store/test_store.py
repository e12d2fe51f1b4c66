"""What the store promises: each fact once, half a checkpoint is none, the journal survives."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, delete, event, func, select, update
from structlog.testing import capture_logs

from tests import builders as b
from tests.new_database import new_database
from tests.store.rounds import write_round
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Action, Because, Decision, Quarantine
from understudy_controlplane.fleet.evidence import Evidence, Json
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.job import (
    Attempt,
    Condition,
    JobKey,
    JobThere,
    Reached,
    RestoreAnswer,
    RestoreDecision,
    identify,
)
from understudy_controlplane.fleet.node import NodeState, generation_of
from understudy_controlplane.fleet.recovery import (
    FirstStepOfAll,
    PoolSwapPlan,
    QuarantinePlan,
    RecoveryStatus,
    StepName,
    StepStatus,
    ValidationPlan,
)
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import StoreError, open_database, reading
from understudy_controlplane.store.facts import SIZE_BYTES_MAX, Circumstances, FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.incidents import IncidentStore
from understudy_controlplane.store.journal import Journal
from understudy_controlplane.store.launches import LaunchStore
from understudy_controlplane.store.packing import PackingStore
from understudy_controlplane.store.queries import Queries
from understudy_controlplane.store.recoveries import RecoveryStore
from understudy_controlplane.store.shard_map import unpack
from understudy_controlplane.store.tables import metadata
from understudy_wire.facts import (
    CheckpointDeleted,
    CheckpointShard,
    Fact,
    FirstStep,
    HardwareEvent,
    HardwareKind,
    LaunchEnded,
    LaunchStarted,
    RankStarted,
    ShardFile,
)
from understudy_wire.places import Place

JOB = b.job()
OWNER = JOB.slurm.user_id


def shard(
    rank: int, step: int = 20, restart_count: int = 0, world_size: int = 4, path: str = "", file: str = ""
) -> CheckpointShard:
    return CheckpointShard(
        JOB.key.job_id,
        restart_count,
        rank,
        world_size,
        step,
        path or f"/c/{step}",
        file or f"rank-{rank}",
        10,
        "crc32:00000000",
        b.NOW,
        user_id=OWNER,
    )


def started(rank: int, restart_count: int = 0, world_size: int = 4, at: float = b.NOW, launch: int = 0) -> RankStarted:
    pid = 10 + rank
    return RankStarted(JOB.key.job_id, restart_count, rank, world_size, at, pid, launch, OWNER)


def started_gang(world_size: int = 4) -> list[RankStarted]:
    return [started(rank, world_size=world_size) for rank in range(world_size)]


def first_step(rank: int, at: float, step: int = 20, launch: int = 0, joined_at: float | None = None) -> FirstStep:
    """First step of a gang of two that was requeued once."""
    return FirstStep(JOB.key.job_id, 1, rank, 2, step, at, launch, OWNER, joined_at)


def nodes_now(job_id: int, restart_count: int) -> tuple[str, ...] | None:
    return JOB.slurm.nodes if (job_id, restart_count) == (JOB.key.job_id, 0) else None


def of_no_job(number: int, user: int = OWNER) -> CheckpointShard:
    return msgspec.structs.replace(shard(0), job_id=100_000 + number, user_id=user)


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    """What is asked of the database meanwhile."""
    made: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        made.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield made
    event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
def job_row(engine: Engine) -> int:
    return FleetStore(engine).see_jobs([JOB], b.NOW)[0].row


def record(engine: Engine, row: int | None, *facts: Fact) -> list[str]:
    known = None if row is None else FleetStore(engine).known_jobs(b.CLUSTER, [JOB.key.job_id])[JOB.key.job_id]
    return FactStore(engine).record("n1", facts, b.NOW, lambda _: known)


def test_the_migrated_schema_is_the_declared_one(engine: Engine) -> None:
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_write_that_cannot_begin_is_an_error_of_the_store(tmp_path: Path) -> None:
    url = new_database(tmp_path / "fleet.db")
    first, second = open_database(url), open_database(url)
    with first.begin() as writer, second.connect() as waits:
        writer.execute(select(func.count()).select_from(tables.node))
        driver: Any = waits.connection.driver_connection
        driver.execute("PRAGMA busy_timeout=0")
        with pytest.raises(StoreError, match="database is locked"):
            waits.execute(select(func.count()).select_from(tables.node))
    for engine in (first, second):
        engine.dispose()


def test_a_commit_is_on_disk_when_it_returns(engine: Engine) -> None:
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
            return
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL


def test_a_database_can_be_opened_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/deep/fleet.db"
    first = open_database(url)
    FleetStore(first).add_nodes(["n1"], b.NOW)
    first.dispose()
    second = open_database(url)
    assert set(FleetStore(second).nodes()) == {"n1"}
    second.dispose()


def test_a_kernel_event_counts_once_however_often_it_arrives(engine: Engine) -> None:
    event = b.xid_event("n1", 79).event
    for _ in range(3):
        record(engine, None, event)
    assert [one.event for one in FactStore(engine).kernel_events(0, 0.0)] == [event]


def test_the_same_sequence_of_another_boot_is_another_event(engine: Engine) -> None:
    record(engine, None, b.xid_event("n1", 79).event, b.xid_event("n1", 79, boot_id="boot-2").event)
    assert len(FactStore(engine).kernel_events(0, 0.0)) == 2


def test_the_jobs_that_were_on_the_node_are_kept_with_a_kernel_event(engine: Engine) -> None:
    jobs = [JobThere(7, 500, "alice"), JobThere(8, 600, "bob")]
    event = b.xid_event("n1", 31).event
    FactStore(engine).record(
        "n1", [event], b.NOW, lambda _: None, Circumstances(lambda at: jobs if at == event.at else [])
    )
    (stored,) = FactStore(engine).kernel_events(0, 0.0)
    assert stored.jobs == tuple(jobs)


class TestCheckpoints:
    def test_half_of_the_ranks_make_no_checkpoint(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), shard(0), shard(1))
        assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []

    def test_all_ranks_make_one(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), *(shard(rank) for rank in range(4)))
        (checkpoint,) = CheckpointStore(engine).complete_checkpoints(JOB.key)
        assert (checkpoint.step, checkpoint.path, checkpoint.world_size) == (20, "/c/20", 4)

    def test_what_was_saved_is_known_without_the_rest_of_the_checkpoints(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), *(shard(rank) for rank in range(4)), shard(0, step=24))
        record(engine, job_row, started(0, world_size=1, at=b.NOW + 1), shard(0, step=9, world_size=1))
        store = CheckpointStore(engine)
        (one,) = store.complete_checkpoints(JOB.key)
        assert store.saves(JOB.key) == [(one.attempt, 20, one.completed_at)]

    def test_one_rank_that_repeats_itself_is_still_one(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), shard(0), shard(0), shard(0), shard(0))
        assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []

    def test_a_process_besides_the_gang_announces_no_checkpoint_for_it_and_spoils_none(
        self, engine: Engine, job_row: int
    ) -> None:
        """A script of the same user, in a world of one or in one that is larger than the gang's."""
        record(engine, job_row, *started_gang(), *(shard(rank) for rank in range(4)))
        for world in (1, 8):
            stray = started(0, world_size=world, at=b.NOW + world)
            record(engine, job_row, stray, shard(0, step=9999 + world, world_size=world))
        assert [one.step for one in CheckpointStore(engine).complete_checkpoints(JOB.key)] == [20]

    def test_what_is_written_over_in_part_is_no_longer_complete(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), *(shard(rank, path="/same") for rank in range(4)))
        record(engine, job_row, *(shard(rank, step=24, path="/own", file=f"24-{rank}") for rank in range(4)))
        record(engine, job_row, *(shard(rank, step=28, path="/own", file=f"28-{rank}") for rank in range(4)))
        assert there(engine) == [20, 24, 28]
        again = [msgspec.structs.replace(shard(rank, path="/same"), launch=1) for rank in (2, 3)]
        record(engine, job_row, *again)
        assert there(engine) == [24, 28]
        PackingStore(engine).pack(b.NOW + 4000)
        with engine.begin() as connection:
            connection.execute(delete(tables.checkpoint_shard))
        assert there(engine) == [24, 28]

    def test_a_path_that_is_used_again_each_time_has_the_newest_and_no_map_is_read_for_it(
        self, engine: Engine, job_row: int
    ) -> None:
        record(engine, job_row, *started_gang())
        for step in (20, 24, 28):
            record(engine, job_row, *(shard(rank, step=step, path="/latest") for rank in range(4)))
            PackingStore(engine).pack(b.NOW)
            assert there(engine) == [step]
        with statements(engine) as made:
            assert there(engine) == [28]
        assert not any("checkpoint_map" in text for text in made), "they were looked at when they were packed"

    def test_shards_of_different_attempts_do_not_add_up(self, engine: Engine, job_row: int) -> None:
        record(
            engine, job_row, *started_gang(), shard(0), shard(1), shard(2, restart_count=1), shard(3, restart_count=1)
        )
        assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []

    def test_a_rank_outside_its_world_completes_nothing(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), shard(0), shard(1), shard(2), shard(7))
        assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []

    def test_shards_that_come_before_their_job_is_known_wait_for_it(self, engine: Engine) -> None:
        for _ in range(2):
            record(engine, None, *started_gang(), *(shard(rank) for rank in range(4)))
        facts = FactStore(engine)
        assert facts.attach_waiting(lambda _: None, b.NOW).found == 0
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        assert facts.attach_waiting(lambda _: known, b.NOW, nodes_now).found == 8
        assert len(CheckpointStore(engine).complete_checkpoints(JOB.key)) == 1
        assert facts.attach_waiting(lambda _: known, b.NOW, nodes_now).found == 0

    def test_a_launcher_names_no_nodes_but_those_of_its_job(self, engine: Engine) -> None:
        """Its line may name thousands, and its user chooses how many lines there are."""
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        strangers = tuple(f"x{number}" for number in range(1000))
        seats, spares = ("n2", "n1", "n1", *strangers), ("n3", *strangers)
        launched = LaunchStarted(7, 0, 0, seats, spares, b.NOW, user_id=known.user_id)
        assert FactStore(engine).record("n1", [launched], b.NOW, lambda _: known) == []
        with engine.connect() as connection:
            (row,) = connection.execute(select(tables.launch_start.c.seats, tables.launch_start.c.spares))
        assert tuple(map(list, row)) == (["n2", "n1"], ["n3"])

    def test_a_launch_is_shown_once_however_often_its_user_reports_it(self, engine: Engine) -> None:
        """All beginnings with all ends of one launch would be more than any memory holds."""
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        facts: list[Fact] = []
        for at in range(30):
            facts.append(LaunchStarted(7, 0, 0, ("n1",), (), b.NOW + at, user_id=known.user_id))
            facts.append(LaunchEnded(7, 0, 0, "L10", f"{at}", b.NOW + 50 + at, user_id=known.user_id))
        facts.append(LaunchStarted(7, 0, 1, ("n2",), (), b.NOW + 90, user_id=known.user_id))
        assert FactStore(engine).record("n1", facts, b.NOW, lambda _: known) == []
        (shown,) = Queries(engine).jobs(10)
        launches = [(one["launch"], one["at"] - b.NOW, one["reason"], one["ended_at"]) for one in shown["launches"]]
        assert launches == [(0, 0.0, "29", b.NOW + 79), (1, 90.0, None, None)]

    def test_packed_nodes_are_unpacked_when_their_job_is_known_and_within_bounds(self, engine: Engine) -> None:
        facts = FactStore(engine)
        for launch, text in enumerate(("n[2-3]\nn1\n", "n[0-65535]\n" * 80_000)):
            packed = base64.b85encode(zlib.compress(text.encode())).decode()
            fact = LaunchStarted(7, 0, launch, (), (), b.NOW, user_id=1000, nodes_packed=packed)
            facts.record("n1", [fact], b.NOW, lambda _: None)
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        with capture_logs() as logs:
            assert facts.attach_waiting(lambda _: known, b.NOW, nodes_now).found == 2
        assert [one["event"] for one in logs] == ["launch_without_nodes"]
        with engine.connect() as connection:
            rows = connection.execute(select(tables.launch_start.c.seats, tables.launch_start.c.spares)).all()
        assert [tuple(row) for row in rows] == [(["n2", "n3"], ["n1"]), ([], [])]

    def test_shards_about_no_job_do_not_wait_for_ever(self, engine: Engine) -> None:
        record(engine, None, shard(0))
        facts = FactStore(engine)
        facts.attach_waiting(lambda _: None, b.NOW + 3601)
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        assert facts.attach_waiting(lambda _: known, b.NOW + 3602).found == 0

    def test_facts_about_jobs_that_do_not_exist_delay_no_others_and_take_no_more_than_their_room(
        self, engine: Engine
    ) -> None:
        facts, asked = FactStore(engine), list[int]()
        forged = [of_no_job(i) for i in range(12_000)]
        (words,) = facts.record("n1", forged, b.NOW, lambda _: None)
        assert "11744 facts of user 1000 about jobs that Slurm does not show: 256 wait already" in words
        assert facts.record("n2", [shard(rank) for rank in range(4)], b.NOW, lambda _: None) == []
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        found = facts.attach_waiting(lambda job_id: known if job_id == JOB.key.job_id else None, b.NOW, nodes_now)
        assert found.found == 4
        with statements(engine) as made:
            assert facts.attach_waiting(asked.append, b.NOW).found == 0
        assert (len(asked), made) == (256, []), "a reading of Slurm that names none of them costs no query"
        facts.attach_waiting(lambda _: None, b.NOW + 3601)
        assert facts.record("n1", forged[:200], b.NOW + 3602, lambda _: None) == [], "there is room again"

    def test_a_user_who_fills_their_room_takes_none_of_another_users_on_the_same_node(self, engine: Engine) -> None:
        facts, others = FactStore(engine), OWNER + 234
        shards = [shard(rank) for rank in range(4)]
        (words,) = facts.record("n2", [*(of_no_job(i, others) for i in range(300)), *shards], b.NOW, lambda _: None)
        assert f"44 facts of user {others}" in words
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        found = facts.attach_waiting(lambda job_id: known if job_id == JOB.key.job_id else None, b.NOW, nodes_now)
        assert found.found == 4

    def test_those_of_a_job_that_is_not_managed_are_accepted_and_not_stored(self, engine: Engine) -> None:
        others = FleetStore(engine).see_jobs([replace(JOB, managed=False)], b.NOW)[0]
        facts = FactStore(engine)
        shards = [shard(rank) for rank in range(4)]
        assert facts.record("n1", shards, b.NOW, lambda _: None) == []
        assert facts.attach_waiting(lambda _: others, b.NOW, nodes_now).found == 0
        with statements(engine) as made:
            assert facts.record("n1", shards, b.NOW, lambda _: others) == []
        assert made == []
        assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []

    def test_what_an_earlier_process_left_counts(self, engine: Engine) -> None:
        forged = [of_no_job(i) for i in range(256)]
        FactStore(engine).record("n1", forged, b.NOW, lambda _: None)
        assert len(FactStore(engine).record("n1", [of_no_job(999)], b.NOW, lambda _: None)) == 1

    def test_the_same_fact_again_takes_no_more_room(self, engine: Engine) -> None:
        facts = FactStore(engine)
        for _ in range(300):
            assert facts.record("n1", [shard(0)], b.NOW, lambda _: None) == []

    def test_a_row_that_cannot_be_read_is_set_aside_and_stops_no_other(self, engine: Engine) -> None:
        record(engine, None, *(shard(rank) for rank in range(4)))
        with engine.begin() as connection:
            table = tables.waiting_fact
            connection.execute(update(table).where(table.c.id == 1).values(fact='{"type": "of another release"}'))
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        facts = FactStore(engine)
        attached = facts.attach_waiting(lambda _: known, b.NOW, nodes_now)
        assert attached.found == 3
        (words,) = attached.unreadable
        assert "fact 1 of node n1 about job 7" in words
        with statements(engine) as made:
            assert facts.attach_waiting(lambda _: known, b.NOW + 1, nodes_now) == (0, ())
        assert made == []
        facts.attach_waiting(lambda _: known, b.NOW + 3602)
        with engine.connect() as connection:
            assert connection.execute(select(tables.waiting_fact)).all() == []

    def test_another_users_process_announces_nothing(self, engine: Engine, job_row: int) -> None:
        forged = [msgspec.structs.replace(shard(rank), user_id=1234) for rank in range(4)]
        assert len(record(engine, job_row, *forged)) == 4
        assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []

    def test_another_users_shards_are_dropped_when_their_job_turns_up(self, engine: Engine) -> None:
        record(engine, None, *(msgspec.structs.replace(shard(rank), user_id=1234) for rank in range(4)))
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        facts = FactStore(engine)
        assert facts.attach_waiting(lambda _: known, b.NOW, nodes_now).found == 0
        assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []

    def test_a_checkpoint_written_again_elsewhere_completes_there(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), shard(0), shard(1))
        again = [msgspec.structs.replace(shard(rank), path="/d/20") for rank in range(4)]
        record(engine, job_row, *again)
        assert [one.path for one in CheckpointStore(engine).complete_checkpoints(JOB.key)] == ["/d/20"]
        shown = [
            (one["path"], one["shards"], one["size_bytes"], one["complete"]) for one in Queries(engine).checkpoints(9)
        ]
        assert shown == [("/d/20", 4, 40, True), ("/c/20", 2, 20, False)]

    def test_it_stays_when_its_shards_are_packed_and_when_one_comes_again(self, engine: Engine, job_row: int) -> None:
        record(engine, job_row, *started_gang(), *(shard(rank) for rank in range(4)))
        PackingStore(engine).pack(b.NOW)
        with engine.begin() as connection:
            connection.execute(delete(tables.checkpoint_shard))
        record(engine, job_row, shard(0))
        assert there(engine) == [20]

    def test_shards_that_come_while_their_checkpoint_is_packed_are_packed_with_it(
        self, engine: Engine, job_row: int
    ) -> None:
        record(engine, job_row, *started_gang(), *(shard(rank) for rank in range(3)))
        packing = PackingStore(engine)
        assert packing.pack(b.NOW) == 0, "it is being written"
        assert packing.pack(b.NOW + 4000) == 1
        assert packing.pack(b.NOW + 4000) == 0
        record(engine, job_row, shard(3))
        assert packing.pack(b.NOW) == 1
        with engine.connect() as connection:
            packed = connection.execute(select(tables.checkpoint_map.c.shards)).scalar_one()
        assert [(one.rank, one.order) for one in unpack(packed)] == [(rank, rank + 1) for rank in range(4)]

    def test_one_that_the_training_has_deleted_is_not_restored_and_was_saved_all_the_same(
        self, engine: Engine, job_row: int
    ) -> None:
        more = (ShardFile("optimizer", 7, "crc32:00000000"),)
        saved = [msgspec.structs.replace(shard(rank), more_files=more) for rank in range(4)]
        record(engine, job_row, *started_gang(), *saved)
        PackingStore(engine).pack(b.NOW)
        (found,) = CheckpointStore(engine).unverified(0.0, b.NOW + 100, 9, 9)
        packed = CheckpointStore(engine).shards(found.row)
        assert [(one.rank, one.file, one.size_bytes) for one in packed[:2]] == [(0, "optimizer", 7), (0, "rank-0", 10)]
        assert Queries(engine).checkpoints(1)[0]["size_bytes"] == 4 * 17
        record(engine, job_row, CheckpointDeleted(7, 0, 0, 4, 20, "/c/20", b.NOW, user_id=OWNER))
        (gone,) = CheckpointStore(engine).complete_checkpoints(JOB.key)
        assert gone.condition is Condition.DELETED
        assert CheckpointStore(engine).shards(found.row) == []

    @pytest.mark.parametrize("at_once", [True, False])
    def test_one_whose_deletion_arrives_before_its_shards_is_not_restored(
        self, engine: Engine, job_row: int, at_once: bool
    ) -> None:
        """A node's reports may wait for minutes: then all of them come at once, and other nodes' later."""
        deleted, shards = CheckpointDeleted(7, 0, 0, 4, 20, "/c/20", b.NOW, user_id=OWNER), [*map(shard, range(4))]
        record(engine, job_row, *started_gang(), *(shards[:1] if at_once else ()), deleted)
        record(engine, job_row, *shards)
        assert there(engine) == []


def there(engine: Engine) -> list[int]:
    """Steps of complete checkpoints that can be restored."""
    return [one.step for one in CheckpointStore(engine).complete_checkpoints(JOB.key) if not one.condition.is_gone]


def test_a_restore_point_stays_for_its_launch(engine: Engine, job_row: int) -> None:
    fleet = FleetStore(engine)
    first, second = Attempt(1), Attempt(1, 1)
    twenty, forty = (RestoreDecision(RestoreAnswer.RESTORE, step, f"/c/{step}") for step in (20, 40))
    assert fleet.restore_point(job_row, first) is None
    fleet.record_restore_point(job_row, first, twenty, b.NOW)
    fleet.record_restore_point(job_row, first, forty, b.NOW)
    assert fleet.restore_point(job_row, first) == twenty
    assert fleet.restore_point(job_row, second) is None
    fleet.record_restore_point(job_row, second, forty, b.NOW)
    assert fleet.restore_point(job_row, second) == forty
    assert fleet.restore_point(job_row, first) == twenty


def test_what_ranks_of_a_later_launch_report_counts_again(engine: Engine, job_row: int) -> None:
    FleetStore(engine).see_jobs([b.job(restart_count=1)], b.NOW)
    launches = LaunchStore(engine)
    record(engine, job_row, *(started(rank, 1, 2, b.NOW + rank) for rank in range(2)))
    record(engine, job_row, *(first_step(rank, b.NOW + rank) for rank in range(2)))
    assert launches.processes(JOB.key, 1) == (2, 2, b.NOW + 1)
    record(engine, job_row, started(0, 1, 2, b.NOW + 9, launch=1))
    assert launches.processes(JOB.key, 1) == (1, 2, b.NOW + 9)
    first = FirstStepOfAll(20, b.NOW + 1, None)
    assert launches.first_step_at(JOB.key, 1) == first, "no rank of the later launch is that far"
    record(engine, job_row, first_step(0, b.NOW + 10, 40, launch=1))
    assert launches.first_step_at(JOB.key, 1) is None
    record(engine, job_row, first_step(1, b.NOW + 11, 40, launch=1))
    assert launches.first_step_at(JOB.key, 1) == FirstStepOfAll(40, b.NOW + 11, None)


def test_shards_of_two_launches_make_no_checkpoint(engine: Engine, job_row: int) -> None:
    early, late = shard(0), msgspec.structs.replace(shard(1), launch=1)
    others = [shard(rank) for rank in range(2, 4)]
    record(engine, job_row, *started_gang(), early, late, *others)
    assert CheckpointStore(engine).complete_checkpoints(JOB.key) == []
    record(engine, job_row, shard(1))
    assert len(CheckpointStore(engine).complete_checkpoints(JOB.key)) == 1


def test_a_launch_ends_when_the_next_is_heard_of(engine: Engine) -> None:
    fleet, queries = FleetStore(engine), Queries(engine)
    (known,) = fleet.see_jobs([JOB], b.NOW)
    count = JOB.slurm.restart_count
    fleet.see_launches({known.row: Attempt(count, 1)}, b.NOW + 5)
    fleet.end_attempts({known.row: Attempt(count, 1)}, b.NOW + 5)
    (job,) = queries.jobs(10)
    assert [(one["launch"], one["running_at"], one["ended_at"]) for one in job["attempts"]] == [
        (0, b.NOW, b.NOW + 5),
        (1, b.NOW + 5, None),
    ]


def test_a_launch_of_which_no_rank_has_reported_to_this_control_plane_goes_on(engine: Engine) -> None:
    """The control plane has started while it runs."""
    fleet, queries = FleetStore(engine), Queries(engine)
    (known,) = fleet.see_jobs([JOB], b.NOW)
    count = JOB.slurm.restart_count
    fleet.see_launches({known.row: Attempt(count, 1)}, b.NOW + 5)
    fleet.end_attempts({known.row: Attempt(count, 1)}, b.NOW + 5)

    def ended() -> list[float | None]:
        return [one["ended_at"] for one in queries.jobs(10)[0]["attempts"]]

    fleet.end_attempts({}, b.NOW + 9, {known.row: count})
    assert ended() == [b.NOW + 5, None]
    fleet.end_attempts({}, b.NOW + 9, {known.row: count + 1})
    assert ended() == [b.NOW + 5, b.NOW + 9], "it was requeued meanwhile"


def test_the_gang_has_taken_its_first_step_when_every_rank_has(engine: Engine, job_row: int) -> None:
    launches = LaunchStore(engine)
    FleetStore(engine).see_jobs([b.job(restart_count=1)], b.NOW)
    steps = [first_step(rank, b.NOW + rank, joined_at=b.NOW - 9 + rank) for rank in range(2)]
    record(engine, job_row, steps[0])
    assert launches.first_step_at(JOB.key, 1) is None
    record(engine, job_row, steps[1])
    assert launches.first_step_at(JOB.key, 1) == FirstStepOfAll(20, b.NOW + 1, b.NOW - 8)
    assert launches.first_step_at(JOB.key, 0) is None


def test_the_time_to_a_communicator_is_known_where_each_rank_names_it(engine: Engine, job_row: int) -> None:
    FleetStore(engine).see_jobs([b.job(restart_count=1)], b.NOW)
    record(engine, job_row, first_step(0, b.NOW, joined_at=b.NOW - 9), first_step(1, b.NOW + 1))
    assert LaunchStore(engine).first_step_at(JOB.key, 1) == FirstStepOfAll(20, b.NOW + 1, None)


class TestIdentity:
    """Slurm uses job ids again, and renews the submit time with every requeue."""

    def known(self, engine: Engine) -> tuple[FleetStore, JobKey]:
        fleet = FleetStore(engine)
        fleet.see_jobs([JOB], b.NOW)
        return fleet, JOB.key

    def test_a_requeued_job_stays_the_same_job(self, engine: Engine) -> None:
        fleet, key = self.known(engine)
        requeued = b.slurm_job(submit_at=900, restart_count=1)
        assert identify(b.CLUSTER, requeued, fleet.known_jobs(b.CLUSTER, [7])[7]) == key

    def test_a_new_job_of_an_old_id_is_another_job(self, engine: Engine) -> None:
        fleet, key = self.known(engine)
        other = b.slurm_job(submit_at=900, restart_count=0)
        assert identify(b.CLUSTER, other, fleet.known_jobs(b.CLUSTER, [7])[7]) != key

    def test_a_new_job_of_the_id_of_a_job_that_was_requeued_often_is_another_job(self, engine: Engine) -> None:
        fleet = FleetStore(engine)
        fleet.see_jobs([b.job(restart_count=3)], b.NOW)
        other = b.slurm_job(submit_at=int(b.NOW) + 900, restart_count=1)
        assert identify(b.CLUSTER, other, fleet.known_jobs(b.CLUSTER, [7])[7]) != JOB.key

    def test_a_requeued_job_of_another_user_is_another_job(self, engine: Engine) -> None:
        fleet, key = self.known(engine)
        other = b.slurm_job(submit_at=900, restart_count=1, user_id=4242)
        assert identify(b.CLUSTER, other, fleet.known_jobs(b.CLUSTER, [7])[7]) != key

    def test_a_job_whose_last_requeue_a_crashed_slurmctld_forgot_is_the_same_job(self, engine: Engine) -> None:
        fleet = FleetStore(engine)
        fleet.see_jobs([b.job(restart_count=2)], b.NOW)
        forgotten = b.slurm_job(submit_at=int(b.NOW) - 30, restart_count=1)
        assert identify(b.CLUSTER, forgotten, fleet.known_jobs(b.CLUSTER, [7])[7]) == JOB.key


class TestJournal:
    def swap(self, engine: Engine, job_row: int) -> RecoveryStore:
        FleetStore(engine).add_nodes([f"n{i}" for i in range(1, 9)], b.NOW)
        broken = b.node("n2", events=(b.xid_event("n2", 79),))
        snapshot = b.snapshot(broken, jobs=[JOB], spares=["n6", "n7"])
        decisions = decide(snapshot, detect(snapshot, b.config()), b.config())
        write_round(engine, decisions, b.NOW, {JOB.key: job_row})
        return RecoveryStore(engine)

    def test_a_decision_leaves_state_incident_and_plan_in_one_go(self, engine: Engine, job_row: int) -> None:
        recoveries = self.swap(engine, job_row)
        (recovery,) = recoveries.running()
        plan = b.plan_as(PoolSwapPlan, recovery.plan)
        assert (plan.seats, plan.job) == (("n1", "n3", "n4", "n6"), JOB.key)
        assert {step.status for step in recovery.steps} == {StepStatus.PLANNED}
        assert FleetStore(engine).nodes()["n2"].state is NodeState.QUARANTINED
        assert set(IncidentStore(engine).open_incidents()) == {Subject.of_node("n2")}
        assert recoveries.changed(0, (), b.NOW) == [recovery]
        assert Journal(engine).quarantined_since(0) == (Quarantine(b.NOW, "n2", "xid.79"),)

    def test_decisions_of_one_round_about_the_same_node_see_each_other(self, engine: Engine) -> None:
        fleet = FleetStore(engine)
        fleet.add_nodes(["n1", "n2"], b.NOW)
        broken = Finding(Signal.HARDWARE_FAULT, "xid.79", "n1", b.NOW, "fell off the bus")
        taken = Decision(1, "n1", Action.QUARANTINE, Because.RULE, "broken", NodeState.QUARANTINED, broken)
        taken = replace(taken, opens_incident=True)
        lifted = Decision(2, "n1", Action.NOTHING, Because.RULE, "vouched for", NodeState.IN_SERVICE)
        other = Decision(3, "n2", Action.NOTHING, Because.RULE, "not heard", NodeState.UNKNOWN)
        write_round(engine, [taken, taken, lifted, other, taken], b.NOW + 1)
        with reading(engine) as connection:
            incidents = connection.execute(select(tables.incident).order_by(tables.incident.c.id)).all()
            of_decisions = connection.execute(select(tables.decision.c.incident).order_by(tables.decision.c.id))
            first, second = incidents
            assert (first.closed_at, first.outcome, second.closed_at) == (b.NOW + 1, "vouched for", None)
            assert of_decisions.scalars().all() == [first.id, first.id, first.id, None, second.id]
        nodes = fleet.nodes()
        assert (nodes["n1"].state, nodes["n1"].table_row, nodes["n1"].cleared_at) == (
            NodeState.QUARANTINED,
            1,
            b.NOW + 1,
        )
        assert (nodes["n2"].state, nodes["n2"].since, nodes["n2"].cleared_at) == (NodeState.UNKNOWN, b.NOW + 1, 0.0)

    def test_an_incident_of_a_gang_is_opened_once_and_belongs_to_all_its_decisions(self, engine: Engine) -> None:
        FleetStore(engine).add_nodes(["n1", "n2"], b.NOW)
        findings = [
            Finding(Signal.GANG_HUNG, "hang", name, b.NOW, "no step", job=JOB.key, nodes=("n1", "n2"))
            for name in ("n1", "n2")
        ]
        decisions = [
            Decision(100, one.node, Action.NOTHING, Because.RULE, "hangs", finding=one, opens_incident=True)
            for one in findings
        ]
        write_round(engine, decisions, b.NOW + 1)
        (incident,) = IncidentStore(engine).open_incidents().values()
        assert (incident.subject, incident.nodes) == (Subject.of_gang(JOB.key), ("n1", "n2"))
        with reading(engine) as connection:
            assert connection.execute(select(tables.decision.c.incident)).scalars().all() == [incident.id] * 2
        IncidentStore(engine).close([(incident.id, "the gang finishes steps again")], b.NOW + 9)
        assert IncidentStore(engine).open_incidents() == {}
        (shown,) = Queries(engine).incidents(10)
        assert (shown["subject_kind"], shown["outcome"]) == ("gang", "the gang finishes steps again")

    @pytest.mark.parametrize(
        ("earlier", "rule", "detected"),
        [(True, "xid.79", 1.0), (True, "silence.node_dead", 30.0), (False, "xid.79", 30.0)],
        ids=["waited since", "something else before", "at once"],
    )
    def test_when_a_fault_was_found_and_when_its_recovery_was_decided_are_two_times(
        self, engine: Engine, earlier: bool, rule: str, detected: float
    ) -> None:
        FleetStore(engine).add_nodes(["n1"], b.NOW)
        broken = Finding(Signal.HARDWARE_FAULT, "xid.79", "n1", b.NOW, "fell off the bus")
        waits = Decision(1, "n1", Action.NOTHING, Because.NO_SPARE, "no spare", None, broken, opens_incident=True)
        if earlier:
            write_round(engine, [waits], b.NOW + 1)
        plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n1",), drain_reason="understudy: x")
        found = replace(broken, rule=rule)
        decided = Decision(2, "n1", Action.QUARANTINE, Because.RULE, "broken", None, found, plan=plan)
        Journal(engine).record([Change(replace(decided, opens_incident=True))], b.NOW + 31, {}, looked_at=b.NOW + 30)
        (recovery,) = RecoveryStore(engine).running()
        assert (recovery.fault_at, recovery.detected_at, recovery.decided_at) == (b.NOW, b.NOW + detected, b.NOW + 31)

    def test_decisions_that_cannot_all_be_written_leave_nothing(self, engine: Engine) -> None:
        fleet, journal = FleetStore(engine), Journal(engine)
        fleet.add_nodes(["n1"], b.NOW)
        good = Decision(3, "n1", Action.NOTHING, Because.RULE, "not heard", NodeState.UNKNOWN)
        with pytest.raises((StoreError, TypeError)):
            bad = Evidence({"what": cast(Json, object())})
            write_round(engine, [good, replace(good, evidence=bad)], b.NOW + 1)
        assert fleet.nodes()["n1"].state is NodeState.IN_SERVICE
        assert journal.keys_since(0) == set()

    def test_an_intent_counts_as_an_attempt_before_anything_happened(self, engine: Engine, job_row: int) -> None:
        recoveries = self.swap(engine, job_row)
        recovery = recoveries.running()[0]
        recoveries.intend(recovery.id, recovery.steps[0], b.NOW + 1)
        step = RecoveryStore(engine).get(recovery.id).steps[0]
        assert (step.status, step.attempts, step.intended_at) == (StepStatus.INTENDED, 1, b.NOW + 1)

    def test_every_recovery_that_is_under_way_is_read_however_many_there_are(self, engine: Engine) -> None:
        """A hundred burn-ins may be, and a fault that comes after them is to be dealt with."""
        names = [f"n{i}" for i in range(1, 2001)]
        FleetStore(engine).add_nodes(names, b.NOW)
        plans = [ValidationPlan(steps=(StepName.HOLD_NODE,), nodes=(name,), label=name) for name in names]
        decided = [Decision(254, one.label, Action.VALIDATE, Because.RULE, "asked", plan=one) for one in plans]
        write_round(engine, decided, b.NOW)
        running = RecoveryStore(engine).running()
        assert [one.plan for one in running] == plans
        assert all(len(one.steps) == 1 for one in running)

    def test_a_recovery_that_ends_early_gets_the_steps_that_undo_it(self, engine: Engine, job_row: int) -> None:
        recoveries = self.swap(engine, job_row)
        (recovery,) = recoveries.running()
        recoveries.end_early(recovery, RecoveryStatus.OVERTAKEN, "cancelled", (StepName.LIFT_DRAIN,), b.NOW)
        (ending,) = recoveries.running()
        assert (ending.ends_as, ending.outcome) == (RecoveryStatus.OVERTAKEN, "cancelled")
        assert ending.steps[:-1] == recovery.steps
        assert (ending.steps[-1].name, ending.steps[-1].position) == (StepName.LIFT_DRAIN, len(recovery.steps))

    def test_a_recovery_ends_once(self, engine: Engine, job_row: int) -> None:
        recoveries = self.swap(engine, job_row)
        (recovery,) = recoveries.running()
        recoveries.end(recovery.id, RecoveryStatus.SUCCEEDED, "", b.NOW + 1)
        recoveries.end(recovery.id, RecoveryStatus.FAILED, "too late", b.NOW + 2)
        assert recoveries.running() == []
        assert recoveries.get(recovery.id).status is RecoveryStatus.SUCCEEDED


def test_single_nodes_read_as_they_do_among_all(engine: Engine) -> None:
    fleet = FleetStore(engine)
    fleet.add_nodes(["n1", "n2", "n3"], b.NOW)
    fleet.note_seen(["n1"], ["n2", "n3"], b.NOW + 1, {})
    fleet.settled("n2")
    known = fleet.nodes()
    assert fleet.nodes_named(["n1", "n2", "unknown"]) == {name: known[name] for name in ("n1", "n2")}
    assert fleet.nodes_named([]) == {}
    assert fleet.slurmds_seen() == {"n2", "n3"}


def test_jobs_are_written_together_and_attempts_only_of_those_that_run(engine: Engine) -> None:
    fleet, queries = FleetStore(engine), Queries(engine)
    waiting = b.job(job_id=8, state="PENDING", nodes=())
    first, second = fleet.see_jobs([JOB, waiting], b.NOW)
    assert (first.key, second.key) == (JOB.key, waiting.key)
    shown = {job["job_id"]: [one["nodes"] for one in job["attempts"]] for job in queries.jobs(10)}
    assert shown == {7: [["n1", "n2", "n3", "n4"]], 8: []}
    assert [job.row for job in fleet.see_jobs([JOB, waiting], b.NOW + 1)] == [first.row, second.row]


def test_the_progress_of_many_attempts_is_written_at_once(engine: Engine) -> None:
    fleet, queries = FleetStore(engine), Queries(engine)
    other = b.job(job_id=8)
    rows = [job.row for job in fleet.see_jobs([JOB, other], b.NOW)]
    first, unknown = Attempt(0), Attempt(5)
    fleet.note_progress(
        {
            (rows[0], first): Reached(41, b.NOW + 1),
            (rows[1], first): Reached(7, b.NOW + 2, 3),
            (rows[1], unknown): Reached(9, b.NOW),
        }
    )
    fleet.note_progress({})
    assert [queries.last_step(row, 0) for row in rows] == [(41, 0), (7, 3)]
    assert fleet.places(rows) == {rows[0]: (first, Place(41)), rows[1]: (first, Place(7, 3))}
    earlier = LaunchStore(engine).earlier_allocations(rows[1], 1, ())
    assert (earlier.spent.best_step, earlier.count_from) == (4, 3), "as the program numbers it"


def test_a_hardware_event_is_stored_once_and_read_as_it_was_sent(engine: Engine) -> None:
    facts = FactStore(engine)
    event = HardwareEvent("boot-1", 5.5, HardwareKind.PORT_OUTAGE, "mlx5_0/1", 3, 40.0, "words")
    for now in (10.0, 11.0):
        facts.record("n1", [event], now, lambda _: None)
    (stored,) = facts.hardware_events(0, 0.0)
    assert (stored.node, stored.received_at, stored.event) == ("n1", 10.0, event)
    assert facts.hardware_events(stored.id, 0.0) == []
    assert facts.hardware_events(0, 10.5) == []


def test_driver_and_gpus_are_kept_with_each_event(engine: Engine) -> None:
    facts = FactStore(engine)
    events: list[Fact] = [
        b.xid_event("n1", 79).event,
        HardwareEvent("boot-1", 5.5, HardwareKind.NVML_XID, "0000:01:00.0", 79),
    ]
    machine = generation_of("570.124.06", [b.gpu(0), b.gpu(1)])
    assert machine == generation_of("570.124.06", [b.gpu(1), b.gpu(0)])
    assert machine != generation_of("570.124.06", [b.gpu(0), b.gpu(2)])
    facts.record("n1", events, b.NOW, lambda _: None, Circumstances(generation=machine))
    assert [one.generation for one in facts.kernel_events(0, 0.0)] == [machine]
    assert [one.generation for one in facts.hardware_events(0, 0.0)] == [machine]


class TestWhatNoDatabaseStores:
    """The agent and the decoder refuse it; a release that forgets one must not stop a report, a tick or a neighbour."""

    def test_a_checkpoint_larger_than_any_storage_is_counted_up_to_a_limit(self, engine: Engine, job_row: int) -> None:
        files = tuple(ShardFile(f"f{number}", 2**53) for number in range(256))
        for ranks in ((0, 1), (2, 3)):
            record(engine, job_row, *started_gang(), *(changed(rank, more_files=files) for rank in ranks))
        for rank in range(4):
            record(engine, job_row, changed(rank, step=30, size_bytes=2**53, more_files=files, path="/d"))
        with engine.connect() as connection:
            sizes = connection.execute(select(tables.checkpoint.c.size_bytes, tables.checkpoint.c.shards)).all()
        assert [tuple(row) for row in sizes] == [(SIZE_BYTES_MAX, 4)] * 2

    def test_a_fact_that_cannot_be_stored_fails_alone(self, engine: Engine) -> None:
        text = "\0" if is_postgresql(engine) else "\ud800"
        bad = [changed(1, size_bytes=2**63), changed(1, step=2**63), changed(2, path=text)]
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        with capture_logs() as logs:
            dropped = FactStore(engine).record("n1", [*bad, shard(0)], b.NOW, lambda _: known)
        assert ["CheckpointShard cannot be stored" in text for text in dropped] == [True] * 3
        assert [one["event"] for one in logs] == ["fact_not_stored"] * 3
        with engine.connect() as connection:
            assert connection.execute(select(tables.checkpoint.c.shards)).scalars().all() == [1]

    def test_one_that_waited_for_its_job_is_dropped_alone_when_it_comes(self, engine: Engine) -> None:
        facts = FactStore(engine)
        facts.record("n1", [shard(0), shard(1)], b.NOW, lambda _: None)
        with engine.begin() as connection:
            refuse_shards_of_rank(connection, 0)
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        attached = facts.attach_waiting(lambda _: known, b.NOW, nodes_now)
        assert (attached.found, ["cannot be stored" in text for text in attached.unreadable]) == (1, [True])
        assert facts.attach_waiting(lambda _: known, b.NOW, nodes_now).found == 0

    def test_a_time_that_is_none_neither_loses_what_hardware_reports_nor_is_kept(self, engine: Engine) -> None:
        event = msgspec.structs.replace(b.xid_event("n1", 79).event, at=1e308)
        known = FleetStore(engine).see_jobs([JOB], b.NOW)[0]
        late = FirstStep(7, 0, 0, 4, 1, b.NOW + 2 * 86400, user_id=known.user_id)
        (why,) = FactStore(engine).record("n1", [event, late], b.NOW, lambda _: known)
        assert "dated more than a day ahead" in why
        (stored,) = FactStore(engine).kernel_events(0, 0.0)
        assert stored.event.at == b.NOW


def changed(rank: int, **changes: Any) -> CheckpointShard:
    return msgspec.structs.replace(shard(rank), **changes)


def is_postgresql(engine: Engine) -> bool:
    return engine.dialect.name == "postgresql"


def refuse_shards_of_rank(connection: Connection, rank: int) -> None:
    """Refuses like a limit that this release does not know."""
    if is_postgresql(connection.engine):
        connection.exec_driver_sql(f"ALTER TABLE checkpoint_shard ADD CHECK (rank <> {rank})")
        return
    connection.exec_driver_sql(
        f"CREATE TRIGGER refuse BEFORE INSERT ON checkpoint_shard WHEN NEW.rank = {rank} "
        "BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
