"""No query of a tick, a start, a report or a route reads a whole table that grows, by SQLite's own plan of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text

from tests import builders as b
from tests.new_database import new_database
from tests.recover.rehearsal import Rehearsal
from tests.store.query_plans import Statements, captured, read_all, request_all, whole_tables_read
from tests.tokens import add_tokens, as_user, bearer
from understudy_controlplane.config import Notify
from understudy_controlplane.fleet.event import Cursor
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.events import EventStore
from understudy_wire.facts import Anomaly, AnomalyKind, CheckpointShard, Fact, FirstStep, RankStarted

pytestmark = pytest.mark.integration

OF_USERS = ("jobs", "jobs/1", "checkpoints", "checkpoints?job=1", "recoveries", "requests", "nodes")
REASON = {"reason": "a test of the queries"}
VALUES = {"job_id": ("1",), "node": ("n3",), "names": ("n[1-4]",), "job": ("1",), "limit": ("10",)}


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("plans"), repair={"enabled": True}, validation={"enabled": True})
    add_tokens(rehearsal.control_plane.engine, ["n1"])
    yield rehearsal
    rehearsal.control_plane.close()


@pytest.fixture(scope="module")
def statements(rehearsal: Rehearsal) -> Statements:
    """Statements of a gang that is moved, a node that is repaired, requests of operators, a restart, and all reads."""
    plane = rehearsal.control_plane
    with captured(plane.engine) as first:
        _report(rehearsal)
        rehearsal.fail("n3")
        rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
        rehearsal.run(1)
        _report(rehearsal)
        rehearsal.run_until(rehearsal.ended)
        operator = TestClient(plane.app, headers=bearer(Role.ADMIN))
        plane.stores.tickets.open_ticket("n3-1", "n3", {}, rehearsal.clock.now())
        assert request_all(plane.app, operator, VALUES, REASON, {"/v1/mode": {"mode": "act"}}) > 20
        for route in ("resume", "jobs/1/resume", "nodes/n3/release", "jobs/1/trust-checkpoints"):
            operator.post(f"/v1/{route}", json=REASON)
        work = {"targets": ["n8"], "until": rehearsal.clock.now() + 60, **REASON}
        assert operator.post("/v1/maintenance", json=work).status_code == 200
        for resolved in (False, True):
            signal = {"kind": "leak", "targets": ["n3"], "resolved": resolved}
            assert operator.post("/v1/signals", json=signal).status_code == 200
        rehearsal.run(400)
        plane.notifier.look()
        _fail_again(rehearsal)
        for _ in range(3):
            rehearsal.run(10)
            plane.notifier.look()
    rehearsal.restart_control_plane()
    plane = rehearsal.control_plane
    with captured(plane.engine, plane.reads.engine) as then:
        _report(rehearsal)
        rehearsal.run(2)
        client = TestClient(plane.app, headers=bearer(Role.ADMIN))
        assert read_all(plane.app, client, VALUES) > 10
        owner = next(job.user_id for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
        user = TestClient(plane.app, headers=as_user(plane.admission, owner))
        assert all(user.get(f"/v1/{path}").is_success for path in OF_USERS)
        events = EventStore(plane.reads.engine)
        events.newest(rehearsal.clock.now())
        assert len(events.after(Cursor.of({}), 500, rehearsal.clock.now())) > 10
    return first | then


def _fail_again(rehearsal: Rehearsal) -> None:
    """Fails with a receiver of notifications that is never there."""
    plane = rehearsal.control_plane
    receivers = {
        "hook": {"kind": "webhook", "url_file": "/none", "secret_file": "/none"},
        "alerts": {"kind": "alertmanager", "url_file": "/none"},
    }
    plane.current.config = plane.current.config.model_copy(
        update={"notify": Notify.model_validate({"receivers": receivers, "group_seconds": 1})}
    )
    rehearsal.fail(rehearsal.gang_nodes()[0])


def _report(rehearsal: Rehearsal) -> None:
    """What ranks announce, with the owner's id, and what the control plane then answers."""
    plane, now = rehearsal.control_plane, rehearsal.clock.now()
    owner = next(job.user_id for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    count = rehearsal.gang_state()[1]
    shard = CheckpointShard(1, count, 0, 1, 5, "/c/5", "r0", 10, "crc32:00000000", now, user_id=owner)
    facts: list[Fact] = [
        RankStarted(1, count, 0, 1, now, 100, user_id=owner),
        FirstStep(1, count, 0, 1, 0, now, user_id=owner),
        Anomaly(1, count, 0, 1, AnomalyKind.LOSS_NAN, 3, now, user_id=owner),
        shard,
        CheckpointShard(999, 0, 0, 1, 5, "/c/5", "r0", 10, "crc32:00000000", now, user_id=owner),
    ]
    known = plane.stores.fleet.known_jobs(b.CLUSTER, [1])
    plane.stores.facts.record(rehearsal.gang_nodes()[0], facts, now, known.get)
    plane.stores.launches.earlier_allocations(1, count, ())


def test_no_query_reads_a_whole_table_that_grows(rehearsal: Rehearsal, statements: Statements) -> None:
    assert len(statements) > 80
    found = whole_tables_read(rehearsal.control_plane.engine, statements)
    assert not found, "\n".join(f"{names}: {query}" for query, names in found.items())


def test_a_query_that_does_is_found(tmp_path: Path) -> None:
    engine: Engine = open_database(new_database(tmp_path / "fleet.db"))
    with closing(engine.raw_connection()), captured(engine) as made, engine.connect() as connection:
        connection.execute(text("SELECT d.reason FROM decision AS d WHERE d.reason = 'x'"))
        connection.execute(text("SELECT id FROM decision WHERE id > 5 ORDER BY id"))
    assert list(whole_tables_read(engine, made).values()) == ["decision"]
    engine.dispose()
