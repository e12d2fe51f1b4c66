"""What becomes of rows that an older release has written."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, insert, inspect, select, text

from tests import builders as b
from tests.new_database import new_database
from understudy_agent.wire import CheckpointShard, LaunchEnded, RankStarted
from understudy_controlplane.decide.transitions import violations
from understudy_controlplane.fleet.finding import HardwareDetail
from understudy_controlplane.fleet.job import Attempt, Condition, RestoreAnswer, RestoreDecision
from understudy_controlplane.fleet.node import DrainKind, NodeRecord, ValidationOrigin
from understudy_controlplane.fleet.subject import Subject
from understudy_controlplane.fleet.suspicion import Suspicion, SuspicionCause
from understudy_controlplane.store import tables
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import MIGRATIONS, migrate, newest_revision, open_database
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.incidents import IncidentStore
from understudy_controlplane.store.queries import Queries
from understudy_controlplane.xid_policy import Repair

pytestmark = pytest.mark.integration

VALIDATE = ("hold_node", "resume_node", "run_validation")
RESET = ("hold_node", "resume_node", "reset_gpu")
REBOOT = ("reboot_node", "drain_nodes")
TAKE_BACK = ("drain_nodes", "release_node")


def downgrade(engine: Engine, revision: str) -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, revision)


def start_at(engine: Engine, revision: str) -> None:
    """The database becomes an empty one of that revision. On SQLite the way down is gone once for each process."""
    if engine.url.database is None or engine.dialect.name != "sqlite":
        downgrade(engine, revision)
        return
    engine.dispose()
    shutil.copy(empty_at(revision), engine.url.database)


@functools.cache
def empty_at(revision: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="understudy-")) / "fleet.db"
    engine = open_database(new_database(path))
    downgrade(engine, revision)
    engine.dispose()
    return path


def test_the_newest_revision_is_alembics_head() -> None:
    assert newest_revision() == ScriptDirectory(str(MIGRATIONS)).get_current_head()


def add_recovery(engine: Engine, number: int, steps: tuple[str, ...], failed: str, words: str, status: str) -> None:
    """As release 0012 left it: steps up to the one that failed are done."""
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO recovery (id, kind, plan, status, fault_at, detected_at, decided_at, outcome)"
                " VALUES (:id, 'validate', '{}', :status, 1, 1, 1, :outcome)"
            ),
            {"id": number, "status": status, "outcome": "" if status == "running" else f"{failed}: {words}"},
        )
        for position, name in enumerate(steps):
            reached = steps.index(failed) if failed else len(steps)
            known = "failed" if position == reached else "done" if position < reached else "planned"
            detail = words if position == reached else "job 17 COMPLETED: did not start: tried "
            row = {"id": number, "position": position, "name": name, "status": known, "detail": detail}
            connection.execute(
                text(
                    "INSERT INTO recovery_step (recovery, position, name, status, attempts, detail)"
                    " VALUES (:id, :position, :name, :status, 1, :detail)"
                ),
                row,
            )


class TestWhetherATestBegan:
    """0013: it was read from the words of the outcome before."""

    @pytest.mark.parametrize("status", ["failed", "running"])
    @pytest.mark.parametrize(
        ("steps", "failed", "words", "never_began"),
        [
            (VALIDATE, "run_validation", "did not start: Resources", True),
            (VALIDATE, "run_validation", "tried 3 times: Access/permission denied", True),
            (VALIDATE, "hold_node", "not done after 120 s: n2 is not kept for us", True),
            (VALIDATE, "resume_node", "n2 is out of service for alice (mine): theirs", True),
            (VALIDATE, "run_validation", "job 17 FAILED: == 3 checks, 1 failed", False),
            (VALIDATE, "run_validation", "job 17 FAILED: it did not start: the fan, tried 3 times", False),
            (VALIDATE, "run_validation", "not done after 3900 s: job 17 is RUNNING", False),
            (VALIDATE, "", "", False),
            (RESET, "reset_gpu", "did not start: Resources", True),
            (RESET, "reset_gpu", "job 17 FAILED", False),
            (REBOOT, "reboot_node", "tried 3 times: no RebootProgram", False),
            (TAKE_BACK, "drain_nodes", "not done after 120 s", False),
        ],
    )
    def test_is_derived_once_from_the_words_of_before(
        self, engine: Engine, steps: tuple[str, ...], failed: str, words: str, never_began: bool, status: str
    ) -> None:
        """Also of one that had failed and was not ended yet when the older release stopped."""
        start_at(engine, "0012")
        add_recovery(engine, 1, VALIDATE, "run_validation", "job 16 FAILED", "failed")
        add_recovery(engine, 2, steps, failed, words, status)
        migrate(engine)
        with engine.connect() as connection:
            rows = connection.execute(select(tables.recovery.c.never_began).order_by(tables.recovery.c.id)).scalars()
            assert list(rows) == [False, never_began]

    def test_goes_and_comes_again_with_the_steps_that_refer_to_it(self, engine: Engine) -> None:
        start_at(engine, "0012")
        add_recovery(engine, 1, VALIDATE, "run_validation", "did not start: Resources", "failed")
        for _ in range(2):
            migrate(engine)
            with engine.connect() as connection:
                assert connection.execute(select(tables.recovery.c.never_began)).scalars().all() == [True]
                assert len(connection.execute(select(tables.recovery_step)).all()) == 3
            downgrade(engine, "0012")
            assert "never_began" not in {one["name"] for one in inspect(engine).get_columns("recovery")}


LAUNCH_END = """
INSERT INTO launch_end (job, restart_count, launch, table_row, cause, reason, progressed, counted, failed_node, blamed,
  at, received_at) VALUES (1, 0, :launch, :table_row, 'program', '', FALSE, FALSE, '', '[]', 1, 1)
"""


class TestRowsOfTheLaunchersTable:
    """They were numbers before."""

    def test_numbers_become_labels_and_labels_become_numbers(self, engine: Engine) -> None:
        job = {"id": 1, "cluster": "c", "job_id": 7, "submit_at": 0, "user": "u", "user_id": 1, "name": ""}
        waiting = b'{"type":"launch_ended","job_id":8,"restart_count":0,"launch":0,"table_row":75,"reason":"","at":1.0}'
        fact = {"job_id": 8, "node": "n1", "received_at": 1.0, "fact": waiting.decode(), "digest": "0"}
        start_at(engine, "0013")
        with engine.begin() as connection:
            connection.execute(
                insert(tables.job), [job | {"managed": True, "state": "RUNNING", "restart_count": 0, "seen_at": 1.0}]
            )
            connection.execute(text(LAUNCH_END), {"launch": 0, "table_row": 35})
            connection.execute(text(LAUNCH_END), {"launch": 1, "table_row": 70})
            connection.execute(insert(tables.waiting_fact), [fact])
        migrate(engine)
        assert self.rows(engine) == ["L40", "L130"]
        assert msgspec.json.decode(self.fact(engine), type=LaunchEnded).table_row == "L110"
        downgrade(engine, "0013")
        assert self.rows(engine) == [35, 70]
        assert msgspec.json.decode(self.fact(engine))["table_row"] == 75
        migrate(engine)
        assert self.rows(engine) == ["L40", "L130"]

    @staticmethod
    def rows(engine: Engine) -> list[object]:
        with engine.connect() as connection:
            return list(connection.execute(text("SELECT table_row FROM launch_end ORDER BY launch")).scalars())

    @staticmethod
    def fact(engine: Engine) -> str:
        with engine.connect() as connection:
            return str(connection.execute(select(tables.waiting_fact.c.fact)).scalar_one())


def add_decision(engine: Engine, number: int, row: int, subject: str = "n1", *, held_back: bool = False) -> None:
    """As release 0013 left it: the key of a decision that changes a state ends with its cause."""
    key = f"{subject}|{row}|nothing|rule" + ("|xid.79||" if held_back else "")
    values = {"id": number, "at": float(number), "key": key, "row": row, "subject": subject}
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO decision (id, at, key, table_row, rule, subject, action, because, reason, evidence)"
                " VALUES (:id, :at, :key, :row, 'xid.79', :subject, 'nothing', 'rule', '', '{}')"
            ),
            values,
        )


def add_node(engine: Engine, name: str, state: str, row: int, since: float = 50.0) -> None:
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO node (name, state, since, table_row, cleared_at, drain_reason)"
                " VALUES (:name, :state, :since, :row, 0, '')"
            ),
            {"name": name, "state": state, "row": row, "since": since},
        )


class TestWhatRowNumbersTold:
    """It was read from the number of the row that led to the node's state."""

    @pytest.mark.parametrize(
        ("state", "row", "past", "expected"),
        [
            ("in_service", 0, (), NodeRecord("n1")),
            ("suspect", 20, (20,), NodeRecord("n1", suspicions=(Suspicion(SuspicionCause.SLOW, 50.0),))),
            ("suspect", 103, (103,), NodeRecord("n1", suspicions=(Suspicion(SuspicionCause.BLACK_HOLE, 50.0),))),
            (
                "suspect",
                224,
                (140, 255, 224),
                NodeRecord("n1", suspicions=(Suspicion(SuspicionCause.HEALTH, 1.0),)),
            ),
            ("suspect", 224, (), NodeRecord("n1", suspicions=(Suspicion(SuspicionCause.HEALTH, 0.0),))),
            (
                "validating",
                255,
                (20, 255),
                NodeRecord(
                    "n1",
                    suspicions=(Suspicion(SuspicionCause.SLOW, 1.0),),
                    validation_origin=ValidationOrigin.SUSPECT_PROBED,
                ),
            ),
            ("validating", 210, (20, 10, 200, 210), NodeRecord("n1", validation_origin=ValidationOrigin.REPAIRED)),
            ("validating", 258, (220, 258), NodeRecord("n1", validation_origin=ValidationOrigin.PROBATION)),
            ("quarantined", 130, (130,), NodeRecord("n1", drain_kind=DrainKind.AT_JOB_END)),
            ("quarantined", 211, (130, 200, 211), NodeRecord("n1", drain_kind=DrainKind.NOW)),
        ],
    )
    def test_is_in_columns_of_the_node(
        self, engine: Engine, state: str, row: int, past: tuple[int, ...], expected: NodeRecord
    ) -> None:
        start_at(engine, "0013")
        for number, one in enumerate(past, 1):
            add_decision(engine, number, one)
        add_node(engine, "n1", state, row)
        for _ in range(2):
            migrate(engine)
            record = FleetStore(engine).nodes()["n1"]
            known = replace(expected, state=record.state, since=50.0, table_row=row)
            assert (record.state.value, record) == (state, known)
            assert violations(record) == []
            downgrade(engine, "0013")
        assert "suspicion" not in inspect(engine).get_table_names()

    def test_is_in_columns_of_the_decisions_that_changed_a_state(self, engine: Engine) -> None:
        start_at(engine, "0013")
        for number, row in enumerate((30, 31, 10, 241), 1):
            add_decision(engine, number, row, held_back=row == 10)
        add_decision(engine, 5, 290, "fleet")
        migrate(engine)
        table = tables.decision
        with engine.connect() as connection:
            rows = connection.execute(select(table.c.from_state, table.c.to_state).order_by(table.c.id)).all()
        assert [tuple(row) for row in rows] == [
            ("in_service", "unknown"),
            ("unknown", "in_service"),
            (None, None),
            ("in_service", "foreign_drain"),
            (None, None),
        ]


class TestManualRepair:
    """It was called "hands" before."""

    def test_is_renamed_wherever_it_is_stored_and_back(self, engine: Engine) -> None:
        start_at(engine, "0013")
        add_node(engine, "n1", "hands", 202)
        add_node(engine, "hands", "in_service", 0)
        add_decision(engine, 1, 202)
        with engine.begin() as connection:
            connection.execute(
                text(
                    "INSERT INTO recovery (id, kind, plan, status, fault_at, detected_at, decided_at, outcome) VALUES"
                    """ (1, 'hands', '{"kind": "hands", "rung": "hands", "label": "hands"}', 'running', 1, 1, 1, '')"""
                )
            )
            connection.execute(
                text("""UPDATE decision SET rule = 'repair.hands', evidence = '{"rung": "hands", "fault": "hands"}'""")
            )
        for _ in range(2):
            migrate(engine)
            assert self.stored(engine) == (
                ["in_service", "manual_repair"],
                "manual_repair",
                {"kind": "manual_repair", "rung": "manual_repair", "label": "hands"},
                "repair.manual_repair",
                {"rung": "manual_repair", "fault": "hands"},
            )
            downgrade(engine, "0013")
            assert self.stored(engine)[:2] == (["hands", "in_service"], "hands")
            assert self.stored(engine)[2]["kind"] == "hands"

    @staticmethod
    def stored(engine: Engine) -> tuple[list[str], str, dict[str, str], str, dict[str, str]]:
        recovery, decision = tables.recovery, tables.decision
        with engine.connect() as connection:
            states = connection.execute(text("SELECT state FROM node ORDER BY state")).scalars().all()
            kind, plan = connection.execute(select(recovery.c.kind, recovery.c.plan)).one()
            rule, evidence = connection.execute(select(decision.c.rule, decision.c.evidence)).one()
        return list(states), kind, plan, rule, evidence


INCIDENT = """
INSERT INTO incident (id, node, rule, signal, summary, evidence, fault_at, opened_at, outcome)
  VALUES (:id, :node, 'xid.79', 'hardware_fault', '', :evidence, 1, 1, '')
"""
INCIDENT_FINDING = """
INSERT INTO incident_finding (incident, rule, summary, evidence, at) VALUES (1, :rule, '', :evidence, 1)
"""


class TestTheOrderToALauncher:
    """Its step has another name."""

    def test_is_renamed_in_the_steps_and_in_the_plan_and_back(self, engine: Engine) -> None:
        start_at(engine, "0013")
        steps = ("drain_nodes", "tell_launcher")
        add_recovery(engine, 1, steps, "tell_launcher", "no answer", "running")
        with engine.begin() as connection:
            plan = json.dumps({"steps": steps, "launch": 2})
            connection.execute(text("UPDATE recovery SET kind = 'allocation', plan = :plan"), {"plan": plan})
        migrate(engine)
        assert self.stored(engine) == (["drain_nodes", "order_restart"],) * 2
        downgrade(engine, "0013")
        assert self.stored(engine) == (["drain_nodes", "tell_launcher"],) * 2

    @staticmethod
    def stored(engine: Engine) -> tuple[list[str], list[str]]:
        with engine.connect() as connection:
            steps = connection.execute(text("SELECT name FROM recovery_step ORDER BY position")).scalars()
            plan = connection.execute(select(tables.recovery.c.plan)).scalar_one()
            assert plan["launch"] == 2
            return list(steps), plan["steps"]


class TestDetailsOfFindings:
    """What an open incident asks for was read from its evidence before."""

    XID = '{"xid": 79, "bus_id": "0000:1b:00.0", "repair": "reset_gpu", "gpu": 3, "uuid": "GPU-3", "sequence": 5}'
    SWITCH = '{"sxid": 12028, "bus_id": "0000:c1:00.0", "repair": "dance"}'
    SLOW = '{"gpu": 0, "bus_id": ""}'

    def test_an_open_incident_keeps_its_gpu_and_its_repair(self, engine: Engine) -> None:
        start_at(engine, "0013")
        with engine.begin() as connection:
            for number, evidence in enumerate((self.XID, self.SWITCH, self.SLOW, "{}"), 1):
                row = {"id": number, "node": f"n{number}", "evidence": evidence}
                connection.execute(text(INCIDENT), row)
            for rule, evidence in (
                ("asks", '{"signal": "hardware_fault", "repair": "manual_repair"}'),
                ("is recorded", '{"signal": "recorded", "repair": "reboot"}'),
                ("asks for nothing known", '{"signal": "hardware_fault", "repair": 17}'),
            ):
                connection.execute(text(INCIDENT_FINDING), {"rule": rule, "evidence": evidence})
        migrate(engine)
        known = IncidentStore(engine).open_incidents()
        first, switch, slow, nothing = (known[Subject.of_node(f"n{number}")] for number in range(1, 5))
        gpu = "0000:1b:00.0"
        assert first.detail == HardwareDetail(repair=Repair.RESET_GPU, part=gpu, gpu=gpu, uuid="GPU-3", is_event=True)
        assert first.asked == (Repair.MANUAL_REPAIR,)
        assert switch.detail == HardwareDetail(part="0000:c1:00.0"), "no GPU is reset for a switch"
        assert slow.detail == HardwareDetail(gpu="0")
        assert nothing.detail is None

    def test_its_subject_is_its_node_and_older_releases_know_no_other(self, engine: Engine) -> None:
        start_at(engine, "0013")
        with engine.begin() as connection:
            connection.execute(text(INCIDENT), {"id": 1, "node": "n1", "evidence": "{}"})
        migrate(engine)
        (known,) = IncidentStore(engine).open_incidents().values()
        assert (known.subject, known.nodes) == (Subject.of_node("n1"), ("n1",))
        gang = {"subject_kind": "gang", "subject": "c/7@0", "rule": "hang", "signal": "gang_hung", "summary": ""}
        with engine.begin() as connection:
            times = {"fault_at": 1.0, "opened_at": 1.0}
            connection.execute(insert(tables.incident).values(id=2, evidence={}, outcome="", **gang, **times))
            found = {"incident": 2, "rule": "hang", "signal": "gang_hung", "summary": "", "evidence": {}, "at": 1.0}
            connection.execute(insert(tables.incident_finding).values(found))
        add_decision(engine, 1, 102)
        with engine.begin() as connection:
            connection.execute(text("UPDATE decision SET incident = 2"))
        downgrade(engine, "0013")
        with engine.connect() as connection:
            assert connection.execute(text("SELECT id, node FROM incident")).all() == [(1, "n1")]
            assert connection.execute(text("SELECT count(*) FROM incident_finding")).scalar_one() == 0
            assert connection.execute(text("SELECT incident FROM decision")).all() == [(None,)]
        migrate(engine)
        assert set(IncidentStore(engine).open_incidents()) == {Subject.of_node("n1")}


def test_shards_of_before_are_counted_to_their_checkpoints(engine: Engine) -> None:
    (known,) = FleetStore(engine).see_jobs([b.job()], b.NOW)
    facts = [
        CheckpointShard(7, 0, rank, 2, step, f"/c/{step}", "", 10, "", b.NOW + step, user_id=known.user_id)
        for rank, step in ((0, 20), (1, 20), (0, 40))
    ]
    started = RankStarted(7, 0, 0, 2, b.NOW, 10, user_id=known.user_id)
    FactStore(engine).record("n1", [started, *facts], b.NOW, lambda _: known)
    before = Queries(engine).checkpoints(10)
    downgrade(engine, "0019")
    migrate(engine)
    assert Queries(engine).checkpoints(10) == before
    assert [one.step for one in CheckpointStore(engine).complete_checkpoints(known.key)] == [20]


SHARD = """
INSERT INTO checkpoint_shard (job, restart_count, launch, step, rank, world_size, node, path, file, size_bytes,
    checksum, at, received_at)
  VALUES (1, 0, 0, :step, :rank, 2, :node, :path, :file, 10, 'crc32:00000000', 1, 1)
"""
CHECKPOINT = """
INSERT INTO checkpoint (job, restart_count, launch, step, path, world_size, shards, size_bytes, at)
  VALUES (1, 0, 0, :step, :path, 2, 2, 20, 1)
"""


def test_shards_of_before_are_packed_and_what_was_forgotten_counts_as_saved(engine: Engine) -> None:
    (known, forgotten) = FleetStore(engine).see_jobs([b.job(), b.job(job_id=8, nodes=("n3",))], b.NOW)
    started = [RankStarted(7, 0, rank, 2, b.NOW, 10, user_id=known.user_id) for rank in range(2)]
    FactStore(engine).record("n1", started, b.NOW, lambda _: known)
    old = RestoreDecision(RestoreAnswer.RESTORE, 5, "/old/5")
    FleetStore(engine).record_restore_point(forgotten.row, Attempt(0), old, b.NOW)
    downgrade(engine, "0036")
    with engine.begin() as connection:
        for step in (20, 40):
            for rank in range(2):
                shard = {"step": step, "rank": rank, "node": f"n{rank}", "path": "/c", "file": f"{step}-{rank}"}
                connection.execute(text(SHARD), shard)
            connection.execute(text(CHECKPOINT), {"step": step, "path": "/c"})
        before = connection.execute(text("SELECT * FROM checkpoint_shard ORDER BY id")).all()
    for _ in range(2):
        migrate(engine)
        store = CheckpointStore(engine)
        assert [one.condition.is_gone for one in store.complete_checkpoints(known.key)] == [False, False]
        assert [one.condition for one in store.complete_checkpoints(forgotten.key)] == [Condition.LOST]
        with engine.connect() as connection:
            assert len(connection.execute(select(tables.checkpoint_shard)).all()) == 1, "the newest row stays"
        downgrade(engine, "0036")
        with engine.connect() as connection:
            assert connection.execute(text("SELECT * FROM checkpoint_shard ORDER BY id")).all() == before
