"""Mode approve: nothing is done before an operator has approved it, and then what the newest facts ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from understudy_controlplane.decide.approvals import APPROVAL_HOLDS_SECONDS
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState

pytestmark = [pytest.mark.integration, pytest.mark.patient]

SECONDS = 300


class Approver:
    """A rehearsal in mode approve, and the operator's requests."""

    def __init__(self, path: Path) -> None:
        self.rehearsal = Rehearsal(path, recovery={"approval_seconds": SECONDS})
        self.rehearsal.run(3)
        self.rehearsal.restart_control_plane(mode="approve")
        self.rehearsal.run(1)
        add_tokens(self.rehearsal.control_plane.engine)
        self.client = TestClient(self.rehearsal.control_plane.app, headers=bearer(Role.OPERATOR))
        self.rehearsal.line.effects.clear()

    def answer(self, recovery: int, verb: str) -> Any:
        return self.client.post(f"/v1/recoveries/{recovery}/{verb}", json={"reason": "seen it"})

    def recoveries(self, **parameters: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get("/v1/recoveries", params=parameters).json()["items"]
        return found

    def waiting(self, **parameters: str) -> list[dict[str, Any]]:
        return self.recoveries(status="awaits_approval", **parameters)


def test_a_gang_moves_once_an_operator_has_approved_it(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    rehearsal = site.rehearsal
    rehearsal.fail("n3")
    rehearsal.run(60)
    assert not rehearsal.line.effects
    assert rehearsal.state_of("n3") is NodeState.IN_SERVICE
    (proposal,) = site.waiting()
    assert (proposal["kind"], proposal["nodes"]) == ("pool", ["n3"])
    assert {step["status"] for step in proposal["steps"]} == {"planned"}
    (need,) = site.client.get("/v1/status").json()["needs"]
    number = proposal["id"]
    assert (need["kind"], need["subject"], need["urgent"]) == ("approval", f"recovery {number}", True)
    assert need["why"].startswith(
        f"recovery {number} awaits approval by an operator: it would move job 1 (job) of researcher off n3 to a spare "
        "of the pool, because of "
    )
    assert f"`understudy recovery approve {number} REASON`" in need["command"]
    held = site.client.get("/v1/decisions?subject=n3").json()["items"]
    assert [(one["action"], one["because"]) for one in held] == [("nothing", "awaits_approval")]

    number = site.answer(proposal["id"], "approve").json()["request"]
    assert site.client.get(f"/v1/requests/{number}").json()["status"] == "waiting"
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    assert site.client.get(f"/v1/requests/{number}").json()["status"] == "done"
    rehearsal.run_until(rehearsal.ended)
    (done,) = site.recoveries(kind="pool", status="succeeded")
    (superseded,) = site.recoveries(kind="pool", status="superseded")
    assert (superseded["id"], superseded["outcome"]) == (proposal["id"], f"recovery {done['id']}")
    assert superseded["approved_by"] == "operator"
    again = site.answer(proposal["id"], "approve")
    assert (again.status_code, again.json()["code"]) == (409, "recovery_status")


def test_what_has_changed_since_it_was_shown_is_proposed_again(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    rehearsal = site.rehearsal
    rehearsal.fail("n3")
    rehearsal.run(10)
    (shown,) = site.waiting()
    rehearsal.fake.drain_by("alice", "n6", "board swap")
    rehearsal.run(10)
    site.answer(shown["id"], "approve")
    rehearsal.run(20)
    assert not rehearsal.line.effects, "approved was a move to n6, not to another node"
    (again,) = site.waiting(kind="pool")
    assert site.client.get(f"/v1/recoveries/{shown['id']}").json()["status"] == "approved"
    site.answer(again["id"], "approve")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    assert site.client.get(f"/v1/recoveries/{shown['id']}").json()["status"] == "overtaken"
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n7"]


def test_an_approval_holds_through_a_moment_in_which_something_else_is_planned(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    rehearsal = site.rehearsal
    rehearsal.fail("n3")
    rehearsal.run(10)
    (shown,) = site.waiting()
    rehearsal.fake.drain_by("alice", "n6", "board swap")
    rehearsal.run(5)
    site.answer(shown["id"], "approve")
    rehearsal.run(5)
    rehearsal.fake.resume_node("n6")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1), 250)
    assert rehearsal.gang_nodes() == ["n1", "n2", "n4", "n6"]
    assert site.waiting(kind="pool") == []


def test_a_move_that_waits_ends_with_its_job_and_the_node_is_proposed_alone(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    rehearsal = site.rehearsal
    rehearsal.fail("n3")
    rehearsal.run(10)
    (move,) = site.waiting()
    rehearsal.fake.end(rehearsal.gang)
    rehearsal.run(10)
    ended = site.client.get(f"/v1/recoveries/{move['id']}").json()
    assert (ended["status"], ended["outcome"]) == ("overtaken", "job 1 has ended")
    (alone,) = site.waiting()
    assert (alone["kind"], alone["nodes"]) == ("quarantine", ["n3"])
    assert site.answer(move["id"], "approve").status_code == 409
    assert not rehearsal.line.effects


def test_what_is_not_approved_in_time_is_given_up_and_proposed_again_once(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    site.rehearsal.fail("n3")
    site.rehearsal.run(2.5 * SECONDS)
    statuses = [one["status"] for one in site.recoveries(node="n3")]
    assert statuses == ["awaits_approval", "expired", "expired"]
    assert not site.rehearsal.line.effects


def test_what_is_rejected_is_not_proposed_again_for_its_time(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    site.rehearsal.fail("n3")
    site.rehearsal.run(10)
    (proposal,) = site.waiting()
    assert site.answer(proposal["id"], "cancel").status_code == 202
    site.rehearsal.run(SECONDS - 60)
    assert site.waiting() == []
    (need,) = site.client.get("/v1/status").json()["needs"]
    assert (need["kind"], need["subject"]) == ("held_back", "n3")
    assert f"an operator rejected it as recovery {proposal['id']}" in need["why"]
    assert site.rehearsal.tickets == [], "an operator has looked, and is not paged for it"
    site.rehearsal.run(120)
    assert len(site.waiting()) == 1


def test_an_approval_that_comes_after_the_fault_is_gone_does_nothing(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    rehearsal = site.rehearsal
    rehearsal.fail("n6")
    rehearsal.run(10)
    (proposal,) = [one for one in site.waiting() if one["nodes"] == ["n6"]]
    rehearsal.boots["n6"] += 1
    rehearsal.run(10)
    assert site.answer(proposal["id"], "approve").status_code == 202
    rehearsal.run(APPROVAL_HOLDS_SECONDS + 20)
    assert site.client.get(f"/v1/recoveries/{proposal['id']}").json()["status"] == "overtaken"
    assert rehearsal.state_of("n6") is NodeState.IN_SERVICE
    assert not rehearsal.line.effects


def test_what_an_operator_asks_for_needs_no_second_approval(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    answer = site.client.post("/v1/nodes/n6/hold", json={"reason": "new cables"})
    assert answer.json()["outcome"] == "will_act"
    site.rehearsal.run_until(lambda: site.rehearsal.state_of("n6") is NodeState.OPERATOR_HOLD)


def test_a_viewer_approves_nothing(tmp_path: Path) -> None:
    site = Approver(tmp_path)
    site.rehearsal.fail("n3")
    site.rehearsal.run(10)
    (proposal,) = site.waiting()
    path = f"/v1/recoveries/{proposal['id']}/approve"
    assert site.client.post(path, json={"reason": "x"}, headers=bearer(Role.VIEWER)).status_code == 403
    assert site.client.post(path, json={"reason": "x", "dry_run": True}).status_code == 200
    assert len(site.waiting()) == 1
    assert proposal["approve_by"] > b.NOW
