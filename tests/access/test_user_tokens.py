"""A user of the cluster proves by MUNGE who they are: for this challenge, at this server, once."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tests import builders as b
from tests.access.test_node_tokens import FakeMunge, SetClock, refused
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from understudy_client import Client, RefusedError
from understudy_controlplane.access.challenges import SECONDS as CHALLENGE_SECONDS
from understudy_controlplane.access.munge import MungeUnavailable
from understudy_controlplane.access.user_tokens import ALL_MAX, PER_USER_MAX, SECONDS, UserTokens
from understudy_controlplane.api.user_tokens import claim
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import ConfigError, parse_config
from understudy_controlplane.config.current import CurrentConfig
from understudy_controlplane.store.audit import entries
from understudy_wire.messages import NodeClaim

pytestmark = pytest.mark.integration

SERVER = "testserver:80"  # as TestClient connects to it
LOGIN = "10.0.0.7"
ALICE = 1000


class Site:
    def __init__(self, plane: ControlPlane, munge: FakeMunge, clock: SetClock) -> None:
        self.plane, self.munge, self.clock = plane, munge, clock

    def client(self, address: str = LOGIN) -> TestClient:
        return TestClient(self.plane.app, client=(address, 40000))

    def challenge(self, address: str = LOGIN) -> str:
        return str(self.client(address).get("/v1/challenge").json()["challenge"])

    def ask(self, challenge: str, credential: str, address: str = LOGIN, **more: Any) -> httpx2.Response:
        asked = {"challenge": challenge, "server": SERVER, "credential": credential} | more
        return self.client(address).post("/v1/user-token", json=asked)

    def answer(self, user_id: int = ALICE) -> httpx2.Response:
        challenge = self.challenge()
        return self.ask(challenge, self.munge.sign(claim(SERVER, challenge), user_id))

    def headers(self, user_id: int = ALICE) -> dict[str, str]:
        answer = self.answer(user_id)
        assert answer.status_code == 200, answer.text
        return {"Authorization": f"Bearer {answer.json()['token']}"}

    def status(self, headers: dict[str, str], address: str = LOGIN) -> int:
        return self.client(address).get("/v1/jobs", headers=headers).status_code


def make_site(folder: Path, **access: object) -> Site:
    munge, clock = FakeMunge(), SetClock()
    outside = Outside(VirtualSlurm(["n1"]), lambda _node: True, clock, decode_credential=munge.decode)
    config = b.config(mode="observe", server={"database": new_database(folder / "fleet.db")}, access=access)
    plane = compose(config, outside)
    plane.loop.tick()
    return Site(plane, munge, clock)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = make_site(tmp_path_factory.mktemp("user tokens"))
    with closing(site.plane):
        yield site


@pytest.fixture
def site(shared: Site) -> Site:
    """An hour after the test before: its tokens and challenges have ended."""
    shared.clock.at += 3600
    shared.munge.problem = None
    return shared


def test_a_user_gets_a_token_for_minutes_and_for_the_address_that_asked(site: Site) -> None:
    headers = site.headers()
    assert (site.status(headers), site.status(headers, "10.0.0.8")) == (200, 401)
    site.clock.at += SECONDS
    assert site.status(headers) == 401


def test_a_credential_counts_once(site: Site) -> None:
    challenge = site.challenge()
    credential = site.munge.sign(claim(SERVER, challenge), ALICE)
    assert site.ask(challenge, credential).status_code == 200
    refused(site.ask(challenge, credential), 403, "challenge is not valid")
    refused(site.ask(challenge, site.munge.sign(claim(SERVER, challenge), ALICE)), 403, "challenge is not valid")
    other = site.challenge()
    refused(site.ask(other, credential), 403, "used before")
    refused(site.ask(other, site.munge.sign(claim(SERVER, challenge), ALICE)), 403, "another claim")


def test_a_challenge_is_soon_over_and_for_the_address_that_asked(site: Site) -> None:
    challenge = site.challenge()
    credential = site.munge.sign(claim(SERVER, challenge), ALICE)
    refused(site.ask(challenge, credential, "10.0.0.8"), 403, "challenge is not valid")
    site.clock.at += CHALLENGE_SECONDS
    refused(site.ask(challenge, credential), 403, "challenge is not valid")
    refused(site.ask("x", credential), 403, "challenge is not valid")


def test_what_a_server_elsewhere_got_from_a_user_counts_for_nothing(site: Site) -> None:
    """It passes a challenge on to the user, and the credential back."""
    for server in ("127.0.0.1:7117", "testserver:81", "x", ":", "[::1]:80"):
        challenge = site.challenge()
        credential = site.munge.sign(claim(server, challenge), ALICE)
        refused(site.ask(challenge, credential, server=server), 403, "the credential is for the server")
        refused(site.ask(challenge, credential), 403, "another claim")


def test_further_addresses_of_the_control_plane_count_where_the_site_names_them(tmp_path: Path) -> None:
    site = make_site(tmp_path, addresses=["[fd00:0::1]:443"])
    with closing(site.plane):
        challenge = site.challenge()
        credential = site.munge.sign(claim("fd00::1:443", challenge), ALICE)
        assert site.ask(challenge, credential, server="fd00::1:443").status_code == 200


def test_a_nodes_credential_is_no_users_and_the_other_way_round(site: Site) -> None:
    challenge = site.challenge()
    as_node = NodeClaim(b.CLUSTER, "n1", challenge)
    refused(site.ask(challenge, site.munge.sign(as_node)), 403, "another claim")
    refused(site.ask(challenge, site.munge.sign(challenge.encode(), ALICE)), 403, "another claim")


def test_the_user_is_whom_munge_names(site: Site) -> None:
    challenge = site.challenge()
    credential = site.munge.sign(claim(SERVER, challenge), ALICE)
    answer = site.ask(challenge, credential, user_id=0, uid=0, user="root", role="admin")
    headers = {"Authorization": f"Bearer {answer.json()['token']}", "X-Remote-User": "root"}
    assert site.client().post("/v1/pause", headers=headers, json={"reason": "x"}).status_code == 403


def test_root_is_a_user_as_any_other(site: Site) -> None:
    headers = site.headers(0)
    assert site.client().get("/v1/decisions", headers=headers).status_code == 403
    assert site.client().post("/v1/pause", headers=headers, json={"reason": "x"}).status_code == 403


def test_users_whom_the_site_names_are_operators_or_administrators(tmp_path: Path) -> None:
    site = make_site(tmp_path, munge_roles={"daemon": "operator", "bin": "admin"})
    with closing(site.plane):
        allowed = [
            [site.client().post(f"/v1/{route}", headers=headers, json={"reason": "x"}).status_code for route in ROUTES]
            for headers in map(site.headers, (1, 2, 3, 4_000_000_000))  # daemon, bin, sys, and no user of this host
        ]
        assert allowed == [[202, 403], [202, 202], [403, 403], [403, 403]]
        assert [one["who"] for one in entries(site.plane.engine, 0.0)] == ["user daemon (1)", *["user bin (2)"] * 2]


ROUTES = ("pause", "breaker/reset")


@pytest.mark.parametrize("roles", ["munge_roles", "proxy_roles", "proxy_group_roles"])
def test_no_role_is_given_to_those_without_a_name(roles: str) -> None:
    """A user id that this host does not know, and whom the proxy names without groups."""
    with pytest.raises(ConfigError, match=roles):
        parse_config(f'cluster = "c"\n[access]\n{roles} = {{ "" = "admin" }}', "site.toml")


def test_a_site_may_refuse_users(tmp_path: Path) -> None:
    site = make_site(tmp_path, munge_users=False)
    with closing(site.plane):
        refused(site.answer(), 403, "access.munge_users")
    with pytest.raises(ConfigError, match="needs munge_users"):
        parse_config('cluster = "c"\n[access]\nmunge_users = false\nmunge_roles = { bob = "admin" }', "site.toml")


def test_a_munge_that_does_not_work_is_this_hosts_problem(site: Site) -> None:
    site.munge.problem = MungeUnavailable("munged does not answer")
    with capture_logs() as lines:
        refused(site.answer(), 503, "MUNGE does not work on the control plane's host")
    assert [one["cause"] for one in lines] == ["munged does not answer"]


def test_nonsense_is_refused(site: Site) -> None:
    for body in (b"", b"{", b"[]", b"\xff", b"{}", b"[" * 100_000):
        assert site.client().post("/v1/user-token", content=body).status_code == 400


def test_tokens_of_users_keep_little_memory() -> None:
    clock = SetClock()
    tokens = UserTokens(CurrentConfig(b.config()), clock)
    given = [tokens.make(ALICE, "", LOGIN) for _ in range(PER_USER_MAX + 1)]
    bobs = tokens.make(ALICE + 1, "", LOGIN)
    found = [tokens.find(one, LOGIN) is not None for one in (given[0], given[1], given[-1], bobs)]
    assert found == [False, True, True, True]
    clock.at += SECONDS
    tokens.make(ALICE, "", LOGIN)
    assert len(vars(tokens)["_tokens"]) == 1
    assert ALL_MAX >= PER_USER_MAX


class TestCommand:
    """What `understudy` does on a login node, against the routes themselves."""

    @pytest.fixture
    def client(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
        def munge(command: list[str], **given: Any) -> subprocess.CompletedProcess[bytes]:
            return subprocess.CompletedProcess(command, 0, site.munge.sign(given["input"], ALICE).encode(), b"")

        monkeypatch.setattr(subprocess, "run", munge)
        monkeypatch.setattr(shutil, "which", lambda _program: "/usr/bin/munge")
        with Client("http://testserver", transport=httpx.MockTransport(lambda one: carried(site, one))) as client:
            yield client

    def test_it_needs_no_token(self, site: Site, client: Client) -> None:
        assert (client.items("/v1/jobs"), client.items("/v1/jobs")) == ([], [])
        site.clock.at += SECONDS
        assert client.items("/v1/jobs") == []
        with pytest.raises(RefusedError, match="role user, which may not read;"):
            client.get("/v1/observed")

    def test_it_names_why_it_gets_none(self, site: Site, client: Client) -> None:
        site.munge.problem = MungeUnavailable("munged does not answer")
        with pytest.raises(RefusedError, match=r"no token; .*; by MUNGE: MUNGE does not work on the control plane"):
            client.items("/v1/jobs")


def test_a_stream_of_events_is_not_read_to_its_end_first(site: Site) -> None:
    """It has none."""

    def endless() -> Iterator[bytes]:
        yield b'id: 1\ndata: {"kind": "decision"}\n\n'
        pytest.fail("read on before the first event was taken")

    answer = httpx.MockTransport(lambda _request: httpx.Response(200, content=endless()))
    with Client("http://testserver", transport=answer) as client:
        assert next(client.lines("/v1/events", {}, {})) == "id: 1"


class Stream:
    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "testserver", 80


def carried(site: Site, request: httpx.Request) -> httpx.Response:
    path = request.url.raw_path.decode()
    found = site.client().request(request.method, path, content=request.content, headers=dict(request.headers))
    return httpx.Response(found.status_code, content=found.content, extensions={"network_stream": Stream()})
