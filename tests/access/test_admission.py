"""Who may do what: each route with each role, and what becomes of tokens that end."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import PEOPLE, as_user, bearer, secret, with_tokens
from understudy_controlplane.access.tokens import LOOK_UPS_WAITING_MAX, Tokens, TooManyLookUps
from understudy_controlplane.api.openapi import describe
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.identity import Permission, Role, roles_with
from understudy_controlplane.fleet.slurm import SlurmView
from understudy_controlplane.serve import server_of
from understudy_controlplane.store.database import Engine, StoreError, open_database
from understudy_controlplane.store.database_lock import Alone
from understudy_controlplane.store.tokens import TokenStore

pytestmark = pytest.mark.integration

OPEN = {
    *(("GET", path) for path in ("/healthz", "/readyz", "/v1/challenge")),
    *(("POST", path) for path in ("/v1/node-token", "/v1/user-token", "/v1/session")),
}
ENROL = "/v1/enrolment"
OF_USERS = {
    "/v1/status",
    "/v1/nodes",
    "/v1/jobs",
    "/v1/jobs/7",
    "/v1/jobs/7/ranks",
    "/v1/explain/jobs/7",
    "/v1/explain/checkpoints/7",
    "/v1/checkpoints",
    "/v1/recoveries",
    "/v1/recoveries/1",
    "/v1/requests",
    "/v1/requests/1",
}
"""Users of the cluster may ask there for what concerns their own jobs."""
OF_OWNERS = {
    "/v1/incidents/1/evidence",
    *(f"/v1/jobs/7/{verb}" for verb in ("pause", "resume", "save", "trust-checkpoints", "evidence")),
}
"""Users may act there on their own jobs, or read what only owners and operators read."""
REPORT = {"/v1/reports", "/v1/launchers", "/v1/restore-point"}


class SetClock:
    at = b.NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


def control_plane(database: str, clock: SetClock, **server: str) -> ControlPlane:
    config = b.config(mode="observe", server={"database": with_tokens(database, ["n1", "n2"]), **server})
    plane = compose(config, Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True, clock))
    plane.loop.tick()
    plane.end_waits()  # a stream of events ends at once
    return plane


@pytest.fixture
def clock() -> SetClock:
    return SetClock()


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Shared by tests that change nothing."""
    with closing(control_plane(new_database(tmp_path_factory.mktemp("admission") / "fleet.db"), SetClock())) as made:
        yield made


@pytest.fixture
def own_plane(database: str, clock: SetClock) -> Iterator[ControlPlane]:
    with closing(control_plane(database, clock)) as made:
        yield made


class CutOff(Alone):
    """A leader that cannot renew its lease, or can."""

    def __init__(self) -> None:
        self.cut_off = False

    def is_cut_off(self) -> bool:
        return self.cut_off


def test_a_leader_that_is_cut_off_sends_agents_and_launchers_to_the_next_one(database: str, clock: SetClock) -> None:
    lead = CutOff()
    config = b.config(mode="observe", server={"database": with_tokens(database, ["n1"])})
    outside = Outside(VirtualSlurm(["n1"]), lambda _node: True, clock, lead=lead)
    with closing(compose(config, outside)) as own_plane:
        own_plane.loop.tick()
        client = TestClient(own_plane.app)
        report = msgspec.json.encode(b.report("n1"))

        def statuses() -> list[int]:
            headers = bearer(Role.NODE, "n1")
            answers = [
                client.post("/v1/reports", content=report, headers=headers),
                client.post("/v1/launchers", content=b"{", headers=headers),
                client.get("/v1/restore-point?job_id=7&restart_count=0&user_id=1000", headers=headers),
            ]
            assert all("confirm" in one.text for one in answers if one.status_code == 503)
            return [one.status_code for one in answers]

        assert statuses() == [200, 400, 404]
        lead.cut_off = True
        assert statuses() == [503, 503, 503]
        stranger = client.post("/v1/reports", content=report, headers={"Authorization": "Bearer unknown"})
        assert stranger.status_code == 401, "no stranger learns that it is cut off"
        assert client.get("/v1/nodes", headers=bearer(Role.VIEWER)).status_code == 200
        clock.at += 60.0
        with pytest.raises(StoreError, match="hears and judges no node"):
            own_plane.loop.tick()
        assert own_plane.telemetry.latest("n1") is not None
        lead.cut_off = False
        own_plane.loop.tick()
        assert own_plane.telemetry.latest("n1") is None, "what it missed meanwhile is no silence of the node"
        assert statuses() == [200, 400, 404]
        own_plane.loop.tick()
        assert own_plane.telemetry.latest("n1") is not None


def test_a_round_that_waits_for_the_database_takes_no_refused_node_for_silent(database: str, clock: SetClock) -> None:
    """It looks at the nodes late: the reports of the last seconds were refused, and the database answers again."""
    lead, names = CutOff(), ["n1", "n2", "n3", "n4"]
    config = b.config(mode="act", server={"database": with_tokens(database, names)})
    outside = Outside(VirtualSlurm(names), lambda _node: True, clock, lead=lead)
    with closing(compose(config, outside)) as own_plane:
        client, loop = TestClient(own_plane.app), own_plane.loop

        def report() -> set[int]:
            return {
                client.post(
                    "/v1/reports",
                    content=msgspec.json.encode(b.report(name, sent_at=clock.at)),
                    headers=bearer(Role.NODE, name),
                ).status_code
                for name in names
            }

        def wait_for_database() -> None:
            lead.cut_off = True
            assert report() == {503}
            clock.at += 20.0
            lead.cut_off = False

        loop.tick()
        assert report() == {200}
        loop.tick()
        read, waits = loop.observer.read_slurm, iter([wait_for_database])

        def read_late(age_max_seconds: float) -> SlurmView | None:
            next(waits, lambda: None)()
            return read(age_max_seconds)

        with mock.patch.object(loop.observer, "read_slurm", read_late):
            loop.tick()
        assert client.get("/v1/incidents", headers=bearer(Role.VIEWER)).json()["items"] == []
        loop.tick()
        assert report() == {200}
        loop.tick()
        assert client.get("/v1/incidents", headers=bearer(Role.VIEWER)).json()["items"] == []


def test_a_leader_that_may_change_nothing_shows_why(database: str, clock: SetClock) -> None:
    class Lapsed(Alone):
        why = "the database has not confirmed for 2.3 s that this control plane leads"

        def objection(self) -> str:
            return self.why

    lead = Lapsed()
    config = b.config(mode="act", server={"database": with_tokens(database, ["n1"])})
    outside = Outside(VirtualSlurm(["n1"]), lambda _node: True, clock, lead=lead)
    with closing(compose(config, outside)) as own_plane, capture_logs() as logs:
        client = TestClient(own_plane.app)

        def shown() -> list[str]:
            own_plane.loop.tick()
            problems: list[str] = client.get("/v1/status", headers=bearer(Role.VIEWER)).json()["problems"]
            return [one for one in problems if "in Slurm" in one]

        words = "this control plane changes nothing in Slurm"
        for _ in range(2):
            assert shown() == [f"{words}: {lead.why}: `journalctl -u understudy-controlplane`"]
        health, ready = client.get("/healthz"), client.get("/readyz")
        assert health.status_code == 200
        assert any(words in one for one in health.json()["problems"])
        assert (ready.status_code, health.json()["ok"]) == (503, True)
        assert lead.why not in health.text + ready.text
        lead.why = ""
        assert shown() == []
        assert client.get("/readyz").status_code == 200
    assert [one["event"] for one in logs if one["event"].startswith("changes_")] == [
        "changes_stopped",
        "changes_resumed",
    ]


def routes(app: FastAPI) -> list[tuple[str, str]]:
    """Method and path of every route, with something in place of its parameters."""
    described = [
        (method.upper(), re.sub(r"\{\w+\}", "1", path.replace("{node}", "n1").replace("{job_id}", "7")))
        for path, methods in describe(app.openapi())["paths"].items()
        for method in methods
    ]
    return [*described, ("GET", "/openapi.json")]


def needed(method: str, path: str) -> Permission:
    if path in REPORT:
        return Permission.REPORT
    if path == ENROL:
        return Permission.ENROL
    others = {
        ("GET", "/metrics"): Permission.METRICS,
        ("POST", "/v1/breaker/reset"): Permission.ADMINISTER,
        ("POST", "/v1/mode"): Permission.ADMINISTER,
        ("POST", "/v1/signals"): Permission.SIGNAL,
        ("POST", "/v1/signals/alertmanager"): Permission.SIGNAL,
    }
    if (method, path) in others:
        return others[method, path]
    if path in OF_OWNERS:
        return Permission.OPERATE_OWN_JOBS
    if method == "GET" or path == "/v1/session":
        return Permission.READ_OWN_JOBS if path in OF_USERS else Permission.READ
    return Permission.OPERATE


def test_every_route_asks_for_a_token_but_the_health_check_and_those_that_give_one(plane: ControlPlane) -> None:
    client = TestClient(plane.app)
    headers: list[dict[bytes, bytes]] = [{}, {b"Authorization": b"Bearer wrong"}]
    open_to_all = {
        (method, path)
        for method, path in routes(plane.app)
        if not all(client.request(method, path, headers=one).status_code == 401 for one in headers)
    }
    assert open_to_all == OPEN
    for value in (b"Basic x", b"Bearer \xff", b"Bearer", b"bearer ", b""):
        assert client.get("/v1/nodes", headers={b"Authorization": value}).status_code == 401


@pytest.mark.parametrize("role", [*PEOPLE, Role.NODE, Role.USER])
def test_a_role_may_do_what_it_is_for_and_nothing_else(plane: ControlPlane, role: Role) -> None:
    headers = as_user(plane.admission, 1000) if role is Role.USER else bearer(role, "n1" if role is Role.NODE else "")
    client = TestClient(plane.app, headers=headers)
    refused = {one for one in routes(plane.app) if client.request(*one).status_code == 403}
    assert refused == {
        (method, path)
        for method, path in routes(plane.app)
        if (method, path) not in OPEN and role not in roles_with(needed(method, path))
    }


def test_the_address_of_a_request_is_that_of_its_connection(plane: ControlPlane) -> None:
    """A server that believed X-Forwarded-For from this host would let its users take any address."""
    assert not server_of(plane, b.config(), None).config.proxy_headers


def test_a_refusal_names_the_role_that_is_needed(plane: ControlPlane) -> None:
    refusal = TestClient(plane.app, headers=bearer(Role.VIEWER)).post("/v1/breaker/reset", json={"reason": "x"})
    assert (refusal.status_code, "role viewer" in refusal.json()["detail"]) == (403, True)
    assert "token of role admin" in refusal.json()["hint"]
    assert secret(Role.VIEWER) not in refusal.text


@pytest.mark.parametrize(
    ("server", "expected"),
    [({"without_token": "reads"}, (200, 200)), ({"without_token": "metrics"}, (401, 200)), ({}, (401, 401))],
)
def test_a_site_may_open_reads_or_metrics(
    tmp_path: Path, clock: SetClock, server: dict[str, str], expected: tuple[int, int]
) -> None:
    with closing(control_plane(new_database(tmp_path / "fleet.db"), clock, **server)) as plane:
        client = TestClient(plane.app)
        assert (client.get("/v1/status").status_code, client.get("/metrics").status_code) == expected
        assert client.post("/v1/pause", json={"reason": "x"}).status_code == 401
        assert client.get("/v1/status", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_token_ends_when_it_expires_and_soon_after_it_is_revoked(own_plane: ControlPlane, clock: SetClock) -> None:
    client, store = TestClient(own_plane.app), TokenStore(own_plane.engine)
    ids = {token.label: token.id for token in store.all()}

    def status(role: Role) -> int:
        return client.get("/v1/status", headers=bearer(role)).status_code

    assert (status(Role.VIEWER), status(Role.OPERATOR)) == (200, 200)
    store.revoke([ids["viewer"]], "root", clock.at)
    clock.at += 1.0
    assert (status(Role.VIEWER), status(Role.OPERATOR)) == (401, 200)
    clock.at = 2e10
    assert status(Role.OPERATOR) == 401


def test_a_token_that_was_made_later_holds_at_once(own_plane: ControlPlane) -> None:
    client, headers = TestClient(own_plane.app), bearer(Role.NODE, "n9")
    assert client.post("/v1/reports", headers=headers).status_code == 401
    engine = open_database(str(own_plane.engine.url))
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM token")
    with_tokens(str(own_plane.engine.url), ["n9"])
    engine.dispose()
    assert client.post("/v1/reports", headers=headers).status_code == 400


def test_when_a_person_used_a_token_last_is_kept_to_the_hour(own_plane: ControlPlane, clock: SetClock) -> None:
    client, store = TestClient(own_plane.app), TokenStore(own_plane.engine)

    def used() -> dict[str, float | None]:
        return {token.label: token.last_used_at for token in store.all()}

    client.get("/v1/status", headers=bearer(Role.VIEWER))
    client.post("/v1/reports", headers=bearer(Role.NODE, "n1"))
    assert (used()["viewer"], used()["n1"]) == (b.NOW, None)
    for clock.at, expected in ((b.NOW + 3599, b.NOW), (b.NOW + 3600, b.NOW + 3600)):
        client.get("/v1/status", headers=bearer(Role.VIEWER))
        assert used()["viewer"] == expected


def test_known_tokens_hold_while_the_database_does_not_answer(own_plane: ControlPlane, clock: SetClock) -> None:
    client = TestClient(own_plane.app)

    def fail(*_: object) -> None:
        raise OperationalError("SELECT", {}, Exception("the disk is gone"))

    event.listen(own_plane.engine, "before_cursor_execute", fail)
    clock.at += 1.0
    assert client.post("/v1/reports", headers=bearer(Role.NODE, "n1")).status_code == 400
    answer = client.get("/v1/status", headers={"Authorization": "Bearer unknown"})
    assert (answer.status_code, "the database does not answer" in answer.json()["detail"]) == (503, True)


def test_a_flood_of_unknown_tokens_waits_in_one_short_queue(engine: Engine, clock: SetClock) -> None:
    release = threading.Event()
    tokens = Tokens(TokenStore(engine), clock)
    event.listen(engine, "before_cursor_execute", lambda *_: release.wait(10))

    async def flood() -> list[object]:
        asked = [asyncio.create_task(tokens.find(f"guess {number}")) for number in range(LOOK_UPS_WAITING_MAX + 5)]
        await asyncio.sleep(0)
        release.set()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    answers = asyncio.run(flood())
    tokens.close()
    assert [type(one) for one in answers].count(TooManyLookUps) == 5
    assert answers.count(None) == LOOK_UPS_WAITING_MAX


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    yield engine
    engine.dispose()
