"""`understudy events`, and the client's stream: a connection that is lost leaves no event out."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.cli.conftest import Served
from understudy_client import Client, RefusedError, UnreachableError
from understudy_controlplane.cli import events as events_module
from understudy_controlplane.cli.events import follow
from understudy_controlplane.fleet.identity import Role

pytestmark = pytest.mark.integration

URL = "http://control-plane"


class Broken(httpx.SyncByteStream):
    """An answer whose connection is lost at its end."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __iter__(self) -> Iterator[bytes]:
        yield self._text.encode()
        raise httpx.ReadError("connection reset by peer")


def block(number: int) -> str:
    event = {"kind": "decision", "at": 1.7e9, "number": number, "subject": "n3", "nodes": ["n3"], "job": 7}
    return f"event: decision\nid: c{number}\ndata: {json.dumps(event | {'text': f'text {number}'})}\n\n"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[httpx.Response | httpx.ConnectError]:
    monkeypatch.setattr(events_module, "RECONNECT_SECONDS", 0.0)
    ended = httpx.Response(401, json={"detail": "the token is unknown, expired or revoked"})
    torn = httpx.Response(200, stream=Broken("retry: 1000\nid: c0\n\n" + block(1) + "event: decision\nid: c2\nda"))
    return [
        torn,
        httpx.ConnectError("refused"),
        httpx.ConnectError("refused"),
        httpx.Response(200, text=block(2)),
        ended,
    ]


def client_of(answers: list[httpx.Response | httpx.ConnectError], asked: list[httpx.Request]) -> Client:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        found = answers.pop(0)
        if isinstance(found, httpx.ConnectError):
            raise found
        return found

    return Client(URL, "secret", transport=httpx.MockTransport(answer))


def test_a_lost_connection_is_made_again_behind_the_last_whole_event(
    answers: list[httpx.Response | httpx.ConnectError], capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[httpx.Request] = []
    with client_of(answers, asked) as client, pytest.raises(RefusedError):
        follow(client.events(kinds=["decision", "request"], node=None), as_json=False)
    assert [one.headers.get("last-event-id") for one in asked] == [None, "c1", "c1", "c1", "c2"]
    assert str(asked[0].url) == f"{URL}/v1/events?kinds=decision&kinds=request"
    printed = capsys.readouterr()
    assert printed.out.splitlines() == [
        f"2023-11-14 22:13:20 decision {number} n3 (job 7): text {number}" for number in (1, 2)
    ]
    assert printed.err.count("tried again") == 1, "a note for each outage"


def test_with_json_each_line_is_an_event_with_its_id(
    answers: list[httpx.Response | httpx.ConnectError], capsys: pytest.CaptureFixture[str]
) -> None:
    with client_of(answers, []) as client, pytest.raises(RefusedError):
        follow(client.events("c0"), as_json=True)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["id"], one["number"], one["nodes"]) for one in shown] == [("c1", 1, ["n3"]), ("c2", 2, ["n3"])]


def test_without_a_first_answer_it_does_not_wait(answers: list[httpx.Response | httpx.ConnectError]) -> None:
    with client_of(answers[1:], []) as client, pytest.raises(UnreachableError):
        follow(client.events("c0"), as_json=False)


def test_events_are_for_those_who_may_read(observing: Served) -> None:
    assert "may not read" in observing.run("events", role=Role.METRICS, status=1)
    assert "cannot be read" in observing.run("events", "--after", "yesterday", status=2)
