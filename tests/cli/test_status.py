"""`understudy status`: counts, and what needs a person, in about 20 lines."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from tests.cli.conftest import Served
from understudy_client import Client, Status
from understudy_client.records import LoopState, Need, SlurmReading, SparePool
from understudy_controlplane.cli.output import Exit
from understudy_controlplane.cli.status import lines, show

pytestmark = pytest.mark.integration

NOW = 1_000_000.0


def status(**changes: Any) -> Status:
    values: dict[str, Any] = {
        "cluster": "c",
        "mode": "act",
        "mode_configured": "act",
        "paused": "",
        "paused_until": None,
        "paused_jobs": (),
        "breaker": "",
        "slurm": SlurmReading(NOW - 1, ""),
        "loop": LoopState(NOW - 2, 0.25, ""),
        "nodes": {"quarantined": 12, "in_service": 12_480},
        "spares": SparePool(7, 8),
        "incidents_open": 3,
        "recoveries_running": 1,
        "problems": (),
    }
    return Status(**values | changes)


def test_it_counts() -> None:
    shown = lines(status(), NOW)
    assert "nodes       12,492: 12,480 in_service, 12 quarantined" in shown
    assert "spares      7 of 8" in shown
    assert "Slurm       read 1 s ago" in shown
    assert shown[-1] == "nothing needs a person"


def test_it_shows_until_when_it_is_paused_and_what_the_mode_means() -> None:
    shown = lines(status(mode="approve", paused="moving (alice)", paused_until=NOW), NOW)
    assert "paused      moving (alice), until 1970-01-12 13:46:40" in shown
    assert "mode        approve: each recovery waits for an operator" in shown


def test_it_names_what_needs_a_person() -> None:
    needs = (
        Need("control_plane", "control plane", None, "the loop hangs", "", urgent=False),
        Need("node_out", "n3", NOW - 7200, "n3 is quarantined", "`understudy node release n3 REASON`", urgent=False),
    )
    found = status(problems=("…", "…"), needs=needs, needs_count=2, slurm=SlurmReading(0.0, "timed out"))
    shown = lines(found, NOW)
    assert shown[-3:] == [
        "needs a person:",
        "  the loop hangs",
        "  for 2 h: n3 is quarantined: `understudy node release n3 REASON`",
    ]
    assert "Slurm       not read yet" in shown


def test_an_older_control_plane_names_them_as_text() -> None:
    assert lines(status(problems=("the loop hangs",)), NOW)[-2:] == ["needs a person:", "  the loop hangs"]


@pytest.mark.parametrize(
    ("problems", "as_json", "code"), [((), False, 0), (("it hangs",), False, 6), (("it hangs",), True, 6)]
)
def test_check_exits_with_a_code_of_its_own_where_something_needs_a_person(
    problems: tuple[str, ...], as_json: bool, code: int
) -> None:
    answer = httpx.Response(200, json=msgspec.to_builtins(status(problems=problems)))
    with Client("http://control-plane", transport=httpx.MockTransport(lambda _: answer)) as client:
        assert (Exit.PERSON_NEEDED if show(client, as_json=as_json) else Exit.DONE) == code


@pytest.mark.parametrize("problems", [0, 10, 11, 5000])
def test_it_stays_short(problems: int) -> None:
    shown = lines(status(problems=tuple(f"problem {number}" for number in range(problems))), NOW)
    assert len(shown) <= 22
    assert (f"  and {problems - 10} more: `understudy status --json`" in shown) == (problems > 10)


def test_it_is_what_the_control_plane_answers(observing: Served) -> None:
    printed = observing.run("status")
    assert "mode        observe: decides and records, changes nothing" in printed
    assert "nodes       4: 4 in_service" in printed
    assert json.loads(observing.run("status", "--json"))["nodes"] == {"in_service": 4}


def test_it_asks_one_question_however_large_the_fleet_is() -> None:
    """Its answer has no list of nodes."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, json=msgspec.to_builtins(status()))

    with Client("http://control-plane", transport=httpx.MockTransport(answer)) as client:
        show(client, as_json=False)
        show(client, as_json=True)
    assert asked == ["/v1/status", "/v1/status"]
