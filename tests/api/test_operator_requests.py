"""What operators may ask for, and what is refused in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.store.rounds import write_round
from tests.tokens import bearer, with_tokens
from understudy_controlplane.app import Outside, compose
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.change import Change
from understudy_controlplane.fleet.decision import Action, Because, Decision
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.operator import Verb
from understudy_controlplane.fleet.recovery import QuarantinePlan, RecoveryStatus, StepName
from understudy_controlplane.store.stores import Stores

pytestmark = pytest.mark.integration

Ask = Callable[..., Any]


@contextmanager
def composed(folder: Path) -> Iterator[tuple[TestClient, Stores]]:
    server = {"database": with_tokens(new_database(folder / "fleet.db"))}
    fake = VirtualSlurm(["n1", "n2"])
    with closing(compose(b.config(mode="observe", server=server), Outside(fake, lambda _node: True))) as made:
        made.loop.tick()
        yield TestClient(made.app, headers=bearer(Role.VIEWER)), made.stores


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[tuple[TestClient, Stores]]:
    with composed(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Stores]]:
    """Shared by requests that are refused."""
    with composed(tmp_path_factory.mktemp("requests")) as made:
        yield made


@pytest.fixture
def ask(plane: tuple[TestClient, Stores]) -> Ask:
    return asks(plane[0])


def asks(client: TestClient) -> Ask:
    def post(path: str, body: Any = None, role: Role = Role.ADMIN) -> Any:
        content = body if body is not None else {"reason": "cables"}
        return client.post(path, json=content, headers=bearer(role))

    return post


def test_a_node_at_fault_gets_no_hold_that_would_return_it_with_its_fault(
    ask: Ask, plane: tuple[TestClient, Stores]
) -> None:
    fault = Decision(10, "n1", Action.QUARANTINE, Because.RULE, "broken", NodeState.QUARANTINED)
    write_round(plane[1].engine, [fault], b.NOW)
    answer = ask("/v1/nodes/n1/hold", {"reason": "cables", "for_seconds": 60})
    assert (answer.status_code, answer.json()["code"]) == (409, "node_state")
    assert "with its fault" in answer.json()["detail"]
    assert ask("/v1/nodes/n1/hold").status_code == 202


def test_in_observe_mode_the_answer_is_that_nothing_will_be_done(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    answer = ask("/v1/nodes/n1/hold")
    assert answer.status_code == 202
    shown = answer.json()
    assert "only observes" in shown.pop("why")
    assert shown.pop("request") > 0
    assert shown == {"subject": "n1", "verb": "hold", "outcome": "observe_only", "warning": ""}
    request = in_force(plane[1].requests.stored(), 0.0).nodes["n1"]
    assert (request.verb, request.reason, request.by) == (Verb.HOLD, "cables", "admin"), "not as the body claims"


def test_a_dry_run_answers_and_stores_nothing(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    for path, outcome in (("/v1/nodes/n1/hold", "observe_only"), ("/v1/pause", "will_act")):
        answer = ask(path, {"reason": "cables", "dry_run": True})
        assert (answer.status_code, answer.json()["request"], answer.json()["outcome"]) == (200, None, outcome)
    assert in_force(plane[1].requests.stored(), 0.0).nodes == {}
    assert plane[0].get("/v1/requests").json()["items"] == []
    assert in_force(plane[1].requests.stored(), b.NOW).pause.reason == ""


@pytest.mark.parametrize(
    ("path", "body", "role", "status"),
    [
        ("/v1/nodes/n9/hold", None, Role.OPERATOR, 404),
        ("/v1/nodes/n1/release", None, Role.OPERATOR, 409),
        ("/v1/nodes/n1/hold", None, Role.VIEWER, 403),
        ("/v1/nodes/n1/hold", {"reason": " "}, Role.OPERATOR, 422),
        ("/v1/nodes/n1/hold", {}, Role.OPERATOR, 400),
        ("/v1/nodes/n1/retire", [], Role.OPERATOR, 400),
        ("/v1/breaker/reset", None, Role.OPERATOR, 403),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(
    untouched: tuple[TestClient, Stores], path: str, body: Any, role: Role, status: int
) -> None:
    client, stores = untouched
    answer = asks(client)(path, body, role)
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert in_force(stores.requests.stored(), 0.0).nodes == {}


def test_the_breaker_and_a_pause_are_switched_apart(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    client = plane[0]
    assert ask("/v1/pause").json()["verb"] == "pause"
    assert client.get("/v1/status").json()["paused"] == "cables (admin)"
    assert ask("/v1/breaker/reset").json()["verb"] == "reset-breaker"
    assert client.get("/v1/status").json()["paused"] == "cables (admin)"
    assert ask("/v1/resume").json()["outcome"] == "will_act"
    assert client.get("/v1/status").json()["paused"] == ""
    verbs = [(one["verb"], one["status"]) for one in client.get("/v1/requests").json()["items"]]
    assert verbs == [("resume", "done"), ("reset-breaker", "done"), ("pause", "done")]


def test_a_pause_for_some_time_ends_by_itself(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    ask("/v1/pause", {"reason": "fire", "for_seconds": 600})
    until = plane[0].get("/v1/status").json()["paused_until"]
    assert in_force(plane[1].requests.stored(), until - 1).pause.reason == "fire (admin)"
    assert in_force(plane[1].requests.stored(), until).pause.reason == ""
    assert ask("/v1/pause", {"reason": "fire", "for_seconds": 0}).status_code == 400
    assert ask("/v1/nodes/n1/retire", {"reason": "old", "for_seconds": 5}).status_code == 400, "only a hold has an end"


def test_a_pause_may_halt_what_is_under_way(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    body = {"reason": "fire", "now": True}
    assert ask("/v1/pause", body).json()["verb"] == "pause-now"
    assert in_force(plane[1].requests.stored(), b.NOW).pause.halts
    assert ask("/v1/pause").status_code == 202
    assert not in_force(plane[1].requests.stored(), b.NOW).pause.halts, "the last one counts"
    assert ask("/v1/nodes/n1/hold", body).status_code == 400, "only a pause has it"


def test_a_recovery_under_way_is_cancelled_once(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    client, stores = plane
    plan = QuarantinePlan(steps=(StepName.DRAIN_NODES,), nodes=("n1",), drain_reason="understudy: x")
    decision = Decision(10, "n1", Action.QUARANTINE, Because.RULE, "broken", plan=plan)
    stores.journal.record([Change(decision)], b.NOW, {})
    (recovery,) = stores.recoveries.running()
    path = f"/v1/recoveries/{recovery.id}/cancel"
    assert ask("/v1/recoveries/999/cancel").status_code == 404
    assert ask(path, {"reason": ""}).status_code == 422
    assert ask(path, role=Role.SIGNALS).status_code == 403
    assert in_force(stores.requests.stored(), 0.0).cancels == {}
    answer = ask(path)
    assert (answer.status_code, answer.json()["subject"]) == (202, f"recovery {recovery.id}")
    assert answer.json()["outcome"] == "observe_only", "in mode observe no recovery goes on"
    number = answer.json()["request"]
    assert client.get(f"/v1/requests/{number}").json()["status"] == "waiting"
    request = in_force(stores.requests.stored(), 0.0).cancels[recovery.id]
    assert (request.verb, request.reason, request.by) == (Verb.CANCEL, "cables", "admin")
    stores.recoveries.end_early(recovery, RecoveryStatus.CANCELLED, "cancelled", (), b.NOW)
    assert in_force(stores.requests.stored(), 0.0).cancels == {}
    assert client.get(f"/v1/requests/{number}").json()["why"] == "it is being undone"
    again = ask(path)
    assert again.status_code == 409
    assert "is cancelled: there is nothing to cancel" in again.json()["detail"]
    assert again.json()["code"] == "recovery_status"
    assert client.get("/v1/recoveries").json()["items"][0]["status"] == "running", "until what was begun is undone"


def test_routes_show_tickets_gpus_and_the_breaker(plane: tuple[TestClient, Stores]) -> None:
    client, stores = plane
    stores.gpus.see_gpus({"n1": [b.gpu(0)]}, b.NOW)
    stores.tickets.open_ticket("n1-17", "n1", {"why": "broken"}, b.NOW)
    assert client.get("/v1/gpus").json()["items"][0]["node"] == "n1"
    assert client.get("/v1/tickets").json()["items"][0]["body"] == {"why": "broken"}
    assert client.get("/v1/status").json()["breaker"] == ""
    metrics = client.get("/metrics").text
    assert "understudy_breaker_open 0.0" in metrics
    assert 'understudy_nodes{state="operator_hold"} 0.0' in metrics


def test_an_operator_agrees_with_what_was_only_observed(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    client, stores = plane
    found = Finding(Signal.HARDWARE_FAULT, "xid.79", "n1", b.NOW, "fell off the bus")
    held = Decision(10, "n1", Action.NOTHING, Because.DRY_RUN, "broken", finding=found)
    stores.journal.record([Change(held)], b.NOW, {})
    number = client.get("/v1/decisions").json()["items"][0]["id"]
    rule = {"rule": "xid.79", "cases": 1, "agreed": 0, "disagreed": 0, "precision": None, "ready": False}
    assert client.get("/v1/observed?since=0").json() == {"since": 0.0, "rules": [rule], "ready": []}
    assert ask(f"/v1/decisions/{number}/disagree").status_code == 202
    assert client.get("/v1/observed?since=0").json()["rules"] == [rule | {"disagreed": 1, "precision": 0.0}]
    assert ask(f"/v1/decisions/{number}/agree").json()["subject"] == f"decision {number}"
    assert client.get("/v1/observed?since=0").json()["rules"] == [rule | {"agreed": 1, "precision": 1.0}]
    assert client.get("/v1/requests").json()["items"][0]["status"] == "done"
    assert ask("/v1/decisions/999/agree").status_code == 404
    reported = [client.get(f"/v1/report?since=0&until={b.NOW + more}").json()["observed"] for more in (0, 1)]
    assert [[one["rule"] for one in rules] for rules in reported] == [[], ["xid.79"]]


def test_a_ticket_is_acknowledged_and_closed_once(ask: Ask, plane: tuple[TestClient, Stores]) -> None:
    client, stores = plane
    stores.tickets.open_ticket("n1-17", "n1", {"why": "broken"}, b.NOW)
    assert ask("/v1/tickets/1/ack", role=Role.OPERATOR).json()["subject"] == "ticket 1"
    shown = client.get("/v1/tickets/1").json()
    assert (shown["acknowledged_by"], shown["closed_at"]) == ("operator", None)
    assert ask("/v1/tickets/1/close", {"reason": "x", "dry_run": True}).json()["request"] is None
    assert ask("/v1/tickets/1/close").status_code == 202
    assert client.get("/v1/tickets?open=true").json()["items"] == []
    again = ask("/v1/tickets/1/ack")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")
    assert ask("/v1/tickets/2/ack").status_code == 404
