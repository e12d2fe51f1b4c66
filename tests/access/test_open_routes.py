"""What the routes that need no token show to a stranger: that something failed, and no cause of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import bearer, with_tokens
from understudy_controlplane.access.munge import Credential, MungeUnavailable
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.serve import server_of
from understudy_wire.messages import WIRE_VERSION, Challenge, NodeClaim, NodeTokenRequest

pytestmark = pytest.mark.integration

INTERNAL = "/var/lib/understudy/fleet.db"
ADDRESS = "10.0.0.1"


def no_munge(_credential: str) -> Credential:
    raise MungeUnavailable(INTERNAL)


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    database = with_tokens(new_database(tmp_path / "fleet.db"), ["n1"])
    config = b.config(mode="observe", server={"database": database, "node_addresses": {"n1": [ADDRESS]}})
    outside = Outside(VirtualSlurm(["n1"]), lambda _: True, decode_credential=no_munge)
    with closing(compose(config, outside)) as made:
        made.loop.tick()
        yield made


@pytest.fixture
def stranger(plane: ControlPlane) -> TestClient:
    return TestClient(plane.app, client=(ADDRESS, 40000), raise_server_exceptions=False)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_the_health_check_names_what_failed_and_status_the_cause(
    plane: ControlPlane, stranger: TestClient, path: str
) -> None:
    pulse = plane.loop.pulse
    pulse.last_error = f"OperationalError: {INTERNAL}"
    pulse.slurm.error = f"scontrol: {INTERNAL}"
    answer = stranger.get(path)
    assert (answer.status_code, INTERNAL in answer.text) == (503, False)
    assert "the last tick failed" in answer.json()["problems"][0]
    assert "GET /v1/status" in answer.json()["problems"][0]
    status = stranger.get("/v1/status", headers=bearer(Role.VIEWER)).json()
    assert status["needs"][0]["why"] == f"the last tick failed: OperationalError: {INTERNAL}"
    assert INTERNAL in status["slurm"]["error"]
    pulse.last_tick_at -= 60
    pulse.slurm.at = None
    assert INTERNAL not in stranger.get(path).text


def test_a_database_that_fails_is_not_described(plane: ControlPlane, stranger: TestClient) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception(INTERNAL))

    event.listen(plane.engine, "before_cursor_execute", fail)
    answer = stranger.get("/v1/status", headers={"Authorization": "Bearer unknown"})
    assert (answer.status_code, "the database does not answer" in answer.json()["detail"]) == (503, True)
    assert INTERNAL not in answer.text
    assert "Error" not in answer.text


def test_munge_that_fails_is_not_described(plane: ControlPlane, stranger: TestClient) -> None:
    challenge = msgspec.json.decode(stranger.get("/v1/challenge").content, type=Challenge).challenge
    claim = NodeClaim(plane.reads.current.config.cluster, "n1", challenge)
    answer = stranger.post(
        "/v1/node-token", content=msgspec.json.encode(NodeTokenRequest(WIRE_VERSION, claim, "MUNGE:x:"))
    )
    assert (answer.status_code, INTERNAL in answer.text) == (503, False)


def test_an_error_of_the_server_is_a_problem_without_its_cause(plane: ControlPlane, stranger: TestClient) -> None:
    @plane.app.get("/broken")
    async def broken() -> None:
        raise RuntimeError(INTERNAL)

    answer = stranger.get("/broken")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert INTERNAL not in answer.text


def test_the_server_does_not_name_its_software(plane: ControlPlane) -> None:
    config = server_of(plane, b.config(), None).config
    config.load()
    assert not config.server_header
