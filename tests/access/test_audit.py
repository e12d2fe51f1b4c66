"""Each change by a person or a program is kept: who, from where, what, why, before and after."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from sqlalchemy import event, insert
from sqlalchemy.exc import DBAPIError, OperationalError

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import bearer, with_tokens
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.audit_writer import AuditSyslog
from understudy_controlplane.cli.main import root
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.recovery import QuarantinePlan, StepName
from understudy_controlplane.store import tables
from understudy_controlplane.store.audit import entries, followed
from understudy_controlplane.store.tokens import NewToken, TokenStore

pytestmark = pytest.mark.integration


def made_on(database: str) -> ControlPlane:
    config = b.config(mode="observe", server={"database": with_tokens(database)})
    plane = compose(config, Outside(VirtualSlurm(["n1"]), lambda _: True))
    plane.loop.tick()
    return plane


@pytest.fixture(scope="module")
def plane(shared_database: str) -> Iterator[ControlPlane]:
    with closing(made_on(shared_database)) as made:
        yield made


@pytest.fixture
def own_plane(database: str) -> Iterator[ControlPlane]:
    with closing(made_on(database)) as made:
        yield made


Shown = Callable[[], list[tuple[Any, ...]]]


@pytest.fixture
def shown(plane: ControlPlane) -> Shown:
    """The entries since the test began."""
    names = ("who", "role", "address", "action", "subject", "reason", "before", "after")
    before = len([*entries(plane.engine, 0.0)])
    return lambda: [tuple(one[name] for name in names) for one in [*entries(plane.engine, 0.0)][before:]]


def ask(plane: ControlPlane, path: str, role: Role = Role.OPERATOR, **body: object) -> int:
    client = TestClient(plane.app, client=("10.0.0.5", 40000), headers=bearer(role))
    return client.post(path, json={"reason": "cables", **body}).status_code


def test_requests_about_the_fleet_and_a_node(plane: ControlPlane, shown: Shown) -> None:
    who = ("operator", "operator", "10.0.0.5")
    assert ask(plane, "/v1/pause", now=True) == 202
    assert ask(plane, "/v1/resume") == 202
    assert ask(plane, "/v1/nodes/n1/hold") == 202
    assert ask(plane, "/v1/breaker/reset", Role.ADMIN) == 202
    paused = {"paused": "cables (operator)"}
    assert shown() == [
        (*who, "pause-now", "fleet", "cables", {"paused": ""}, paused),
        (*who, "resume", "fleet", "cables", paused, {"paused": ""}),
        (*who, "hold", "n1", "cables", {"state": "in_service"}, {"requested": "hold"}),
        ("admin", "admin", "10.0.0.5", "reset-breaker", "fleet", "cables", {"breaker": ""}, {"breaker": ""}),
    ]


def test_requests_about_a_recovery(plane: ControlPlane, shown: Shown) -> None:
    plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n1",), drain_reason="understudy: x")
    decision = Decision(10, "n1", Action.QUARANTINE, Because.RULE, "broken", plan=plan)
    plane.stores.journal.record([Change(decision)], b.NOW, {})
    (recovery,) = plane.stores.recoveries.running()
    assert ask(plane, f"/v1/recoveries/{recovery.id}/cancel") == 202
    assert [one[3:] for one in shown()] == [
        ("cancel", f"recovery {recovery.id}", "cables", {"status": "running"}, {"requested": "cancel"})
    ]


def test_a_request_that_is_refused_changed_nothing(plane: ControlPlane, shown: Shown) -> None:
    assert ask(plane, "/v1/nodes/n9/hold") == 404
    assert ask(plane, "/v1/nodes/n1/hold", Role.VIEWER) == 403
    assert shown() == []


def test_what_is_not_in_the_audit_did_not_happen(own_plane: ControlPlane) -> None:
    """Both are one transaction."""
    with own_plane.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE audit RENAME TO elsewhere")
    with pytest.raises(DBAPIError, match="audit"):
        ask(own_plane, "/v1/pause")
    assert not in_force(own_plane.stores.requests.stored(), b.NOW).pause.reason


@pytest.mark.parametrize("change", ["UPDATE audit SET who = 'x'", "DELETE FROM audit"])
def test_the_database_itself_keeps_every_entry(plane: ControlPlane, shown: Shown, change: str) -> None:
    ask(plane, "/v1/breaker/reset", Role.ADMIN)
    with pytest.raises(DBAPIError, match="append-only"), plane.engine.begin() as connection:
        connection.exec_driver_sql(change)
    assert len(shown()) == 1


def test_sessions_of_a_token_are_bounded_and_end_with_it(own_plane: ControlPlane) -> None:
    store = TokenStore(own_plane.engine)
    (token,) = (one for one in store.all() if one.label == "viewer")

    def add_session(digest: str, now: float) -> dict[str, int]:
        session = NewToken(digest, Role.VIEWER, "viewer", "", now, "login", now + 60, token.id)
        return store.add_session(session, 2, AuditEntry.on_host("a", now, "session begin", digest))

    assert [list(add_session(f"s{number}", b.NOW)) for number in range(4)] == [[], [], ["s0"], ["s1"]]
    assert set(add_session("s4", b.NOW + 60)) == {"s2", "s3"}, "they have ended"
    store.revoke([token.id], "root", b.NOW)
    assert [one for one in store.all() if one.session_of and one.revoked_at is None] == []


def add(plane: ControlPlane, number: int, action: str) -> None:
    values = {"at": b.NOW, "who": "a", "role": "host", "address": "", "subject": "x", "reason": "", "before": {}}
    with plane.engine.begin() as connection:
        connection.execute(insert(tables.audit).values(id=number, action=action, after={}, **values))


def test_an_export_goes_on_with_each_new_entry_also_after_the_database_was_away(own_plane: ControlPlane) -> None:
    add(own_plane, 50, "first")
    waits = iter(range(4))

    def fail(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("away"))

    def wait() -> bool:
        match next(waits):
            case 0:
                event.listen(own_plane.engine, "before_cursor_execute", fail)
            case 1:
                event.remove(own_plane.engine, "before_cursor_execute", fail)
                add(own_plane, 49, "committed late")
                add(own_plane, 51, "new")
            case 3:
                return False
        return True

    assert [one["action"] for one in followed(own_plane.engine, 0.0, wait)] == ["first", "committed late", "new"]
    assert [one["id"] for one in followed(own_plane.engine, 0.0, lambda: False)] == [49, 50, 51]


def test_the_audit_is_sent_to_syslog_as_lines_of_json_also_where_the_database_was_away(own_plane: ControlPlane) -> None:
    sent: list[str] = []
    logged = threading.Event()

    class Now:
        def now(self) -> float:
            return b.NOW + 3600

        def monotonic(self) -> float:
            return 0.0

    def fail(*_: object) -> None:
        event.remove(own_plane.engine, "before_cursor_execute", fail)
        raise OperationalError("SELECT", {}, Exception("away"))

    def send(line: str) -> None:
        sent.append(line)
        logged.set()

    add(own_plane, 1, "first")
    event.listen(own_plane.engine, "before_cursor_execute", fail)
    sender = AuditSyslog(own_plane.engine, send, Now(), every_seconds=0.01)
    thread = threading.Thread(target=sender.run)
    thread.start()
    assert logged.wait(30)
    sender.stop()
    thread.join(30)
    assert [json.loads(line)["action"] for line in sent] == ["first"]


def test_changes_of_tokens_are_exported_as_lines_of_json(tmp_path: Path, database: str) -> None:
    config = tmp_path / "controlplane.toml"
    config.write_text(f'cluster = "c"\n[server]\ndatabase = "{database}"\n')

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(root, [*arguments, "--config", str(config)])
        assert done.exit_code == 0, done.output
        return done.stdout

    secret = run("token", "create", "--role", "viewer", "--label", "alice").strip()
    run("token", "revoke", "--label", "alice")
    run("token", "revoke", "--node", "n1")
    run("token", "allow", "n1")
    exported = run("audit", "export")
    lines = [json.loads(line) for line in exported.splitlines()]
    assert [(one["role"], one["action"], one["subject"]) for one in lines] == [
        ("host", "token create", "alice"),
        ("host", "token revoke", "alice"),
        ("host", "token revoke", "node n1"),
        ("host", "token allow", "node n1"),
    ]
    assert all(one["who"] and one["at"] for one in lines)
    assert lines[0]["after"]["role"] == "viewer"
    assert secret not in exported
    assert run("audit", "export", "--since", "2999-01-01") == ""
