"""A report of a real recovery, in each format, and of a real year of faults from the database."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import insert, update

from tests.dashboard.site import HOSTILE, played
from tests.new_database import new_database
from tests.recover.rehearsal import Rehearsal
from tests.signals.fault_trace import DAY, NODES, Fault, faults
from tests.tokens import as_user, bearer
from understudy_controlplane.figures.fleet_costs import History, fleet_costs
from understudy_controlplane.fleet.history import Span
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import Engine, open_database
from understudy_controlplane.store.history import HistoryStore

pytestmark = pytest.mark.integration

DAYS = 349.0
CONTROLS = "\x1b[2J\x07\r\x9b31m\u202e"
"""Control characters of a terminal."""


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    made = played(tmp_path_factory.mktemp("report"))
    with made.control_plane.engine.begin() as connection:
        connection.execute(update(tables.job).values(name=f"=1+1|{HOSTILE}{CONTROLS}", account="physics"))
    yield made
    made.control_plane.close()


@pytest.fixture(scope="module")
def viewer(rehearsal: Rehearsal) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))


def test_every_second_of_the_interrupted_gang_has_a_cause(rehearsal: Rehearsal, viewer: TestClient) -> None:
    report = viewer.get("/v1/report?since=0&gpu_hour_price=2.5").json()
    costs, (job,) = report["costs"], report["costs"]["jobs"]
    assert (job["user"], job["account"], job["partition"], job["interruptions"]) == (
        "researcher",
        "physics",
        "train",
        1,
    )
    lost = sum(job["lost_gpu_hours"].values())
    assert job["gpu_hours"] == pytest.approx(job["productive_gpu_hours"] + lost)
    assert job["lost_money"] == pytest.approx(2.5 * lost)
    assert job["ettr"] == pytest.approx(viewer.get(f"/v1/jobs/{job['job_id']}").json()["ettr"]["ratio"], abs=0.01)
    swap = next(one for one in rehearsal.recoveries() if one.swap is not None)
    assert job["lost_gpu_hours"]["detect"] * 3600 / job["gpus"] == pytest.approx(
        swap.detected_at - swap.fault_at, abs=1
    )
    assert job["lost_gpu_hours"]["recompute"] > 0
    assert job["lost_gpu_hours"]["swap"] > 0
    (row,) = [one for one in costs["interrupted"]["causes"] if one["interruptions"]]
    assert row["mtbf_hours"] < 1, "the records begin a minute before, not in 1970"
    assert (row["component"], row["category"], row["share"]) == ("Faulty GPU", "GPU", 1.0)
    assert (costs["spares"]["taken"], costs["users"][0]["spares_taken"]) == (1, 1)
    assert costs["users"][0]["spare_gpu_hours"] > 0
    assert costs["alarms"][0]["quarantines"] == 1


def test_each_format_has_the_same_tables(viewer: TestClient) -> None:
    asked = "/v1/report?since=0&gpu_hour_price=2.5&format="
    text, page, sheet = (viewer.get(asked + form) for form in ("text", "html", "csv"))
    kinds = [one.headers["content-type"].partition(";")[0] for one in (text, page, sheet)]
    assert kinds == ["text/markdown", "text/html", "text/csv"]
    assert text.text.startswith("# Understudy, 1970-01-01 00:00:00 to ")
    assert "\n- records begin: 2023-" in text.text
    titles = re.findall(r"^## (.+)$", text.text, re.MULTILINE)
    assert titles == re.findall(r"<h2>(.+)</h2>", page.text)
    assert titles[:3] == ["Interruptions by cause", "Rates", "Where the GPU-hours went"]
    rows = list(csv.reader(io.StringIO(sheet.text)))
    assert len({row[0] for row in rows} - {"table", "report"}) == len(titles)
    assert "lost money" in str(rows)
    assert "lost money" not in viewer.get("/v1/report?since=0&format=csv").text
    widths = {row[0]: len(row) for row in rows}
    assert all(len(row) == widths[row[0]] for row in rows if row[0] != "table")


def test_names_that_users_gave_change_no_file(viewer: TestClient) -> None:
    asked = "/v1/report?since=0&format="
    page = viewer.get(asked + "html")
    assert HOSTILE not in page.text
    assert "<script" not in page.text
    assert page.headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "://" not in page.text
    assert "'=1+1|" in viewer.get(asked + "csv").text
    assert "=1+1\\|&lt;img" in viewer.get(asked + "text").text
    for form in ("csv", "text"):
        assert viewer.get(asked + form).text.replace("\n", "").isprintable()


def test_a_plot_says_in_words_what_it_shows(viewer: TestClient) -> None:
    page = viewer.get("/v1/report?since=0&format=html").text
    labels = re.findall(r'<svg class="plot" role="img" [^>]*aria-label="([^"]+)"', page)
    assert len(labels) == 3
    assert labels[1] == "Faulty GPU: 1"


def test_a_span_without_anything_has_a_report_as_well(viewer: TestClient) -> None:
    for form in ("json", "text", "html", "csv"):
        answer = viewer.get(f"/v1/report?since=1&until=2&format={form}")
        assert answer.status_code == 200, answer.text
    assert viewer.get("/v1/report?since=5&until=5").json()["costs"]["jobs"] == []


def test_who_may_not_read_gets_no_report_and_a_wrong_question_is_refused(
    rehearsal: Rehearsal, viewer: TestClient
) -> None:
    plane = rehearsal.control_plane
    for headers in (bearer(Role.METRICS), bearer(Role.NODE, "n1"), as_user(plane.admission, 1000)):
        assert TestClient(plane.app, headers=headers).get("/v1/report").status_code == 403
    for wrong in ("format=pdf", "gpu_hour_price=0", "gpu_hour_price=nan", "price=1"):
        assert viewer.get(f"/v1/report?{wrong}").status_code == 422, wrong


@pytest.fixture(scope="module")
def year(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The trace of 400 servers, as a control plane would have stored it: each fault takes its node out of service."""
    engine = open_database(new_database(Path(tmp_path_factory.mktemp("year")) / "fleet.db"))
    known = faults()
    with engine.begin() as connection:
        connection.execute(insert(tables.decision), [*(_change(one, out=True) for one in known), *_returns(known)])
    yield engine
    engine.dispose()


def _change(fault: Fault, *, out: bool) -> dict[str, Any]:
    states = ("in_service", "quarantined") if out else ("quarantined", "in_service")
    return {
        "key": "",
        "table_row": 10,
        "rule": "xid.79",
        "subject": fault.node,
        "because": "rule",
        "reason": "",
        "at": (fault.begin if out else fault.end) * DAY,
        "action": "quarantine" if out else "return",
        "from_state": states[0],
        "to_state": states[1],
        "evidence": {},
    }


def _returns(known: list[Fault]) -> list[dict[str, Any]]:
    """A node that has a second fault comes back with the end of both."""
    found = []
    for one in known:
        others = [other for other in known if other.node == one.node and other.begin < one.end < other.end]
        found += [] if others else [_change(one, out=False)]
    return found


def test_the_trace_of_400_servers_gives_its_known_figures(year: Engine) -> None:
    history = HistoryStore(year)
    nodes = {f"n{number}": (NodeState.IN_SERVICE, 0.0) for number in range(NODES)}
    costs = fleet_costs(
        History(nodes=nodes, gpus=8 * NODES, transitions=history.transitions(0.0, DAYS * DAY)),
        Span(0.0, DAYS * DAY),
        2.5,
    )
    assert costs.alarms[0].quarantines == 584
    assert costs.outages.down_mean == pytest.approx(9.26, abs=0.005)
    spares = costs.spares
    assert (spares.needed_binomial, spares.needed_poisson, spares.needed_by_history) == (5, 17, 31)
    assert costs.outages.worst_nodes_share == pytest.approx(0.245, abs=0.01)
    assert [round(one.share, 2) for one in costs.outages.failed_again] == pytest.approx(
        [0.226, 0.314, 0.428], abs=0.015
    )


@pytest.mark.parametrize("query", ["since=-1e300", "until=1e300", "since=1e300&until=-1e300", "gpu_hour_price=1e308"])
def test_a_time_that_no_calendar_has_is_refused(viewer: TestClient, query: str) -> None:
    assert viewer.get(f"/v1/report?{query}").status_code == 422


def test_a_span_that_ends_before_it_begins_or_has_not_begun_is_empty(viewer: TestClient) -> None:
    for query in ("since=4000000000&until=0", "since=4000000000", "since=0&until=1"):
        for form in ("json", "text", "html", "csv"):
            assert viewer.get(f"/v1/report?{query}&format={form}").status_code == 200
