"""The post-mortem of a real recovery, and of incidents as they may be stored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Double, update

from tests.dashboard.site import played
from tests.recover.rehearsal import Rehearsal
from tests.tokens import as_user, bearer
from understudy_controlplane.api.documents import Form
from understudy_controlplane.api.post_mortem import Moved, Story, document
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store import tables

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    made = played(tmp_path_factory.mktemp("post-mortem"))
    yield made
    made.control_plane.close()


@pytest.fixture(scope="module")
def viewer(rehearsal: Rehearsal) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))


@pytest.fixture(scope="module")
def text(viewer: TestClient) -> str:
    answer = viewer.get("/v1/incidents/1/post-mortem?format=text")
    assert viewer.get("/v1/incidents/1/post-mortem").json() == {"incident": 1, "text": answer.text}
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/markdown")
    return answer.text


def section(text: str, title: str) -> str:
    found = re.search(rf"^## {title}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, text
    return found[1].strip()


def test_it_has_all_parts_in_their_order(text: str) -> None:
    assert text.startswith("# Incident 1: ")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles == ["What it cost", "Timeline", "Evidence", "Decisions", "What would have shortened it"]


def test_the_timeline_goes_from_the_first_evidence_over_each_step_to_the_end(text: str, rehearsal: Rehearsal) -> None:
    rows = section(text, "Timeline").splitlines()[2:]
    times = [row.split("|")[1].strip() for row in rows]
    assert times == sorted(times)
    assert "first evidence: " in rows[0]
    swap = next(one for one in rehearsal.recoveries() if one.swap is not None)
    for step in swap.steps:
        assert any(f"recovery {swap.id} (pool): {step.name.value.replace('_', ' ')} done" in row for row in rows), step
    assert any("decision: quarantine n3" in row for row in rows)


def test_it_says_what_the_gang_lost(text: str, viewer: TestClient) -> None:
    costs = section(text, "What it cost")
    (recovery,) = [one for one in viewer.get("/v1/recoveries").json()["items"] if one["kind"] == "pool"]
    assert f"job 1 stood still for {recovery['phases_ms']['first_step'] / 1000:.1f} s" in costs
    assert re.search(r"GPU-hours on \d+ GPUs", costs)
    assert "n3 was out of service for" in costs


def test_each_decision_has_its_row_and_reason_and_the_evidence_is_whole(text: str, viewer: TestClient) -> None:
    decided = section(text, "Decisions")
    incident = viewer.get("/v1/incidents/1").json()
    assert "| 10 | n3 | quarantine |" in decided
    assert str(next(iter(incident["evidence"]))) in section(text, "Evidence")
    assert section(text, "What would have shortened it").startswith("- ")


def test_an_incident_that_is_not_there_is_refused_and_so_are_those_who_may_not_read(
    rehearsal: Rehearsal, viewer: TestClient
) -> None:
    assert viewer.get("/v1/incidents/99/post-mortem").status_code == 404
    plane = rehearsal.control_plane
    for headers in (bearer(Role.METRICS), bearer(Role.NODE, "n1"), as_user(plane.admission, 1000)):
        assert TestClient(plane.app, headers=headers).get("/v1/incidents/1/post-mortem").status_code == 403


PHASES = {"detected": 2000, "decided": 2000, "requeued": 3000, "running": 5000, "first_step": 65_000}
SWAP = {
    "id": 9,
    "kind": "pool",
    "status": "succeeded",
    "outcome": "",
    "job": {"job_id": 17},
    "steps": (),
    "fault_at": 100.0,
    "decided_at": 102.0,
    "ended_at": 170.0,
    "approve_by": None,
    "phases_ms": PHASES,
}
INCIDENT = {
    "id": 7,
    "subject_kind": "node",
    "subject": "n3",
    "rule": "xid.79",
    "signal": "hardware_fault",
    "summary": "GPU | <b>lost</b>\n# x",
    "evidence": {"line": "```"},
    "findings": [],
    "fault_at": 100.0,
    "opened_at": 102.0,
    "closed_at": None,
    "outcome": "",
}


def decision(at: float, action: str, because: str = "rule") -> dict[str, Any]:
    fixed = {"table_row": 10, "subject": "n3", "reason": "it is lost", "recovery": None}
    return {"at": at, "action": action, "because": because} | fixed


def story(moved: Moved, *decisions: dict[str, Any], price: float | None = 2.0) -> str:
    return document(Story(INCIDENT, decisions, [SWAP], [], [moved], price, 400.0)).rendered(Form.TEXT)


def test_steps_done_again_guards_and_money_are_in_it() -> None:
    held, acted = decision(101.0, "nothing", "fleet_budget"), decision(151.0, "quarantine")
    moved = Moved(SWAP | {"steps_lost": 10, "decided_at": 151.0}, gpus=360, step_seconds=3.5)
    text = story(moved, held, acted)
    assert (
        "- job 17 stood still for 65.0 s (recovery 9, succeeded) and did 10 steps again, for 35.0 s: 10 GPU-hours on "
        "360 GPUs, 20.00 in money" in text
    )
    assert "- n3 was out of service for 4.2 min so far" in text
    advice = section(text, "What would have shortened it").splitlines()
    assert [line.partition(". ")[0] for line in advice] == [
        "- 60.0 s until its first step",
        "- 50.0 s held back by fleet budget",
        "- 35.0 s steps done again",
    ]


def test_what_users_wrote_breaks_no_table_and_no_block() -> None:
    text = story(Moved(SWAP, None, None), decision(102.0, "quarantine"), price=None)
    assert text.startswith("# Incident 7: GPU \\| &lt;b>lost&lt;/b> # x\n")
    assert text.count("```") == 2
    assert "GPU-hours" not in text


def test_each_form_has_the_same_parts(viewer: TestClient, text: str) -> None:
    page = viewer.get("/v1/incidents/1/post-mortem?format=html").text
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert re.findall(r"<h2>(.+)</h2>", page) == titles
    assert "<li>job 1 stood still for " in page


def test_a_gang_that_still_stands_has_no_cost_yet() -> None:
    running = SWAP | {"ended_at": None, "status": "running", "phases_ms": {"detected": 2000}}
    assert "- job 17 stands still since 1970-01-01 00:01:40.000 (recovery 9 runs)" in story(Moved(running, 8, 1.0))


@pytest.mark.parametrize("at", [1e308, -1e308])
def test_a_row_with_a_time_that_no_calendar_has_breaks_no_page(
    viewer: TestClient, rehearsal: Rehearsal, at: float
) -> None:
    """Earlier releases stored what a node, or a user's launcher, named."""
    node = viewer.get("/v1/incidents").json()["items"][0]["subject"]
    job = viewer.get("/v1/jobs").json()["items"][0]["job_id"]
    with rehearsal.control_plane.engine.begin() as connection:
        for table in tables.metadata.sorted_tables:
            times = {column.name: at for column in table.c if isinstance(column.type, Double)}
            if times and table not in (tables.audit, tables.token):
                connection.execute(update(table).values(times))
    of_api = [path for path, operations in viewer.get("/openapi.json").json()["paths"].items() if "get" in operations]
    pages = ["/", "/dashboard", f"/dashboard/nodes/{node}", f"/dashboard/jobs/{job}", "/dashboard/incidents/1"]
    pages.append("/v1/incidents/1/post-mortem?format=text")
    known = {"node": node, "job_id": str(job)}
    paths = [re.sub("{([a-z_]+)}", lambda match: known.get(match[1], "1"), path) for path in [*of_api, *pages]]
    answers = {path: viewer.get(path).status_code for path in paths if "live" not in path and "events" not in path}
    assert {path: status for path, status in answers.items() if status >= 500 or status == 401} == {}
    assert sum(status == 200 for status in answers.values()) > 30
