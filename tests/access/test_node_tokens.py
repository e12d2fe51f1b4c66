"""A node proves which node it is: by a credential that root made there, for this challenge, from its address."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from tests import REPOSITORY
from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.access.addresses import LOOK_UPS_MAX, NodeAddresses, TooManyNames
from understudy_controlplane.access.challenges import SECONDS, Challenges
from understudy_controlplane.access.munge import Credential, CredentialRefused, MungeUnavailable, parse
from understudy_controlplane.access.secret import new_token
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.ingest.node_token_notes import REFUSALS_MAX
from understudy_controlplane.ingest.node_tokens import TOKEN_SECONDS
from understudy_controlplane.serve import listen, server_of
from understudy_controlplane.store.audit import entries
from understudy_controlplane.store.tokens import TokenStore
from understudy_wire.messages import WIRE_VERSION, NodeClaim, NodeToken, NodeTokenRequest

pytestmark = pytest.mark.integration

NODE_ADDRESS = "127.0.0.1"  # as the virtual Slurm has it for every node


class SetClock:
    at = b.NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@dataclass
class FakeMunge:
    """Decodes what `sign` has made, each once."""

    made: dict[str, Credential] = field(default_factory=dict)
    problem: Exception | None = None

    def sign(self, claim: NodeClaim | bytes, user_id: int = 0) -> str:
        payload = claim if isinstance(claim, bytes) else msgspec.json.encode(claim)
        name = f"MUNGE:{len(self.made)}:"
        self.made[name] = Credential(user_id, payload)
        return name

    def decode(self, credential: str) -> Credential:
        if self.problem is not None:
            raise self.problem
        try:
            return self.made.pop(credential)
        except KeyError:
            raise CredentialRefused("it was used before") from None


@dataclass
class Site:
    plane: ControlPlane
    munge: FakeMunge
    clock: SetClock

    def client(self, address: str = NODE_ADDRESS) -> TestClient:
        return TestClient(self.plane.app, client=(address, 40000))

    def challenge(self, address: str = NODE_ADDRESS) -> str:
        return str(self.client(address).get("/v1/challenge").json()["challenge"])

    def claim(self, node: str = "n1", cluster: str = b.CLUSTER) -> NodeClaim:
        return NodeClaim(cluster, node, self.challenge())

    def ask(self, claim: NodeClaim, credential: str, address: str = NODE_ADDRESS) -> httpx2.Response:
        request = NodeTokenRequest(WIRE_VERSION, claim, credential)
        return self.client(address).post("/v1/node-token", content=msgspec.json.encode(request))

    def token(self, node: str = "n1") -> str:
        claim = self.claim(node)
        answer = self.ask(claim, self.munge.sign(claim))
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=NodeToken).token

    def report(self, token: str, node: str) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        report = msgspec.json.encode(b.report(node))
        return self.client().post("/v1/reports", content=report, headers=headers).status_code


@contextmanager
def site_on(database: str, ticks: int = 1) -> Iterator[Site]:
    munge, clock = FakeMunge(), SetClock()
    outside = Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True, clock, decode_credential=munge.decode)
    with closing(compose(b.config(mode="observe", server={"database": database}), outside)) as plane:
        for _ in range(ticks):
            plane.loop.tick()
        yield Site(plane, munge, clock)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_on(new_database(tmp_path_factory.mktemp("node tokens") / "fleet.db")) as site:
        yield site


@pytest.fixture
def site(shared: Site) -> Site:
    """Hours after the test before: limits are as new, and what it left for the audit is written."""
    shared.clock.at += 3 * 3600
    shared.munge.problem = None
    shared.plane.audit.look()
    shared.plane.audit.look()
    return shared


@pytest.fixture
def own_site(database: str) -> Iterator[Site]:
    """Site on each kind of database."""
    with site_on(database) as site:
        yield site


def refused(answer: httpx2.Response, status: int, words: str) -> None:
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text


def test_a_node_gets_a_token_for_itself_and_for_an_hour(site: Site) -> None:
    token = site.token("n1")
    assert (site.report(token, "n1"), site.report(token, "n2")) == (200, 403)
    site.clock.at += TOKEN_SECONDS - 1
    assert site.report(token, "n1") == 200
    site.clock.at += 1
    assert site.report(token, "n1") == 401


def test_a_credential_counts_once(site: Site) -> None:
    claim = site.claim()
    credential = site.munge.sign(claim)
    assert site.ask(claim, credential).status_code == 200
    refused(site.ask(claim, credential), 403, "challenge is not valid")
    refused(site.ask(claim, site.munge.sign(claim)), 403, "challenge is not valid")


def test_a_user_of_the_node_is_not_the_node(site: Site) -> None:
    claim = site.claim()
    refused(site.ask(claim, site.munge.sign(claim, user_id=1000)), 403, "user 1000")


def test_root_of_one_node_does_not_speak_for_another(site: Site) -> None:
    challenge = site.challenge("10.0.0.8")
    claim = NodeClaim(b.CLUSTER, "n1", challenge)
    refused(site.ask(claim, site.munge.sign(claim), "10.0.0.8"), 403, "10.0.0.8, which is no address of node n1")
    refused(site.ask(claim, site.munge.sign(claim)), 403, "challenge is not valid")


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_a_header_is_no_address(site: Site, header: str) -> None:
    claim = NodeClaim(b.CLUSTER, "n1", site.challenge("10.0.0.8"))
    body = msgspec.json.encode(NodeTokenRequest(WIRE_VERSION, claim, site.munge.sign(claim)))
    answer = site.client("10.0.0.8").post("/v1/node-token", content=body, headers={header: NODE_ADDRESS})
    refused(answer, 403, "no address of node n1")


def test_what_was_signed_for_another_claim_counts_for_none(site: Site) -> None:
    claim, other = site.claim("n1"), site.claim("n2")
    refused(site.ask(claim, site.munge.sign(other)), 403, "another claim")
    refused(site.ask(site.claim(), site.munge.sign(b'{"node": "n1"}')), 403, "another claim")


def test_a_challenge_is_this_control_planes_and_soon_over(site: Site) -> None:
    for challenge in ("x", "a.b.c", Challenges(site.clock).make(NODE_ADDRESS), "ü.9e9.ü"):
        claim = NodeClaim(b.CLUSTER, "n1", challenge)
        refused(site.ask(claim, site.munge.sign(claim)), 403, "challenge is not valid")
    claim = site.claim()
    site.clock.at += SECONDS
    refused(site.ask(claim, site.munge.sign(claim)), 403, "challenge is not valid")


def test_giving_challenges_keeps_no_memory() -> None:
    challenges = Challenges(SetClock())
    given = [challenges.make("10.0.0.1") for _ in range(100)]
    assert vars(challenges)["_used"] == {}
    assert all(challenges.is_valid(one, "10.0.0.1") and not challenges.is_valid(one, "10.0.0.2") for one in given)
    assert (challenges.use(given[0]), challenges.use(given[0])) == (True, False)


def test_a_node_that_slurm_does_not_have_gets_none(site: Site) -> None:
    for claim, status, words in ((site.claim("n9"), 404, "'n9'"), (site.claim(cluster="other"), 400, "'other'")):
        refused(site.ask(claim, site.munge.sign(claim)), status, words)


def test_a_node_whose_tokens_were_revoked_gets_no_other_until_it_is_allowed(own_site: Site) -> None:
    token, store = own_site.token(), TokenStore(own_site.plane.engine)
    store.bar("n1", "root", own_site.clock.at)
    own_site.clock.at += 1
    assert own_site.report(token, "n1") == 401
    claim = own_site.claim()
    refused(own_site.ask(claim, own_site.munge.sign(claim)), 403, "were revoked")
    assert own_site.report(own_site.token("n2"), "n2") == 200
    assert [store.allow("n1", "root", own_site.clock.at) for _ in range(2)] == [True, False]
    assert own_site.report(own_site.token("n1"), "n1") == 200


def test_old_tokens_of_a_node_do_not_pile_up(own_site: Site) -> None:
    for _ in range(5):
        own_site.token()
        own_site.clock.at += 0.6 * TOKEN_SECONDS
    assert len(TokenStore(own_site.plane.engine).all()) <= 3


def test_a_munge_that_does_not_work_is_this_hosts_problem(site: Site) -> None:
    site.munge.problem = MungeUnavailable("munged does not answer")
    claim = site.claim()
    with capture_logs() as lines:
        refused(site.ask(claim, "MUNGE:x:"), 503, "MUNGE does not work on the control plane's host")
    assert [one["cause"] for one in lines] == ["munged does not answer"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"version": 1}', b"[" * 100_000])
def test_nonsense_is_refused(site: Site, body: bytes) -> None:
    assert site.client().post("/v1/node-token", content=body).status_code == 400


def audited(site: Site, hours: float = 0.0) -> list[tuple[str, str, Any]]:
    """What is written after so many hours."""
    before = len(list(entries(site.plane.engine, 0.0)))
    site.clock.at += hours * 3600
    site.plane.audit.look()
    return [(one["action"], one["subject"], one["after"]) for one in entries(site.plane.engine, 0.0)][before:]


def test_tokens_are_in_the_audit_an_hour_together(own_site: Site) -> None:
    own_site.token("n1")
    assert audited(own_site) == [("node token issue", "node n1", {"nodes": "n1"})]
    own_site.token("n1")
    own_site.token("n2")
    assert audited(own_site) == [("node token renew", "node n1", {"nodes": "n1"})]
    own_site.token("n1")
    own_site.token("n2")
    assert audited(own_site) == [], "not twice an hour"
    issued, renewed = audited(own_site, hours=1)
    assert issued == ("node token issue", "node n2", {"nodes": "n2"})
    assert renewed == ("node token renew", "2 nodes", {"nodes": "n[1-2]"})
    assert audited(own_site, hours=1) == []


def test_an_agent_that_asks_before_slurm_was_read_is_no_refusal(database: str) -> None:
    with site_on(database, ticks=0) as site:
        claim = site.claim()
        with capture_logs() as logged:
            refused(site.ask(claim, site.munge.sign(claim)), 503, "has not read Slurm yet")
        assert [one for one in logged if one["event"] == "node_token_refused"] == []
        site.plane.loop.tick()
        assert site.ask(claim, site.munge.sign(claim)).status_code == 200


def test_refused_requests_are_in_the_audit_and_fill_it_with_a_few_lines_an_hour(site: Site) -> None:
    for number in range(25):
        site.ask(site.claim(node=f"x{number}"), "MUNGE:x:")
        site.ask(site.claim(node="x0"), "MUNGE:x:")
    ((action, subject, after),) = audited(site)
    assert (action, subject) == ("node token refuse", "50 requests")
    assert len(after["refused"]) == REFUSALS_MAX
    assert (after["refused"][0]["node"], after["refused"][0]["requests"]) == ("x0", 26)
    assert "Slurm knows no node" in after["refused"][0]["error"]
    assert after["refused"][0]["address"] == NODE_ADDRESS
    assert after["other_requests"] == 25 - REFUSALS_MAX


def test_entries_wait_for_a_database_that_does_not_answer_and_are_written_at_the_end(own_site: Site) -> None:
    own_site.token("n1")

    def fail(*_: object) -> None:
        raise OperationalError("INSERT", {}, Exception("the disk is full"))

    event.listen(own_site.plane.engine, "before_cursor_execute", fail)
    own_site.plane.audit.look()
    event.remove(own_site.plane.engine, "before_cursor_execute", fail)
    own_site.token("n2")
    own_site.plane.audit.stop()
    own_site.plane.audit.run()
    assert [one["subject"] for one in entries(own_site.plane.engine, 0.0)] == ["node n1", "node n2"]


def test_a_node_gets_no_tokens_without_end(site: Site) -> None:
    for _ in range(11):
        site.token("n1")
    claim = site.claim()
    refused(site.ask(claim, site.munge.sign(claim)), 429, "too many tokens")
    assert site.token("n2")


class TestEnrolment:
    """No MUNGE is used."""

    def code(self, site: Site, node: str = "n1") -> str:
        code, token = new_token(Role.ENROLMENT, node, "root", site.clock.at, 3600, node)
        TokenStore(site.plane.engine).add([token])
        return code

    def exchange(self, site: Site, code: str) -> httpx2.Response:
        return site.client("10.9.9.9").post("/v1/enrolment", headers={"Authorization": f"Bearer {code}"})

    def test_a_code_gives_the_token_of_its_node_once(self, own_site: Site) -> None:
        code = self.code(own_site)
        token = msgspec.json.decode(self.exchange(own_site, code).content, type=NodeToken).token
        reports = own_site.report(token, "n1"), own_site.report(token, "n2"), own_site.report(code, "n1")
        assert reports == (200, 403, 403)
        refused(self.exchange(own_site, code), 403, "used up")
        own_site.clock.at += 1
        assert self.exchange(own_site, code).status_code == 401
        (entry,) = entries(own_site.plane.engine, 0.0)
        assert (entry["action"], entry["subject"]) == ("enrol", "node n1")

    def test_a_code_expires_and_is_none_of_a_barred_node(self, own_site: Site) -> None:
        late, barred = self.code(own_site), self.code(own_site, "n2")
        TokenStore(own_site.plane.engine).bar("n2", "root", own_site.clock.at)
        assert self.exchange(own_site, barred).status_code in (401, 403)
        own_site.clock.at += 3600
        assert self.exchange(own_site, late).status_code == 401

    def test_the_token_of_a_node_is_no_code(self, site: Site) -> None:
        assert self.exchange(site, site.token()).status_code == 403


OUTPUT = b"""STATUS:          0
ENCODE_HOST:     10.0.0.1
UID:             1000
GID:             0
LENGTH:          9

a\n\nUID: 0"""


def test_the_payload_of_a_credential_cannot_change_its_user() -> None:
    assert parse(OUTPUT) == Credential(1000, b"a\n\nUID: 0")


def test_a_credential_of_a_host_without_ipv4_is_read() -> None:
    output = (REPOSITORY / "tests/data/world/network/ipv6_unmunge.txt").read_bytes()
    assert parse(output) == Credential(0, b"claim")


@pytest.mark.parametrize(
    "output",
    [b"", b"UID: 0\n\nx", OUTPUT[:-1], OUTPUT.replace(b"STATUS:          0", b"STATUS:          17"), b"UID: root\n\n"],
)
def test_output_of_unmunge_that_is_not_whole_is_refused(output: bytes) -> None:
    with pytest.raises(CredentialRefused):
        parse(output)


@pytest.mark.parametrize(("host", "own"), [("[::1]", "0:0:0:0:0:0:0:1"), ("127.0.0.1", "127.0.0.5")])
def test_a_node_proves_itself_by_either_family_from_one_of_its_addresses(tmp_path: Path, host: str, own: str) -> None:
    """Over a real connection, to a port of every address; n2 has others."""
    munge = FakeMunge()
    outside = Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True, decode_credential=munge.decode)
    server = {
        "database": new_database(tmp_path / "fleet.db"),
        "host": "::",
        "port": 0,
        "node_addresses": {"n1": ["10.7.0.1", own], "n2": ["10.7.0.2"]},
    }
    config = b.config(mode="observe", server=server)
    from_own = httpx2.HTTPTransport(local_address=own)
    with closing(compose(config, outside)) as plane, httpx2.Client(transport=from_own) as client:
        plane.loop.tick()
        (listening,) = listen(config.server)
        served = server_of(plane, config, None)
        thread = threading.Thread(target=served.run, args=([listening],))
        thread.start()
        url = f"http://{host}:{listening.getsockname()[1]}"
        while not served.started and thread.is_alive():
            time.sleep(0.01)
        try:
            statuses = []
            for node in ("n1", "n2"):
                claim = NodeClaim(b.CLUSTER, node, str(client.get(f"{url}/v1/challenge").json()["challenge"]))
                request = NodeTokenRequest(WIRE_VERSION, claim, munge.sign(claim))
                answer = client.post(f"{url}/v1/node-token", content=msgspec.json.encode(request))
                statuses.append(answer.status_code)
        finally:
            served.should_exit = True
            thread.join(10)
    assert statuses == [200, 403]


HOSTS = {"n1": ["10.0.0.1", "::FFFF:10.0.0.2", "FD00::1"], "n1-ib": ["10.1.0.1"], "lost": []}


class TestAddresses:
    def addresses(self, clock: SetClock, asked: list[str]) -> NodeAddresses:
        def resolve(host: str) -> list[str]:
            asked.append(host)
            return HOSTS[host]

        of_slurm = {"n1": "n1", "n2": "FD00:0::2", "n3": "lost"}.get
        return NodeAddresses(of_slurm, lambda: {"n1": ["n1-ib", "10.2.0.1"]}, clock, resolve)

    @pytest.mark.parametrize(
        ("node", "expected"),
        [
            ("n1", {"10.0.0.1", "10.0.0.2", "fd00::1", "10.1.0.1", "10.2.0.1"}),
            ("n2", {"fd00::2"}),
            ("n3", set()),
            ("n9", None),
        ],
    )
    def test_all_of_a_node_count_in_one_spelling(self, node: str, expected: set[str] | None) -> None:
        assert run(self.addresses(SetClock(), []).of(node)) == expected

    @pytest.mark.parametrize(
        ("host", "address", "node"),
        [
            ("ip-10-0-0-1", "10.9.0.9", "compute-1"),  # NodeHostname
            ("ip-10-0-0-2", "10.9.0.9", "compute-2"),  # NodeHostname, in full
            ("n3", "10.9.0.9", "n3.example.org"),
            ("localhost", "fd00::4", "compute-4"),
            ("compute-1", "fd00::4", ""),  # two
            ("x", "10.9.0.9", ""),
        ],
    )
    def test_a_host_with_another_name_is_shown_its_nodename(self, host: str, address: str, node: str) -> None:
        slurm = {
            "compute-1": "ip-10-0-0-1",
            "compute-2": "ip-10-0-0-2.internal",
            "n3.example.org": "n3.example.org",
            "compute-4": "FD00::4",
        }
        assert NodeAddresses(slurm.get, dict, SetClock(), nodes=lambda: slurm).node_at(host, address) == node

    def test_a_name_is_looked_up_once_a_minute(self) -> None:
        clock, asked = SetClock(), list[str]()
        addresses = self.addresses(clock, asked)
        for clock.at, count in ((b.NOW, 1), (b.NOW + 59, 1), (b.NOW + 60, 2)):
            run(addresses.of("n3"))
            assert len(asked) == count

    def test_a_resolver_that_does_not_answer_takes_no_thread_from_reports(self) -> None:
        answer = threading.Event()
        asked: list[str] = []

        def resolve(host: str) -> list[str]:
            asked.append(host)
            answer.wait(10)
            return ["10.0.0.1"]

        addresses = NodeAddresses(lambda node: node, dict, SetClock(), resolve)

        async def ask() -> tuple[str, list[object]]:
            looks = [asyncio.create_task(addresses.of(f"n{number}")) for number in range(LOOK_UPS_MAX + 2)]
            again = asyncio.create_task(addresses.of("n0"))
            stored = await asyncio.wait_for(asyncio.to_thread(lambda: "facts"), 2)
            answer.set()
            return stored, list(await asyncio.gather(*looks, again, return_exceptions=True))

        stored, found = asyncio.run(ask())
        assert stored == "facts"
        assert [type(one) for one in found].count(TooManyNames) == 2
        assert found.count(frozenset({"10.0.0.1"})) == len(asked) + 1 == LOOK_UPS_MAX + 1


def run(awaitable: Any) -> Any:

    return asyncio.run(awaitable)
