"""The disk is full: nothing that was acknowledged is lost, nothing is done that is not recorded, and all goes on."""

from __future__ import annotations

import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.store.database import StoreError

pytestmark = [pytest.mark.integration, pytest.mark.patient]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file of this process can be written: the log neither, so it is kept in memory."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    rehearsal = Rehearsal(tmp_path)
    add_tokens(rehearsal.control_plane.engine, ["n3"])
    yield rehearsal
    rehearsal.control_plane.close()
    with closing(sqlite3.connect(tmp_path / "fleet.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def soon(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_facts_are_refused_so_that_the_agent_keeps_them_and_stored_when_there_is_room(rehearsal: Rehearsal) -> None:
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.NODE, "n3"))
    event = b.xid_event("n3", 79, rehearsal.fake.now, boot_id="boot of n3").event
    report = b.report("n3", facts=[event], boot_id="boot of n3", sent_at=rehearsal.fake.now)
    body = msgspec.json.encode(report)
    with full_disk():
        refused = client.post("/v1/reports", content=body)
        assert (refused.status_code, refused.json()["hint"]) == (503, "repeat the report")
        reader = TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))
        assert reader.get("/v1/nodes").status_code == 200, "people can still look"
    assert client.post("/v1/reports", content=body).status_code == 200
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.state_of("n3") is NodeState.QUARANTINED


def test_a_recovery_stops_before_what_it_cannot_record_and_goes_on(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.line.effects)
    done = rehearsal.line.effects.copy()
    with full_disk():
        for _ in range(3):
            with pytest.raises(StoreError):
                rehearsal.run(1)
    assert rehearsal.line.effects == done, "no effect without its intent"
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_state() == ("RUNNING", 1)


def test_the_loop_says_it_and_goes_on_by_itself(rehearsal: Rehearsal) -> None:
    loop = rehearsal.control_plane.loop
    rehearsal.fake.submit("student", 1)  # has to be recorded
    rehearsal.fake.advance(5)
    with full_disk():
        thread = threading.Thread(target=loop.run)
        thread.start()
        soon(lambda: loop.pulse.errors_total > 0)
        assert "disk I/O error" in loop.pulse.last_error or "full" in loop.pulse.last_error
    try:
        soon(lambda: not loop.pulse.last_error)
    finally:
        loop.stop()
        thread.join()
