"""What comes of a request, as its command prints it and ends with it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import httpx
import pytest
from click.testing import CliRunner

from understudy_client import Client, RefusedError
from understudy_client.client import REPEATS_MAX
from understudy_controlplane.cli.requests import confirm_warnings, send


def answering(outcome: str, *statuses: str) -> Client:
    """A client of a control plane whose request has these statuses, one after the other."""
    state: Iterator[str] = iter(statuses)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            accepted = {"request": 7, "subject": "c2", "verb": "hold", "outcome": outcome, "why": "because"}
            return httpx.Response(202, json=accepted)
        assert request.url.path == "/v1/requests/7"
        shown = {"id": 7, "verb": "hold", "subject": "c2", "by": "alice", "reason": "fan", "at": 1.0}
        return httpx.Response(200, json=shown | {"status": next(state), "why": "as decided"})

    return Client("http://control-plane", transport=httpx.MockTransport(answer))


def end(client: Client, *, wait: bool = False, as_json: bool = False) -> tuple[int, str]:
    @click.command()
    def command() -> None:
        send(client, as_json, ["/v1/nodes/c2/hold"], reason="fan", wait=wait)

    done = CliRunner().invoke(command)
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("outcome", "code", "printed"),
    [
        ("will_act", 0, "will be carried out (request 7): because"),
        ("held_by_guard", 3, "waits for a guard (request 7): because"),
        ("awaits_approval", 5, "awaits approval (request 7): because"),
        ("observe_only", 5, "recorded only: the control plane observes and changes nothing (request 7): because"),
    ],
)
def test_each_outcome_has_its_exit_code(outcome: str, code: int, printed: str) -> None:
    assert end(answering(outcome)) == (code, f"c2: hold: {printed}\n")


@pytest.mark.parametrize(
    ("warning", "typed", "code"), [("", "", 0), ("GPU 3 is lost", "y", 0), ("GPU 3 is lost", "n", 1)]
)
def test_a_person_confirms_a_request_against_which_something_speaks(warning: str, typed: str, code: int) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content)["dry_run"]
        accepted = {"request": None, "subject": "c2", "verb": "release", "outcome": "will_act", "why": "it returns"}
        return httpx.Response(200, json=accepted | {"warning": warning})

    @click.command()
    def command() -> None:
        with Client("http://control-plane", transport=httpx.MockTransport(answer)) as client:
            confirm_warnings(client, ["/v1/nodes/c2/release"], reason="fan")

    done = CliRunner().invoke(command, input=typed)
    assert (done.exit_code, warning in done.output, "all the same?" in done.output) == (code, True, bool(warning))


@pytest.mark.parametrize(("status", "code"), [("done", 0), ("given_up", 1), ("failed", 1), ("refused", 1)])
def test_wait_ends_with_what_became_of_it(status: str, code: int) -> None:
    found, printed = end(answering("will_act", "waiting", status), wait=True)
    assert (found, printed.splitlines()[-1]) == (code, f"c2: hold is {status.replace('_', ' ')}: as decided")


def test_requests_above_the_rate_are_repeated_after_the_time_that_the_control_plane_names() -> None:
    answers = iter([429, 429, 200, *[429] * (REPEATS_MAX + 1)])

    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(next(answers), json={"detail": "too many"}, headers={"Retry-After": "0"})

    with Client("http://control-plane", "secret", transport=httpx.MockTransport(answer)) as client:
        assert client.get("/v1/status") == {"detail": "too many"}
        with pytest.raises(RefusedError, match="too many"):
            client.post("/v1/pause", "cables")
    assert next(answers, None) is None, "not without end"


def test_wait_goes_on_while_a_guard_holds_it_and_not_where_it_is_only_recorded() -> None:
    assert end(answering("held_by_guard", "waiting", "done"), wait=True)[0] == 0
    assert end(answering("observe_only"), wait=True)[0] == 5
    assert end(answering("awaits_approval"), wait=True)[0] == 5


def test_json_is_the_answer_or_after_a_wait_what_became_of_it() -> None:
    (answer,) = json.loads(end(answering("will_act"), as_json=True)[1])
    assert (answer["request"], answer["outcome"]) == (7, "will_act")
    (state,) = json.loads(end(answering("will_act", "done"), wait=True, as_json=True)[1])
    assert (state["id"], state["status"]) == (7, "done")
