"""What people may ask for one job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import as_user, bearer, with_tokens
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.decide.requests_in_force import in_force
from understudy_controlplane.fleet.identity import Role

pytestmark = pytest.mark.integration

Ask = Callable[..., Any]


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    server = {"database": with_tokens(new_database(tmp_path / "fleet.db"))}
    fake = VirtualSlurm(["n1", "n2"])
    fake.submit("researcher", 2, comment="understudy")
    fake.submit("researcher", 1, comment="")
    with closing(compose(b.config(mode="act", server=server), Outside(fake, lambda _node: True))) as made:
        made.loop.tick()
        yield made


@pytest.fixture
def client(plane: ControlPlane) -> TestClient:
    return TestClient(plane.app, headers=bearer(Role.VIEWER))


@pytest.fixture
def ask(client: TestClient) -> Ask:
    def post(path: str, body: Any = None, role: Role = Role.OPERATOR) -> Any:
        return client.post(f"/v1/jobs/{path}", json=body or {"reason": "an upgrade"}, headers=bearer(role))

    return post


def test_a_job_is_paused_shown_and_resumed(ask: Ask, client: TestClient, plane: ControlPlane) -> None:
    answer = ask("1/pause")
    assert (answer.status_code, answer.json()["subject"], answer.json()["outcome"]) == (202, "job 1", "will_act")
    plane.loop.tick()
    assert client.get("/v1/jobs/1").json()["paused"] == "an upgrade (operator)"
    assert client.get("/v1/status").json()["paused_jobs"] == [1]
    assert client.get("/v1/requests").json()["items"][0]["status"] == "done"
    assert ask("1/resume").status_code == 202
    plane.loop.tick()
    assert client.get("/v1/jobs/1").json()["paused"] == ""
    assert client.get("/v1/status").json()["paused_jobs"] == []
    assert in_force(plane.stores.requests.stored(), 0.0).job_pauses == {}


def test_the_pause_of_a_job_ends_by_itself(ask: Ask, client: TestClient, plane: ControlPlane) -> None:
    ask("1/pause", {"reason": "an upgrade", "for_seconds": 600})
    until = client.get("/v1/jobs/1").json()["paused_until"]
    assert in_force(plane.stores.requests.stored(), until - 1).job_pauses[1].words == "an upgrade (operator)"
    assert in_force(plane.stores.requests.stored(), until).job_pauses == {}


def test_a_dry_run_stores_nothing(ask: Ask, plane: ControlPlane) -> None:
    assert ask("1/pause", {"reason": "x", "dry_run": True}).status_code == 200
    assert in_force(plane.stores.requests.stored(), 0.0).job_pauses == {}


def test_a_user_ends_no_pause_of_an_operator(ask: Ask, client: TestClient, plane: ControlPlane) -> None:
    """Neither by a resume nor by a shorter pause."""
    user = as_user(plane.admission, plane.stores.fleet.known_jobs(b.CLUSTER, [1])[1].user_id, "ann")

    def by_user(verb: str) -> int:
        return client.post(f"/v1/jobs/1/{verb}", json={"reason": "mine"}, headers=user).status_code

    ask("1/pause")
    assert [by_user(verb) for verb in ("resume", "pause")] == [403, 403]
    assert in_force(plane.stores.requests.stored(), 0.0).job_pauses[1].words == "an upgrade (operator)"
    ask("1/resume")
    assert [by_user(verb) for verb in ("pause", "pause", "resume")] == [202, 202, 202]
    assert [by_user("pause"), ask("1/resume").status_code] == [202, 202]


def test_a_user_pauses_their_own_job_and_no_other(client: TestClient, plane: ControlPlane) -> None:
    job = plane.stores.fleet.known_jobs(b.CLUSTER, [1])[1]
    body = {"reason": "an upgrade"}
    other = client.post("/v1/jobs/1/pause", json=body, headers=as_user(plane.admission, job.user_id + 1, "eve"))
    assert (other.status_code, "job 1 is not known" in other.json()["detail"]) == (404, True)
    own = client.post("/v1/jobs/1/pause", json=body, headers=as_user(plane.admission, job.user_id, "researcher"))
    assert own.status_code == 202
    own_label = f"user researcher ({job.user_id})"
    assert in_force(plane.stores.requests.stored(), 0.0).job_pauses[1].by == own_label


@pytest.mark.parametrize(
    ("path", "role", "status", "words"),
    [
        ("9/pause", Role.OPERATOR, 404, "job 9 is not known"),
        ("1/resume", Role.OPERATOR, 409, "job 1 is not paused"),
        ("2/pause", Role.OPERATOR, 409, "job 2 is not paused: it did not ask for Understudy"),
        ("1/pause", Role.VIEWER, 403, "viewer"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(ask: Ask, path: str, role: Role, status: int, words: str) -> None:
    answer = ask(path, role=role)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True)
