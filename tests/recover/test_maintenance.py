"""Maintenance of a rack: its gang leaves at a checkpoint, its nodes are held, and come back by their validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.store import tables
from understudy_wire.facts import CheckpointShard, RankStarted

pytestmark = [pytest.mark.integration, pytest.mark.patient]

RACK = {"domains": {"rack r1": ["n1", "n2", "n5"]}}
TESTED: dict[str, Any] = {"validation": {"enabled": True, "probation_hours": 1}, "guards": RACK}


def start(path: Path, **config: Any) -> Rehearsal:
    rehearsal = Rehearsal(path, **config)
    add_tokens(rehearsal.control_plane.engine)
    return rehearsal


def client(rehearsal: Rehearsal, role: Role = Role.OPERATOR) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(role))


def ask(rehearsal: Rehearsal, path: str = "", **body: Any) -> Any:
    return client(rehearsal).post(f"/v1/maintenance{path}", json={"reason": "firmware", **body})


def begin(rehearsal: Rehearsal, seconds: float = 7200, **body: Any) -> Any:
    body = {"targets": ["rack r1"], "until": rehearsal.clock.now() + seconds, **body}
    return ask(rehearsal, **body)


def stages(rehearsal: Rehearsal) -> dict[str, str]:
    found = client(rehearsal).get("/v1/maintenance").json()["maintenance"]
    return {node["node"]: node["stage"] for one in found for node in one["nodes"]}


def write_checkpoint(rehearsal: Rehearsal, step: int) -> None:
    owner = next(job.user_id for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
    count, now = rehearsal.gang_state()[1], rehearsal.clock.now()
    starts = [RankStarted(1, count, rank, 2, now, 100 + rank, user_id=owner) for rank in range(2)]
    shards = [
        CheckpointShard(1, count, rank, 2, step, f"/c/{step}", f"r{rank}", 9, "0" * 64, now, user_id=owner)
        for rank in range(2)
    ]
    stores = rehearsal.control_plane.stores
    rows = stores.fleet.known_jobs("testbed", [1])
    assert stores.facts.record(rehearsal.gang_nodes()[0], [*starts, *shards], now, rows.get) == []


def test_the_whole_way(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, **TESTED)
    (plan,) = begin(rehearsal, dry_run=True).json()["maintenance"]
    assert (plan["id"], plan["status"], len(plan["nodes"])) == (0, "planned", 3)
    assert plan["spares"].startswith("1 gang leaves 2 seats, one gang after the other (job 1)")
    rehearsal.run(5)
    assert not rehearsal.line.effects, "a plan changes nothing"

    (begun,) = begin(rehearsal).json()["maintenance"]
    rehearsal.run(20)
    assert stages(rehearsal) == {"n1": "held", "n2": "held", "n5": "ready"}
    assert rehearsal.gang_state() == ("RUNNING", 0), "it waits for its checkpoint"
    rehearsal.fail("n5")
    rehearsal.run(30)
    assert rehearsal.state_of("n5") is NodeState.OPERATOR_HOLD, "nothing is done about nodes under maintenance"
    assert rehearsal.control_plane.stores.incidents.open_incidents() == {}
    rehearsal.restart_control_plane()
    rehearsal.run(3)

    write_checkpoint(rehearsal, 20)
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    assert set(rehearsal.gang_nodes()) == {"n3", "n4", "n6", "n7"}
    rehearsal.run_until(lambda: set(stages(rehearsal).values()) == {"ready"})
    assert rehearsal.pool() == ["n8"], "its nodes do not fill the pool"

    for name in ("n1", "n2", "n5"):  # as an administrator does with new firmware
        rehearsal.boots[name] += 1
    ended = ask(rehearsal, f"/{begun['id']}/end", reason="done early")
    assert (ended.status_code, ended.json()["verb"]) == (202, "end-maintenance")
    rehearsal.run_until(lambda: stages(rehearsal) == {}, 600)
    assert {rehearsal.state_of(name) for name in ("n1", "n2", "n5")} == {NodeState.PROBATION}
    table = tables.audit
    with rehearsal.control_plane.engine.connect() as connection:
        found = list(connection.execute(select(table.c.action).where(table.c.subject == f"maintenance {begun['id']}")))
    assert [one.action for one in found] == ["start-maintenance", "end-maintenance"]


def test_one_node_at_a_time_and_each_has_its_turn_when_the_one_before_is_released(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, guards=RACK)
    (begun,) = begin(rehearsal, targets=["n5", "n8"], at_once=1).json()["maintenance"]
    rehearsal.run(10)
    assert stages(rehearsal) == {"n5": "ready", "n8": "waiting"}
    assert begin(rehearsal).status_code == 409, "n5 is under maintenance already"
    path = f"/{begun['id']}"
    assert ask(rehearsal, f"{path}/pause").status_code == 202
    client(rehearsal).post("/v1/nodes/n5/release", json={"reason": "firmware is new"})
    rehearsal.run(10)
    assert stages(rehearsal) == {"n5": "done", "n8": "waiting"}
    assert ask(rehearsal, f"{path}/resume").status_code == 202
    rehearsal.run(10)
    assert stages(rehearsal) == {"n5": "done", "n8": "ready"}
    assert "n8" not in rehearsal.pool()
    ask(rehearsal, f"{path}/end")
    rehearsal.run(20)
    assert (stages(rehearsal), rehearsal.state_of("n8")) == ({}, NodeState.IN_SERVICE)
    assert ask(rehearsal, f"{path}/end").status_code == 404


def test_it_ends_by_itself_and_a_move_that_is_not_wanted_any_more_is_withdrawn(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, guards=RACK)
    begin(rehearsal, seconds=60)
    rehearsal.run(20)
    assert in_force(rehearsal.control_plane.stores.requests.stored(), 0.0).moves.keys() == {1}
    rehearsal.run(90)
    assert (stages(rehearsal), in_force(rehearsal.control_plane.stores.requests.stored(), 0.0).moves) == ({}, {})
    write_checkpoint(rehearsal, 20)
    rehearsal.run(20)
    assert rehearsal.gang_state() == ("RUNNING", 0)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"targets": ["rack r9"]}, 422),
        ({"targets": []}, 400),
        ({"until": 5.0}, 422),
        ({"reason": " "}, 422),
        ({"at_once": 0}, 400),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any], status: int, quiet: Rehearsal) -> None:
    assert begin(quiet, **change).status_code == status


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    return start(tmp_path_factory.mktemp("maintenance"), guards=RACK)


def test_its_end_returns_no_node_that_was_at_fault_and_closes_no_ticket(tmp_path: Path) -> None:
    rehearsal = start(tmp_path, guards=RACK, repair={"enabled": True, "reboot": False})
    rehearsal.fail("n5")
    rehearsal.run_until(lambda: rehearsal.state_of("n5") is NodeState.MANUAL_REPAIR)
    (begun,) = begin(rehearsal, targets=["n5", "n8"]).json()["maintenance"]
    rehearsal.run(10)
    assert stages(rehearsal) == {"n5": "waiting", "n8": "ready"}
    ask(rehearsal, f"/{begun['id']}/end")
    rehearsal.run(20)
    assert (stages(rehearsal), rehearsal.state_of("n8")) == ({}, NodeState.IN_SERVICE)
    assert rehearsal.state_of("n5") is NodeState.MANUAL_REPAIR
    assert next(node for node in rehearsal.fake.nodes() if node.name == "n5").draining
    assert len(rehearsal.control_plane.stores.tickets.open_tickets()) == 1
