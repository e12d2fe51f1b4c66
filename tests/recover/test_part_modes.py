"""Parts of the fleet with modes of their own: some nodes act while the others observe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.config import Mode, PartMode
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState

pytestmark = pytest.mark.integration


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    """The gang runs on n1 to n4, n5 is idle, the spares are n6 to n8."""
    made = Rehearsal(tmp_path)
    add_tokens(made.control_plane.engine)
    yield made
    made.control_plane.close()


def set_modes(rehearsal: Rehearsal, mode: str, **parts: str) -> None:
    """Does what a reload of the configuration does. `parts`: mode → host list."""
    entries = tuple(PartMode(nodes=nodes, mode=Mode(one)) for one, nodes in parts.items())
    current = rehearsal.control_plane.current
    current.config = current.config.model_copy(update={"mode": Mode(mode), "modes": entries})
    rehearsal.line.effects.clear()


def client(rehearsal: Rehearsal, role: Role = Role.OPERATOR) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(role))


def status(rehearsal: Rehearsal) -> Any:
    return client(rehearsal).get("/v1/status").json()


def test_the_first_nodes_act_while_the_others_observe(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "observe", act="n[1-4,6-8]")
    rehearsal.run(1)
    shown = status(rehearsal)
    assert (shown["mode"], shown["mode_nodes"]) == ("act", {"act": 7, "observe": 1})
    rehearsal.fail("n5")
    rehearsal.run(30)
    assert not rehearsal.line.effects
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run(30)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE
    assert not any("n5" in effect for effect in rehearsal.line.effects), "nor is it a spare"
    (held,) = client(rehearsal).get("/v1/decisions", params={"subject": "n5"}).json()["items"]
    assert (held["because"], "only observes n5" in held["reason"]) == ("dry_run", True)


def test_a_gang_that_lies_across_is_in_the_more_careful_mode_and_so_are_its_nodes(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "act", observe="n1")
    rehearsal.fail("n3")
    rehearsal.run(60)
    assert not rehearsal.line.effects
    assert rehearsal.gang_state() == ("RUNNING", 0)
    rehearsal.fake.cancel(rehearsal.gang)
    rehearsal.run_until(lambda: rehearsal.state_of("n3") is NodeState.QUARANTINED)


def test_a_dead_node_ends_no_job_that_lies_across(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "act", observe="n1")
    rehearsal.kill_node("n3")
    rehearsal.run(120)
    assert not rehearsal.line.effects


def test_no_spare_comes_from_a_part_that_is_only_observed(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "act", observe="n[6-7]")
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run(60)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n8"]
    assert {"n6", "n7"} <= set(rehearsal.pool()), "the pool is as it was: that, too, would be a change"


def test_in_a_part_that_approves_a_recovery_waits_for_an_operator(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "act", approve="n[1-5]")
    rehearsal.fail("n3")
    rehearsal.run(10)
    assert not rehearsal.line.effects
    operator = client(rehearsal)
    (proposal,) = operator.get("/v1/recoveries", params={"status": "awaits_approval"}).json()["items"]
    operator.post(f"/v1/recoveries/{proposal['id']}/approve", json={"reason": "so it is"})
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))


def test_what_was_known_before_a_part_acts_waits_for_an_operator(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "act", observe="n[1-5]")
    rehearsal.fail("n3")
    rehearsal.run(10)
    set_modes(rehearsal, "act")
    rehearsal.run(30)
    assert not rehearsal.line.effects
    assert "awaits approval" in str(status(rehearsal)["problems"])
    rehearsal.kill_node("n4")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 300)


def test_a_recovery_stops_where_its_part_no_longer_acts(rehearsal: Rehearsal) -> None:
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: bool(rehearsal.line.effects))
    set_modes(rehearsal, "act", observe="n3")
    rehearsal.run(20)
    assert [*rehearsal.line.effects] == ["set_reservation_nodes understudy_spares"], "the pool of the others is filled"
    set_modes(rehearsal, "act")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))


def test_a_request_about_an_observed_node_is_recorded_only(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "act", observe="n5")
    rehearsal.run(1)
    answer = client(rehearsal).post("/v1/nodes/n5/hold", json={"reason": "a new fan"})
    assert (answer.status_code, answer.json()["outcome"]) == (202, "observe_only")
    rehearsal.run(10)
    assert rehearsal.state_of("n5") is NodeState.IN_SERVICE


def test_an_administrator_limits_all_parts(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "observe", act="n[1-4,6-8]")
    answer = client(rehearsal, Role.ADMIN).post("/v1/mode", json={"mode": "observe", "reason": "a new driver"})
    assert answer.status_code == 202, answer.text
    rehearsal.run(1)
    rehearsal.fail("n3")
    rehearsal.run(30)
    assert not rehearsal.line.effects
    assert status(rehearsal)["mode_nodes"] == {}


def test_an_entry_that_names_no_node_is_a_need(rehearsal: Rehearsal) -> None:
    set_modes(rehearsal, "act", observe="m[1-64]")
    rehearsal.run(90)
    assert "`modes` has an entry for nodes m[1-64], and Slurm does not have m1" in str(status(rehearsal)["problems"])
