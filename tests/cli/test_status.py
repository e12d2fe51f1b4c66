"""`understudy status`: counts, and what needs a person, in about 20 lines."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Served, record
from understudy_client import Client, Record
from understudy_controlplane.cli.output import Exit
from understudy_controlplane.cli.status import lines, show

pytestmark = pytest.mark.integration

NOW = 1_000_000.0


def status(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "cluster": "c",
        "mode": "act",
        "mode_configured": "act",
        "mode_nodes": {},
        "paused": "",
        "mode_limit": "",
        "paused_until": None,
        "paused_jobs": (),
        "breaker": "",
        "slurm": {"read_at": NOW - 1, "error": ""},
        "loop": {"last_tick_at": NOW - 2, "tick_seconds": 0.25, "error": ""},
        "lead": None,
        "nodes": {"quarantined": 12, "in_service": 12_480},
        "spares": {"held": 7, "wanted": 8},
        "incidents_open": 3,
        "recoveries_running": 1,
        "problems": (),
        "needs": (),
        "needs_count": 0,
    }
    return record(**values | changes)


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


def test_it_shows_who_leads_and_who_stood_by() -> None:
    others = [
        {"name": "head2:7117", "seen_at": NOW - 1, "stands_by": True},
        {"name": "head3:7117", "seen_at": NOW - 360, "stands_by": False},
    ]
    shown = lines(status(lead={"url": "head1:7117", "term": 7, "since": NOW, "others": others}), NOW)
    assert "leads       head1:7117 since 1970-01-12 13:46:40, term 7" in shown
    assert "stands by   head2:7117; head3:7117 does not, last seen 6 min ago" in shown
    assert not any(one.startswith("leads") for one in lines(status(), NOW)), "on SQLite there is one"


def need(why: str, since: float | None = None, command: str = "") -> dict[str, Any]:
    return {"why": why, "since": since, "command": command}


def needing(*needs: dict[str, Any], **changes: Any) -> Record:
    return status(problems=["…"] * len(needs), needs=needs[:100], needs_count=len(needs), **changes)


def test_it_names_what_needs_a_person() -> None:
    out = need("n3 is quarantined", NOW - 7200, "`understudy node release n3 REASON`")
    shown = lines(needing(need("the loop hangs"), out, slurm={"read_at": 0.0, "error": "timed out"}), NOW)
    assert shown[-3:] == [
        "needs a person:",
        "  the loop hangs",
        "  for 2 h: n3 is quarantined: `understudy node release n3 REASON`",
    ]
    assert "Slurm       not read yet" in shown


@pytest.mark.parametrize(
    ("needs", "as_json", "code"), [((), False, 0), ((need("it hangs"),), False, 6), ((need("it hangs"),), True, 6)]
)
def test_check_exits_with_a_code_of_its_own_where_something_needs_a_person(
    needs: tuple[dict[str, Any], ...], as_json: bool, code: int
) -> None:
    answer = httpx.Response(200, json=needing(*needs))
    with Client("http://control-plane", transport=httpx.MockTransport(lambda _: answer)) as client:
        assert (Exit.PERSON_NEEDED if show(client, as_json=as_json) else Exit.DONE) == code


@pytest.mark.parametrize("problems", [0, 10, 11, 5000])
def test_it_stays_short(problems: int) -> None:
    shown = lines(needing(*(need(f"problem {number}") for number in range(problems))), NOW)
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
        return httpx.Response(200, json=status())

    with Client("http://control-plane", transport=httpx.MockTransport(answer)) as client:
        show(client, as_json=False)
        show(client, as_json=True)
    assert asked == ["/v1/status", "/v1/status"]
