"""Drills: what would follow if a node's driver logged an Xid, and what follows where it is injected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.api.drills import Drill
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    made = Rehearsal(tmp_path_factory.mktemp("drill"))
    add_tokens(made.control_plane.engine)
    made.run(2)
    yield made
    made.control_plane.close()


def ask(rehearsal: Rehearsal, role: Role = Role.ADMIN, **body: Any) -> Any:
    client = TestClient(rehearsal.control_plane.app, headers=bearer(role))
    return client.post("/v1/drills", json={"node": "n3", "xid": 79, "reason": "game day", **body})


def test_a_drill_shows_what_would_follow_and_changes_nothing(rehearsal: Rehearsal) -> None:
    drill = ask(rehearsal, Role.OPERATOR).json()
    assert msgspec.to_builtins(msgspec.convert(drill, Drill)) == drill, "its model has all of it"
    (decision,) = drill["decisions"]
    assert (decision["action"], decision["subject"], decision["row"]) == ("quarantine", "n3", 10)
    assert decision["reason"].startswith("DRILL: Xid 79 on GPU ")
    assert {"drain_nodes", "hold_seats", "requeue_job"} <= set(decision["steps"])
    assert (drill["request"], drill["mode"]) == (None, "act")
    effects = len(rehearsal.line.effects)
    rehearsal.run(10)
    assert len(rehearsal.line.effects) == effects
    assert ask(rehearsal, node="n5", xid=13).json()["decisions"][0]["action"] == "nothing"


def end(rehearsal: Rehearsal, role: Role = Role.OPERATOR, node: str = "n3") -> Any:
    client = TestClient(rehearsal.control_plane.app, headers=bearer(role))
    return client.post(f"/v1/nodes/{node}/end-drill", json={"reason": "the game day is over"})


def request(rehearsal: Rehearsal, number: int) -> Any:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER)).get(f"/v1/requests/{number}").json()


def problems(rehearsal: Rehearsal) -> Any:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER)).get("/v1/status").json()["problems"]


@pytest.mark.parametrize(
    ("role", "body", "status"),
    [
        (Role.VIEWER, {}, 403),
        (Role.OPERATOR, {"really": True}, 403),
        (Role.ADMIN, {"node": "n99"}, 404),
        (Role.ADMIN, {"xid": 0}, 400),
        (Role.ADMIN, {"reason": " "}, 422),
        (Role.ADMIN, {"for_seconds": 0}, 400),
    ],
)
def test_what_makes_no_sense_or_is_not_permitted_is_refused(
    role: Role, body: dict[str, Any], status: int, rehearsal: Rehearsal
) -> None:
    assert ask(rehearsal, role, **body).status_code == status


def test_a_drill_that_is_injected_moves_the_gang_and_all_of_it_is_marked(rehearsal: Rehearsal) -> None:
    TestClient(rehearsal.control_plane.app, headers=bearer(Role.ADMIN)).post(
        "/v1/mode", json={"mode": "observe", "reason": "first"}
    )
    rehearsal.run(1)
    assert ask(rehearsal).json()["decisions"][0]["action"] == "quarantine", "what mode act would do"
    assert "the control plane only observes" in ask(rehearsal, really=True).json()["detail"]
    TestClient(rehearsal.control_plane.app, headers=bearer(Role.ADMIN)).post(
        "/v1/mode", json={"mode": "act", "reason": "then"}
    )
    rehearsal.run(1)
    assert ask(rehearsal, really=True).json()["request"] is not None
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    assert "n3" not in rehearsal.gang_nodes()
    (node,) = [one for one in rehearsal.fake.nodes() if one.name == "n3"]
    assert "DRILL: Xid 79" in node.reason
    assert "n3 is quarantined, not in service" in ask(rehearsal, really=True).json()["detail"]
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))
    assert [one for one in problems(rehearsal) if one.startswith("DRILL on n3 goes on for ")]
    moved = client.get("/v1/recoveries?node=n3").json()["items"][-1]
    assert moved["reason"].startswith("xid.79: DRILL: Xid 79")
    newest = client.get("/v1/decisions?subject=n3").json()["items"][-1]
    assert "understudy drill of admin" in newest["evidence"]["kernel_log"]
    assert end(rehearsal, Role.VIEWER).status_code == 403
    assert end(rehearsal).json()["verb"] == "end-drill"
    rehearsal.run_until(lambda: rehearsal.state_of("n3") is NodeState.IN_SERVICE)
    assert problems(rehearsal) == []
    assert end(rehearsal).status_code == 409, "it has ended"


def test_a_drill_ends_by_itself_also_after_a_restart(rehearsal: Rehearsal) -> None:
    number = ask(rehearsal, really=True, node="n5", for_seconds=600).json()["request"]
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.QUARANTINED)
    assert request(rehearsal, number)["status"] == "waiting"
    rehearsal.restart_control_plane()
    rehearsal.run(580)
    assert rehearsal.state_of("n5") is NodeState.QUARANTINED
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.IN_SERVICE)
    assert request(rehearsal, number)["status"] == "done"
    rehearsal.run(30)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE, "its line counts no more"


def test_a_drill_that_a_guard_holds_back_is_over_when_it_ends(rehearsal: Rehearsal) -> None:
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.OPERATOR))
    client.post("/v1/pause", json={"reason": "a guard"})
    rehearsal.run(1)
    ask(rehearsal, really=True, node="n5")
    rehearsal.run(5)
    end(rehearsal, node="n5")
    rehearsal.run(2)
    client.post("/v1/resume", json={"reason": "the drill is over"})
    rehearsal.run(10)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE


def test_a_node_with_a_fault_of_its_own_stays_out_of_service_when_the_drill_ends(rehearsal: Rehearsal) -> None:
    ask(rehearsal, really=True, node="n5")
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.QUARANTINED)
    rehearsal.run(2)
    rehearsal.fail("n5")
    rehearsal.run(2)
    end(rehearsal, node="n5")
    rehearsal.run(30)
    assert rehearsal.state_of("n5") is NodeState.QUARANTINED
    assert problems(rehearsal) == []
