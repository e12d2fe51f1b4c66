"""The mode that an administrator sets: never above the configured one, at once, and over a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders as b
from tests.new_database import new_database
from tests.recover.rehearsal import Rehearsal
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import add_tokens, bearer, with_tokens
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Mode
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.identity import Role

pytestmark = pytest.mark.integration


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    made = Rehearsal(tmp_path)
    add_tokens(made.control_plane.engine)
    yield made
    made.control_plane.close()


def ask(rehearsal: Rehearsal, mode: str) -> Any:
    return asked(rehearsal.control_plane, mode)


def status(rehearsal: Rehearsal) -> Any:
    return status_of(rehearsal.control_plane)


def operator(rehearsal: Rehearsal) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.OPERATOR))


def asked(plane: ControlPlane, mode: str, role: Role = Role.ADMIN, **more: Any) -> Any:
    client = TestClient(plane.app, headers=bearer(role))
    return client.post("/v1/mode", json={"mode": mode, "reason": "a new driver", **more})


def status_of(plane: ControlPlane) -> Any:
    return TestClient(plane.app, headers=bearer(Role.VIEWER)).get("/v1/status").json()


@pytest.fixture(scope="module")
def planes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ControlPlane]]:
    """Control planes by the configured mode."""
    made = {}
    for mode in Mode:
        server = {"database": with_tokens(new_database(tmp_path_factory.mktemp("mode") / "fleet.db"))}
        outside = Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True)
        made[mode.value] = compose(b.config(mode=mode.value, server=server), outside)
    yield made
    for plane in made.values():
        plane.close()


def test_a_fault_of_mode_observe_waits_for_an_operator_in_mode_act(rehearsal: Rehearsal) -> None:
    answer = ask(rehearsal, "observe")
    assert (answer.status_code, answer.json()["verb"], answer.json()["outcome"]) == (202, "mode-observe", "will_act")
    shown = status(rehearsal)
    assert (shown["mode"], shown["mode_configured"], shown["mode_limit"]) == ("observe", "act", "a new driver (admin)")
    rehearsal.fail("n3")
    rehearsal.run(30)
    assert not rehearsal.line.effects
    assert rehearsal.gang_state()[1] == 0
    rehearsal.restart_control_plane()
    rehearsal.run(30)
    assert not rehearsal.line.effects, "over a restart"
    assert ask(rehearsal, "act").json()["verb"] == "mode-configured"
    rehearsal.run(60)
    assert (status(rehearsal)["mode"], status(rehearsal)["mode_limit"]) == ("act", "")
    assert not rehearsal.line.effects, "a person may have found it wrong meanwhile"
    assert "awaits approval" in str(status(rehearsal)["problems"])
    client = operator(rehearsal)
    (proposal,) = client.get("/v1/recoveries", params={"status": "awaits_approval"}).json()["items"]
    assert client.post(f"/v1/recoveries/{proposal['id']}/approve", json={"reason": "so it is"}).status_code == 202
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))


def test_a_fault_after_the_change_to_mode_act_waits_for_no_person(rehearsal: Rehearsal) -> None:
    ask(rehearsal, "observe")
    rehearsal.run(5)
    ask(rehearsal, "act")
    rehearsal.run(5)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))


def test_a_new_fault_of_a_node_with_an_old_incident_waits_for_no_person(rehearsal: Rehearsal) -> None:
    ask(rehearsal, "observe")
    rehearsal.fail("n3")
    rehearsal.run(5)
    ask(rehearsal, "act")
    rehearsal.run(30)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    rehearsal.restart_control_plane()
    rehearsal.run(30)
    assert rehearsal.gang_state() == ("RUNNING", 0), "over a restart"
    rehearsal.kill_node("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 300)


@pytest.mark.parametrize("dismissed_in", ["observe", "act"])
def test_what_an_operator_dismisses_is_not_acted_upon_and_does_not_come_back(
    rehearsal: Rehearsal, dismissed_in: str
) -> None:
    """A false alarm of mode observe. A new fault of the same node counts."""
    ask(rehearsal, "observe")
    rehearsal.fail("n3")
    rehearsal.run(10)
    client = operator(rehearsal)
    (incident,) = client.get("/v1/incidents", params={"open": True}).json()["items"]
    if dismissed_in == "act":
        ask(rehearsal, "act")
        rehearsal.run(10)
    answer = client.post("/v1/nodes/n3/release", json={"reason": "a driver update"})
    assert (answer.status_code, answer.json()["outcome"]) == (202, "will_act")
    assert f"incident {incident['id']} " in answer.json()["why"]
    rehearsal.run(10)
    ask(rehearsal, "act")
    rehearsal.run(60)
    closed = client.get(f"/v1/incidents/{incident['id']}").json()
    assert "a driver update" in closed["outcome"]
    assert client.get("/v1/incidents", params={"open": True}).json()["items"] == []
    assert client.get("/v1/recoveries", params={"status": "awaits_approval"}).json()["items"] == []
    assert not rehearsal.line.effects
    again = client.post("/v1/nodes/n3/release", json={"reason": "once more"})
    assert (again.status_code, again.json()["code"]) == (409, "node_state")
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))


def test_a_recovery_under_way_stops_before_its_next_effect_and_goes_on_later(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: bool(rehearsal.line.effects))
    ask(rehearsal, "observe")
    begun = rehearsal.line.effects.copy()
    rehearsal.run(20)
    assert rehearsal.line.effects == begun
    ask(rehearsal, "act")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))


def test_in_mode_approve_a_recovery_waits(rehearsal: Rehearsal) -> None:
    ask(rehearsal, "approve")
    rehearsal.fail("n3")
    rehearsal.run(10)
    assert "awaits approval" in str(status(rehearsal)["problems"])
    assert not rehearsal.line.effects


def test_a_limit_for_some_time_ends_by_itself(planes: dict[str, ControlPlane]) -> None:
    plane = planes["act"]
    asked(plane, "observe", for_seconds=600)
    until = status_of(plane)["mode_limit_until"]
    assert in_force(plane.stores.requests.stored(), until - 1).mode_limit.mode is Mode.OBSERVE
    assert in_force(plane.stores.requests.stored(), until).mode_limit.mode is Mode.ACT
    asked(plane, "act")
    assert status_of(plane)["mode"] == "act"


@pytest.mark.parametrize(
    ("configured", "mode", "more", "role", "code"),
    [
        ("observe", "act", {}, Role.ADMIN, 409),
        ("observe", "approve", {}, Role.ADMIN, 409),
        ("approve", "act", {"dry_run": True}, Role.ADMIN, 409),
        ("act", "observe", {}, Role.OPERATOR, 403),
        ("act", "rest", {}, Role.ADMIN, 400),
        ("act", "observe", {"reason": " "}, Role.ADMIN, 422),
        ("act", "act", {"for_seconds": 60}, Role.ADMIN, 422),
        ("act", "observe", {"dry_run": True}, Role.ADMIN, 200),
    ],
)
def test_what_is_refused_changes_nothing(
    planes: dict[str, ControlPlane], configured: str, mode: str, more: dict[str, Any], role: Role, code: int
) -> None:
    answer = asked(planes[configured], mode, role, **more)
    assert answer.status_code == code, answer.text
    shown = status_of(planes[configured])
    assert (shown["mode"], shown["mode_limit"]) == (configured, "")
    if code == 409:
        assert f'set mode = "{mode}" in the configuration file' in answer.json()["hint"]


def test_the_configured_mode_is_no_limit_when_the_file_has_a_higher_one_later(rehearsal: Rehearsal) -> None:
    rehearsal.restart_control_plane("approve")
    assert ask(rehearsal, "observe").status_code == 202
    assert ask(rehearsal, "approve").status_code == 202
    rehearsal.restart_control_plane(mode="act")
    assert status(rehearsal)["mode"] == "act"
