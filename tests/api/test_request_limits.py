"""What a request can contain: too much, too deep, characters that SQL refuses, and too many of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import add_tokens, bearer, with_tokens
from understudy_controlplane.access.admission import Sender
from understudy_controlplane.api.request_limits import CHANGES_OF_USER_EACH_HOUR, RequestLimits
from understudy_controlplane.app import Outside, compose
from understudy_controlplane.config import Limits
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.ingest.decode import decode_report
from understudy_controlplane.ingest.rates import BURST_SECONDS, SENDERS_MAX, Rates
from understudy_controlplane.ingest.refusals import Refusals
from understudy_controlplane.live.meters import Meters
from understudy_wire.messages import REPORT_BYTES_MAX
from understudy_wire.values import NOT_UNDERSTOOD

pytestmark = pytest.mark.integration

HOLD = "/v1/nodes/n1/hold"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    config = b.config(
        mode="observe",
        server={"database": new_database(tmp_path_factory.mktemp("limits") / "fleet.db")},
        limits={"reports_per_second_per_node": 0.5, "requests_per_second_per_address": 1e6},
    )
    with closing(compose(config, Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True, Still()))) as made:
        made.loop.tick()
        add_tokens(made.engine, ["n1", "n2", "n3"])
        yield TestClient(made.app, raise_server_exceptions=False)


class Still:
    def now(self) -> float:
        return b.NOW

    def monotonic(self) -> float:
        return b.NOW


def parts() -> Iterator[bytes]:
    yield b'{"reason": "'
    for _ in range(8):
        yield b"x" * (REPORT_BYTES_MAX // 4)


@pytest.mark.parametrize("path", [HOLD, "/v1/reports", "/v1/jobs/1/trust-checkpoints"])
@pytest.mark.parametrize("body", [b" " * (REPORT_BYTES_MAX + 1), parts()], ids=["announced", "in parts"])
def test_a_body_that_is_too_large_is_refused(client: TestClient, path: str, body: Any) -> None:
    role = bearer(Role.NODE, "n1") if path == "/v1/reports" else bearer(Role.OPERATOR)
    refusal = client.post(path, content=parts() if isinstance(body, Iterator) else body, headers=role)
    assert refusal.status_code == 413, refusal.text
    assert refusal.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"reason": ' + b'{"a":' * 20_000 + b"1" + b"}" * 20_001,
        b'{"reason": "\\u0000"}',
        b'{"reason": "\\ud800"}',
        b'{"reason": "\xff"}',
        b'{"reason": "' + b"x" * 5000 + b'"}',
        b'{"reason": 1e999}',
        b"",
    ],
    ids=["deep list", "deep object", "NUL", "half a character", "no UTF-8", "long", "infinite", "empty"],
)
def test_a_body_that_cannot_be_stored_is_refused(client: TestClient, body: bytes) -> None:
    assert client.post(HOLD, content=body, headers=bearer(Role.OPERATOR)).status_code == 400
    with pytest.raises(NOT_UNDERSTOOD):
        decode_report(body)
    assert client.post("/v1/launchers", content=body, headers=bearer(Role.NODE, "n1")).status_code == 400


@pytest.mark.parametrize("path", ["/v1/nodes/n1%00/hold", "/v1/nodes?after=%00", "/%00"])
def test_the_character_nul_is_refused_in_an_address(client: TestClient, path: str) -> None:
    assert client.get(path, headers=bearer(Role.VIEWER)).status_code == 400


def limited(limits: Limits, meters: Meters) -> TestClient:
    """A token is what follows its scheme; "wrong" is none."""

    def sender_of(request: HTTPConnection) -> Sender:
        name = request.headers.get("authorization", "wrong").removeprefix("Bearer ")
        if name == "wrong":
            return Sender("an address", has_token=False)
        return Sender(name, has_token=True, is_user=name.startswith("user"))

    return TestClient(RequestLimits(Starlette(), limits, Refusals(meters), sender_of))


def status(client: TestClient, method: str, bearer: str = "wrong") -> int:
    return client.request(method, "/", headers={"Authorization": f"Bearer {bearer}"}).status_code


def test_an_address_that_sends_too_many_requests_is_refused() -> None:
    meters = Meters()
    client = limited(Limits(requests_per_second_per_address=0.5), meters)
    answers = [client.get("/") for _ in range(int(0.5 * BURST_SECONDS) + 3)]
    assert [one.status_code for one in answers[:6]] == [404] * 6
    assert (answers[-1].status_code, answers[-1].headers["Retry-After"]) == (429, "2")
    assert answers[-1].headers["Content-Type"] == "application/problem+json"

    def counted() -> float | None:
        return meters.registry.get_sample_value("understudy_reports_refused_total", {"cause": "rate"})

    assert (counted(), client.post("/v1/reports").status_code, counted()) == (0, 429, 1)


def test_what_a_user_of_the_cluster_changes_fills_no_audit() -> None:
    """It has a row for each change, and none is ever deleted."""
    client = limited(Limits(), Meters())
    answers = [status(client, "POST", "user 1000") for _ in range(CHANGES_OF_USER_EACH_HOUR + 3)]
    assert answers == [404] * (CHANGES_OF_USER_EACH_HOUR + 1) + [429] * 2
    assert status(client, "POST", "user 1001") == status(client, "GET", "user 1000") == 404


def test_refused_requests_of_nodes_are_counted_by_their_status() -> None:
    meters = Meters()
    client = limited(Limits(), meters)
    assert client.post("/v1/launchers").status_code == 404
    assert client.get("/v1/nowhere").status_code == 404
    value = meters.registry.get_sample_value
    name = "understudy_requests_refused_total"
    assert value(name, {"route": "/v1/launchers", "status": "404"}) == 1
    assert value(name, {"route": "/v1/node-token", "status": "404"}) == 0


def test_a_flood_is_refused_and_nothing_else_of_the_same_address_is() -> None:
    once = {"reads_per_second_per_token": 1e-9, "writes_per_second_per_token": 1e-9}
    client = limited(Limits(requests_per_second_per_address=1e-9, **once), Meters())
    assert [status(client, "POST") for _ in range(2)] == [404, 429], "without a token"
    assert [status(client, "GET", "a") for _ in range(2)] == [404, 429], "reads of a token"
    assert [status(client, "POST", "a") for _ in range(2)] == [404, 429], "and what it writes, apart from those"
    assert status(client, "POST", "b") == status(client, "GET", "b") == 404


def test_a_flood_of_others_from_its_address_refuses_no_facts_of_an_agent(tmp_path: Path) -> None:
    once = {"reads_per_second_per_token": 1e-9, "requests_per_second_per_address": 1e-9}
    config = b.config(mode="observe", server={"database": with_tokens(new_database(tmp_path / "a.db"), ["n1"])})
    config = config.model_copy(update={"limits": Limits(**once)})
    with closing(compose(config, Outside(VirtualSlurm(["n1"]), lambda _node: True, Still()))) as made:
        made.loop.tick()
        client = TestClient(made.app)
        assert [client.get("/v1/status", headers=bearer(Role.VIEWER)).status_code for _ in range(2)] == [200, 429]
        unknown = {"Authorization": "Bearer unknown"}
        assert [client.post("/v1/reports", headers=unknown).status_code for _ in range(2)] == [401, 429]
        report = msgspec.json.encode(b.report("n1", facts=[b.xid_event("n1", 79).event]))
        assert client.post("/v1/reports", content=report, headers=bearer(Role.NODE, "n1")).status_code == 200


def test_what_a_node_asks_for_its_users_programs_takes_nothing_of_its_reports(tmp_path: Path) -> None:
    config = b.config(mode="observe", server={"database": with_tokens(new_database(tmp_path / "a.db"), ["n1"])})
    config = config.model_copy(update={"limits": Limits(writes_per_second_per_token=0.1)})
    with closing(compose(config, Outside(VirtualSlurm(["n1"]), lambda _node: True, Still()))) as made:
        made.loop.tick()
        client, node, report = TestClient(made.app), bearer(Role.NODE, "n1"), msgspec.json.encode(b.report("n1"))
        assert client.post("/v1/reports", content=report, headers=node).status_code == 200, "the token is known now"
        asked = [client.post("/v1/launchers", content=b"{}", headers=node).status_code for _ in range(9)]
        assert (asked[0], asked[-1]) == (400, 429)
        assert client.post("/v1/reports", content=report, headers=node).status_code == 200


def test_the_defaults_refuse_nothing_that_a_fleet_sends() -> None:
    """12,500 agents that report three times a second; each has just asked for a restore point for 256 ranks."""
    limits = Limits()
    writes, reads = Rates(limits.writes_per_second_per_token), Rates(limits.reads_per_second_per_token)
    for second in range(3):
        for node in range(12_500):
            assert all(writes.admits(f"node n{node}", float(second)) for _ in range(3))
    assert all(reads.admits("node n1", 0.0) for _ in range(256))


def test_a_node_that_sends_too_many_reports_is_refused_and_the_others_are_not(client: TestClient) -> None:
    def post(node: str) -> int:
        return client.post("/v1/reports", content=b"{}", headers=bearer(Role.NODE, node)).status_code

    assert [post("n2") for _ in range(8)] == [400] * 6 + [429] * 2
    assert post("n3") == 400


def test_who_sends_at_the_rate_is_never_refused_and_senders_cost_bounded_memory() -> None:
    rates = Rates(per_second=2)
    assert all(rates.admits("a", now=number / 2) for number in range(1000))
    burst = [rates.admits("b", now=0.0) for _ in range(30)]
    assert burst.count(True) == 21
    assert rates.admits("b", now=1.0)
    for number in range(2 * SENDERS_MAX):
        rates.admits(str(number), now=2000.0)
    assert len(rates._due) <= SENDERS_MAX


def test_a_sender_that_may_send_at_its_full_rate_again_is_forgotten_and_one_that_may_not_is_not() -> None:
    rates = Rates(per_second=2)
    for number in range(100):
        rates.admits(str(number), now=0.0)
    rates.admits("b", now=0.0, amount=40)
    rates.admits("c", now=BURST_SECONDS)
    assert set(rates._due) == {"b", "c"}
    assert not rates.admits("b", now=BURST_SECONDS - 1)


@pytest.mark.parametrize("path", ["/v1/nodes/", "/v1/report/", "/healthz/", "/nodes/", "/dashboard/"])
def test_no_answer_sends_a_client_to_the_host_that_a_request_names(client: TestClient, path: str) -> None:
    answer = client.get(path, headers={"Host": "elsewhere.example"}, follow_redirects=False)
    assert "elsewhere.example" not in str(answer.headers)
    assert "//" not in answer.headers.get("location", "")
