"""A client with the addresses of two control planes."""

from __future__ import annotations

import httpx
import pytest

from understudy_client import Client, UnreachableError

BOTH = "http://a:7117, http://b:7117/"


class Hosts:
    """Two hosts, each of which leads, stands by, is frozen, or is cut off from its database."""

    def __init__(self, a: str, b: str) -> None:
        self.states = {"a": a, "b": b}
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        host, path = request.url.host, request.url.path
        self.asked.append(f"{request.method} {host} {path}")
        match self.states[host]:
            case "stands by":
                raise httpx.ConnectError("refused", request=request)
            case "frozen":
                raise httpx.ReadTimeout("timed out", request=request)
            case "cut off":
                return httpx.Response(503, json={"detail": "the database does not answer"})
        return httpx.Response(200, json={"host": host})

    def client(self, url: str = BOTH) -> Client:
        return Client(url, "secret", transport=httpx.MockTransport(self))


@pytest.mark.parametrize("a", ["stands by", "frozen", "cut off"])
def test_a_request_goes_to_the_control_plane_that_leads_and_to_no_other(a: str) -> None:
    hosts = Hosts(a, "leads")
    with hosts.client() as client:
        assert client.post("/v1/pause", "cables").host == "b"
        assert client.get("/v1/status").host == "b"
    assert hosts.asked == ["GET a /readyz", "GET b /readyz", "POST b /v1/pause", "GET b /v1/status"]


def test_one_address_is_asked_for_nothing_else() -> None:
    hosts = Hosts("leads", "leads")
    with hosts.client("http://a:7117") as client:
        client.get("/v1/status")
    assert hosts.asked == ["GET a /v1/status"]


def test_after_a_takeover_the_next_request_finds_the_new_leader() -> None:
    hosts = Hosts("leads", "stands by")
    with hosts.client() as client:
        client.get("/v1/status")
        hosts.states = {"a": "stands by", "b": "leads"}
        assert client.post("/v1/pause", "cables").host == "b"
    assert hosts.asked.count("POST b /v1/pause") == 1


def test_a_request_that_the_control_plane_may_have_received_is_not_sent_again() -> None:
    hosts = Hosts("leads", "stands by")
    with hosts.client() as client:
        client.get("/v1/status")
        hosts.states = {"a": "frozen", "b": "leads"}
        with pytest.raises(UnreachableError):
            client.post("/v1/pause", "cables")
        assert hosts.asked[-1] == "POST a /v1/pause"
        assert client.post("/v1/pause", "cables").host == "b"


def test_one_that_cannot_work_is_asked_where_none_can() -> None:
    hosts = Hosts("stands by", "cut off")
    with hosts.client() as client, pytest.raises(UnreachableError, match="the database does not answer"):
        client.get("/v1/status")


def test_where_none_answers_all_are_named() -> None:
    with Hosts("stands by", "stands by").client() as client, pytest.raises(UnreachableError) as raised:
        client.get("/v1/status")
    assert "http://a:7117, http://b:7117: no answer" in str(raised.value)
