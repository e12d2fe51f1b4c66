"""An operator moves a gang: by the route, the loop and Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.fleet.recovery import RecoveryStatus

pytestmark = pytest.mark.integration


def test_the_whole_way(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    add_tokens(rehearsal.control_plane.engine)

    def ask(**body: Any) -> Any:
        client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.OPERATOR))
        return client.post(f"/v1/jobs/{rehearsal.gang}/move", json={"reason": "new cables", **body})

    assert "job 1 does not run on n5" in ask(off=["n5"]).json()["detail"]
    assert "name those that it should leave" in ask().json()["detail"]
    tried = ask(off=["n2"], dry_run=True).json()
    assert (tried["request"], tried["outcome"]) == (None, "will_act")
    assert tried["why"] == "job 1 moves to n6; it has no good checkpoint and begins again; steps lost: not known"
    answer = ask(off=["n2"])
    assert (answer.status_code, answer.json()["verb"]) == (202, "move-job")
    rehearsal.run_until(rehearsal.recoveries)
    rehearsal.restart_control_plane()
    rehearsal.run_until(rehearsal.ended)
    assert rehearsal.gang_nodes() == ["n1", "n3", "n4", "n6"]
    assert rehearsal.recoveries()[0].status is RecoveryStatus.SUCCEEDED
    assert rehearsal.state_of("n2") is NodeState.IN_SERVICE
    assert "drain_node n2" not in rehearsal.line.effects
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))
    request = client.get(f"/v1/requests/{answer.json()['request']}").json()
    assert (request["status"], request["recovery"]) == ("done", rehearsal.recoveries()[0].id)


def test_a_move_of_a_job_that_slurm_no_longer_shows_does_not_wait(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane = rehearsal.control_plane
    add_tokens(plane.engine)
    entry = AuditEntry.on_host("alice", rehearsal.clock.now(), "move-job", "job 77", "new cables")
    detail = {"off": ["n1"], "at_checkpoint": False, "submit_at": 1}
    number = plane.stores.requests.ask_audited(entry, None, detail)
    client = TestClient(plane.app, headers=bearer(Role.VIEWER))
    assert client.get(f"/v1/requests/{number}").json()["status"] == "given_up"
