"""Who may see the pages, what the pages may load and do, and what they show of a real recovery."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import msgspec
import pytest
from fastapi.testclient import TestClient
from structlog.testing import capture_logs

from tests import REPOSITORY
from tests import builders as b
from tests.dashboard.site import HOSTILE, enlarge, open_tickets, played, set_state
from tests.recover.rehearsal import Rehearsal
from tests.tokens import as_user, bearer, secret
from understudy_controlplane.access.admission import Denied
from understudy_controlplane.config import Limits
from understudy_controlplane.config.retention import Retention
from understudy_controlplane.dashboard.live import LiveViews
from understudy_controlplane.dashboard.page import RELEASE, STATIC, Page
from understudy_controlplane.dashboard.pages import Pages
from understudy_controlplane.fleet.identity import Identity, Role
from understudy_controlplane.fleet.maintenance import Maintenance
from understudy_controlplane.fleet.node import NodeState
from understudy_controlplane.store.retention import CHECKPOINTS_KEPT
from understudy_wire.ranks import Training

pytestmark = pytest.mark.integration

HERE = "https://understudy.example"
GRAFANA = "https://grafana.example"
OWN_PAGE = {"Sec-Fetch-Site": "same-origin"}
PAGES = (
    *("", "/nodes/n3", "/nodes/n1", "/nodes/r01n08", "/jobs", "/jobs/1", "/recoveries", "/nodes?q=n3"),
    *("/incidents", "/incidents/1", "/guards", "/tickets", "/tickets/1", "/tickets/2", "/notifications"),
    *("/reports", "/reports?by=7d", "/reports?by=nonsense"),
    *("?by=switch", "?by=nonsense"),
)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    made = played(tmp_path_factory.mktemp("dashboard"), server={"grafana_url": f"{GRAFANA}/"})
    enlarge(made.control_plane, racks=10)
    open_tickets(made)
    yield made
    made.control_plane.close()


def browser(rehearsal: Rehearsal, role: Role | None = None) -> TestClient:
    client = TestClient(rehearsal.control_plane.app, base_url=HERE, follow_redirects=False)
    if role is not None:
        answer = client.post("/v1/session", json={"token": secret(role)}, headers=OWN_PAGE)
        assert answer.status_code == 200, answer.text
    return client


@pytest.fixture(scope="module")
def viewer(rehearsal: Rehearsal) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER), follow_redirects=False)


@pytest.fixture(scope="module")
def operator(rehearsal: Rehearsal) -> TestClient:
    return TestClient(rehearsal.control_plane.app, headers=bearer(Role.OPERATOR), follow_redirects=False)


def swap_of(rehearsal: Rehearsal) -> int:
    return rehearsal.recoveries()[-1].id


@pytest.mark.parametrize("path", PAGES)
def test_each_page_loads_and_runs_its_own_files_alone(viewer: TestClient, path: str) -> None:
    page = viewer.get(f"/dashboard{path}")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "'unsafe" not in policy
    assert "://" not in page.text.replace(f'href="{GRAFANA}/', "")  # a link to another site loads nothing
    assert not re.search(r"<[^>]* (on\w+|style)=", page.text.replace(HOSTILE, "")), "the policy would refuse it"


def test_a_browser_without_a_session_logs_in_and_comes_back(rehearsal: Rehearsal) -> None:
    stranger = browser(rehearsal)
    found = {path: stranger.get(path) for path in ("/", "/dashboard", "/dashboard/nodes/n3", "/dashboard/find?q=n3")}
    assert {path: (one.status_code, one.headers["location"]) for path, one in found.items()} == {
        "/": (303, "dashboard"),
        "/dashboard": (303, "login#dashboard"),
        "/dashboard/nodes/n3": (303, "../../login#dashboard/nodes/n3"),
        "/dashboard/find?q=n3": (303, "../login#dashboard/find"),
    }
    assert stranger.get("/dashboard/live").status_code == 401
    assert browser(rehearsal, Role.VIEWER).get("/dashboard/nodes/n3").status_code == 200


def test_no_page_is_shown_to_those_who_may_not_read(rehearsal: Rehearsal) -> None:
    plane = rehearsal.control_plane
    for headers in (bearer(Role.METRICS), bearer(Role.NODE, "n1"), as_user(plane.admission, 1000)):
        client = TestClient(plane.app, headers=headers, follow_redirects=False)
        for path in ("/dashboard", "/dashboard/jobs/1", "/dashboard/live", "/dashboard/find?q=1"):
            answer = client.get(path)
            if answer.status_code == 303:  # a user of the cluster
                assert answer.headers["location"] == "dashboard/my"
                continue
            assert answer.status_code == 403, path
            assert "n3" not in answer.text


class TestThePageOfAUser:
    @pytest.fixture
    def owner(self, rehearsal: Rehearsal) -> TestClient:
        user_id = next(job.user_id for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)
        headers = as_user(rehearsal.control_plane.admission, user_id, "researcher")
        return TestClient(rehearsal.control_plane.app, headers=headers, follow_redirects=False)

    def test_has_their_jobs_what_happened_to_them_and_planned_maintenance(
        self, rehearsal: Rehearsal, owner: TestClient
    ) -> None:
        plane = rehearsal.control_plane
        snapshot = plane.loop.pulse.snapshot
        assert snapshot is not None
        now = snapshot.now
        planned = Maintenance(1, ("n1",), ("n1",), "a secret of operators", "ada", now, now + 3600, 1)
        plane.loop.pulse.snapshot = b.changed(snapshot, maintenances=(planned,))
        page = owner.get("/dashboard/my")
        plane.loop.pulse.snapshot = snapshot
        assert page.status_code == 200
        text = re.sub(r"<[^>]+>", "", page.text)
        assert "Jobs of user researcher" in text
        assert "runs well" in text
        assert "n3: hardware fault" in text
        assert "Understudy restarted it with n6; it stood still for" in text
        assert "your job 1 runs on 1 of them" in text
        for hidden in ("a secret of operators", "ada", "student", "Guards", "quarantined", "xid.79"):
            assert hidden not in text, hidden

    def test_shows_no_job_of_others(self, rehearsal: Rehearsal) -> None:
        headers = as_user(rehearsal.control_plane.admission, 4711, "eve")
        page = TestClient(rehearsal.control_plane.app, headers=headers).get("/dashboard/my").text
        assert "Slurm has shown no job of yours yet" in page
        assert "Understudy has not restarted any of them" in page

    def test_is_where_their_browser_is_sent_and_all_they_see(self, owner: TestClient) -> None:
        begun = owner.get("/dashboard")
        assert (begun.status_code, begun.headers["location"]) == (303, "dashboard/my")
        for path in PAGES[1:-2]:
            assert owner.get(f"/dashboard{path}").status_code == 403, path
        assert owner.get("/dashboard/live", params={"page": "jobs"}).status_code == 403

    def test_is_of_no_operator(self, operator: TestClient) -> None:
        assert operator.get("/dashboard/my").status_code == 403

    def test_acts_on_their_own_jobs_alone(self, owner: TestClient, rehearsal: Rehearsal) -> None:
        assert re.findall(r'data-act="([^"]+)"', owner.get("/dashboard/my").text) == ["v1/jobs/1/pause"]
        for path, status in {"jobs/1/pause": 200, f"jobs/{rehearsal.hungry}/pause": 404, "nodes/n1/hold": 403}.items():
            answer = owner.post(f"/v1/{path}", json={"reason": "a dry run", "dry_run": True})
            assert answer.status_code == status, (path, answer.text)

    def test_is_kept_up_to_date_for_each_user_alone(self, rehearsal: Rehearsal) -> None:
        eve = Identity(Role.USER, "user eve (4711)", "", "", user_id=4711)
        pages = Pages(rehearsal.control_plane.reads)
        seen = pages.read(eve, "my")
        assert isinstance(seen, Page)
        assert "researcher" not in str(seen.parts)


def test_a_viewer_sees_no_actions_and_an_operator_sees_those_that_fit(viewer: TestClient, operator: TestClient) -> None:
    assert "data-act" not in viewer.get("/dashboard/nodes/n3").text
    shown = re.findall(r'data-act="v1/nodes/n3/([^"]+)"', operator.get("/dashboard/nodes/n3").text)
    assert shown == ["release", "hold", "retire"]
    shown = re.findall(r'data-act="v1/nodes/n1/([^"]+)"', operator.get("/dashboard/nodes/n1").text)
    assert shown == ["validate", "burn-in", "quarantine", "hold", "retire"]


def text_of(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.partition("<main")[2])).split())


def test_node_and_incident_begin_with_what_is_wrong_what_is_done_and_what_a_person_can_do(operator: TestClient) -> None:
    for path in ("nodes/n3", "incidents/1"):
        shown = text_of(operator.get(f"/dashboard/{path}").text)
        order = ["What is wrong Xid 79", "What is being done", "What you can do Release", "As JSON"]
        assert [one for one in order if one not in shown] == []
        assert [shown.index(one) for one in order] == sorted(shown.index(one) for one in order)
    assert "Nothing is known against it" in text_of(operator.get("/dashboard/nodes/n1").text)
    assert "Nothing is known against it" not in shown
    gang = text_of(operator.get("/dashboard/nodes/n1").text)
    assert re.search(r"Quarantine counts as a fault: [^;]*; job 1 \(job\) of \w+ moves to a spare", gang)
    held = r"Hold out of service until a person releases it, without a repair; job 1 \(job\) of \w+ goes on to its end"
    assert re.search(held, gang)


def test_every_action_of_a_page_is_a_route_of_the_api(rehearsal: Rehearsal, operator: TestClient) -> None:
    """It answers a dry run; so the role, the reason and the page that sends it are checked there."""
    pages = (*(one for one in PAGES if "r01" not in one), f"/recoveries/{swap_of(rehearsal)}")
    button = re.compile(r'data-act="([^"]+)" data-title="[^"]*"(?: data-more="([^"]*)")?')
    found = {one for page in pages for one in button.findall(operator.get(f"/dashboard{page}").text)}
    paths = {re.sub(r"\d+", "1", path) for path, _ in found}
    assert {"v1/tickets/1/ack", "v1/tickets/1/close", "v1/nodes/n1/burn-in", "v1/nodes/n1/retire"} <= paths
    assert {"v1/spares/n1/add", "v1/jobs/1/move", "v1/jobs/1/save"} <= paths
    for path, more in found:
        body = {**json.loads(html.unescape(more) or "{}"), "reason": "a dry run", "dry_run": True}
        answer = operator.post(f"/{path}", json=body)
        assert answer.status_code in (200, 409), (path, answer.text)


def test_a_ticket_is_acknowledged_and_then_closed_from_its_page(rehearsal: Rehearsal, operator: TestClient) -> None:
    def buttons() -> list[str]:
        return re.findall(r'data-act="v1/tickets/([^"]+)"', operator.get("/dashboard/tickets").text)

    assert buttons() == ["1/ack", "1/close"], "a page that needs no answer has no button"
    assert operator.post("/v1/tickets/1/ack", json={"reason": "I look at it"}).status_code == 202
    assert buttons() == ["1/close"]
    shown = operator.get("/dashboard/tickets").text
    assert "operator</td>" in shown
    assert "n1, n2, n3, n4, n5, n6 and 2 more" in re.sub(r"<[^>]+>", "", shown)


def test_the_page_of_a_ticket_shows_what_the_provider_has_answered(viewer: TestClient) -> None:
    assert "Provider: replace: exit code 1: " in viewer.get("/dashboard/tickets/1").text


def test_a_gang_is_moved_off_the_node_whose_page_has_the_button(rehearsal: Rehearsal, operator: TestClient) -> None:
    node = rehearsal.gang_nodes()[0]
    page = operator.get(f"/dashboard/nodes/{node}").text
    bodies = [json.loads(html.unescape(one)) for one in re.findall(r'data-more="([^"]*)"', page)]
    assert bodies == [{"off": [node]}, {"off": [node], "at_checkpoint": True}]
    ids = re.findall(r' id="(act-[^"]*)"', page)
    assert len(ids) == len({*ids})


def test_lists_go_on_beyond_their_first_hundred(rehearsal: Rehearsal, viewer: TestClient) -> None:
    tickets = rehearsal.control_plane.stores.tickets
    for number in range(250):
        tickets.open_ticket(f"many-{number}", "n4", {"node": "n4", "reason": "x"}, b.NOW, closed=True)
    page, seen = viewer.get("/dashboard/tickets").text, 0
    while True:
        rows = len(re.findall(r'<td><a href="[^"]*tickets/\d+">', page))
        seen += rows
        older = re.search(r'href="dashboard/tickets\?by=(before-\d+)"', page.replace("../", ""))
        if older is None:
            break
        assert rows == 100
        page = viewer.get(f"/dashboard/tickets?by={older[1]}").text
        assert ">Newest</a>" in page
    assert seen == 252
    for by in ("before-0", "before-x", "before-99999999999999999999", "17"):
        assert viewer.get(f"/dashboard/tickets?by={by}").status_code == 200


def test_no_page_of_another_site_acts_by_a_session(rehearsal: Rehearsal) -> None:
    client, body = browser(rehearsal, Role.ADMIN), {"reason": "x", "dry_run": True}
    for headers in ({}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert client.post("/v1/nodes/n3/hold", json=body, headers=headers).status_code == 403
    assert client.post("/v1/nodes/n3/hold", json=body, headers=OWN_PAGE).status_code == 200


def test_the_dashboard_has_no_route_that_changes_anything(operator: TestClient) -> None:
    for path in (*PAGES, "/live", "/find", "/static/x/dashboard.js"):
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert operator.request(method, f"/dashboard{path}", json={"reason": "x"}).status_code == 405


def test_names_and_reasons_of_others_are_shown_as_text(viewer: TestClient) -> None:
    for path in ("", "/nodes/r02n14", f"/find?q={HOSTILE}", f"/nodes/{HOSTILE}"):
        page = viewer.get(f"/dashboard{path}")
        assert "<img" not in page.text
        assert "&lt;img" in page.text, path


def test_the_map_names_every_node_and_the_table_those_not_in_service(rehearsal: Rehearsal, viewer: TestClient) -> None:
    page = viewer.get("/dashboard").text
    names = " ".join(re.findall(r'data-nodes="([^"]*)"', page)).split()
    snapshot = rehearsal.control_plane.loop.pulse.snapshot
    assert snapshot is not None
    assert sorted(names) == sorted(snapshot.nodes)
    ill = [name for name, node in snapshot.nodes.items() if node.state is not NodeState.IN_SERVICE]
    assert {*ill} == {*re.findall(r'<tr><td><a href="dashboard/nodes/([^"]+)"', page)}


def test_a_recovery_is_drawn_in_milliseconds(rehearsal: Rehearsal, viewer: TestClient) -> None:
    page = viewer.get(f"/dashboard/recoveries/{swap_of(rehearsal)}").text
    assert 'class="timeline"' in page
    assert "Fault to first step" in page
    for step in ("drain nodes", "hold seats", "requeue job", "await first step"):
        assert step in page


def test_an_incident_goes_from_the_first_evidence_to_the_first_step(rehearsal: Rehearsal, viewer: TestClient) -> None:
    page = viewer.get("/dashboard/incidents/1").text
    course = page.partition('id="course"')[2].partition("</section>")[0]
    moments = re.findall(r'<li><span class="at n"[^>]*>\+ ([^<]+)</span><span class="text">(.+)</span></li>', course)
    assert moments[0] == ("0 s", "first evidence: Xid 79 on GPU 0000:01:00.0: the GPU has fallen off the bus")
    recovery = viewer.get(f"/v1/recoveries/{swap_of(rehearsal)}").json()
    assert (
        f"{recovery['phases_ms']['first_step'] / 1000:g} s",
        '<a href="../../dashboard/jobs/1">job 1 finishes its first step</a>',
    ) in moments
    for step in recovery["steps"]:
        assert any(step["name"].replace("_", " ") in what for _, what in moments), step
    assert "also found" not in course, "what opened it is no further finding"
    assert "job 1 stood still for" in course
    assert "What would have shortened it" in course
    assert f'recoveries/{swap_of(rehearsal)}">recovery {swap_of(rehearsal)}</a>' in page.partition('id="why"')[2]


def test_every_figure_leads_to_its_evidence(rehearsal: Rehearsal, viewer: TestClient) -> None:
    """A number is a link, or stands beside one that is: on this page or another."""
    pages = ("", "/jobs/1", f"/recoveries/{swap_of(rehearsal)}", "/incidents/1", "/reports?by=90d", "/guards")
    for path in pages:
        page = viewer.get(f"/dashboard{path}").text
        begin = re.search(r'<div id="status".*?</ul>', page, re.DOTALL)
        assert begin is not None
        places = [one for one in re.findall(r"<li[^>]*>.*?</li>", begin[0], re.DOTALL) if 'class="me' not in one]
        places += re.findall(r"<dt>.*?</dd>", page, re.DOTALL)
        places += re.findall(r"<li><span>[^<]*</span><meter.*?</li>", page)
        numbers = [
            one for one in places if re.search(r">[^<]*\d[^<]*<", re.sub(r"<(time|meter|code).*?</\1>", "", one))
        ]
        assert len(numbers) >= 3, path
        without = [one for one in numbers if "<a " not in one and not re.search(r">0 of \d+<|records begin", one)]
        assert without == [], path
        anchors = set(re.findall(r'href="#([^"]+)"', page))
        assert [one for one in anchors if f'id="{one}"' not in page] == [], path


def test_incidents_are_listed_that_are_open_or_of_a_rule(viewer: TestClient) -> None:
    wanted = ("only=open", "only=rule-xid.79", "only=rule-xid.1", "only=closed", "q=n3", "q=XID", "q=n33")
    listed = {one: viewer.get(f"/dashboard/incidents?{one}").text for one in wanted}
    assert ["incidents/1" in page.partition("<main")[2] for page in listed.values()] == [
        *(True, True, False, False, True, True, False)
    ]
    assert "<option selected>rule-xid.79</option>" in listed["only=rule-xid.79"]


def test_lists_are_searched_by_part_of_a_name(rehearsal: Rehearsal, viewer: TestClient) -> None:
    def listed(path: str) -> list[str]:
        page = viewer.get(f"/dashboard/{path}").text
        return re.findall(r'<tr><td><a href="[^"]*dashboard/\w+/([^"]+)"', page)

    assert listed("nodes?q=01N1") == [f"r01n{number}" for number in range(10, 17)]
    assert len(listed("nodes")) == 100
    assert listed("nodes?by=from-100")[0] == "r06n13"
    assert listed("nodes?only=quarantined") == ["n3", "r02n14"]
    assert set(listed("nodes?only=spare")) <= {f"n{number}" for number in range(1, 9)}
    assert listed("nodes?sort=state")[0] not in ("n1", "n2")
    assert listed("nodes?sort=job")[:2] == ["n1", "n2"]
    assert listed("nodes?only=nonsense&sort=nonsense&by=from-9999")[0] == "n1"
    assert (listed("jobs?q=researcher"), listed("jobs?q=RES&only=pending")) == (["1"], [])
    swap = f"{swap_of(rehearsal)}"
    assert (swap in listed("recoveries?q=n3"), swap in listed("recoveries?q=r01")) == (True, False)
    assert (swap in listed("recoveries?only=failed"), swap in listed("recoveries?only=succeeded")) == (False, True)
    assert "No node is like that." in viewer.get("/dashboard/nodes?q=%3Cb%3E").text
    assert "GPUs" in viewer.get("/dashboard/nodes?q=n3").text
    assert "Xid 79" in viewer.get("/dashboard/nodes?q=n3").text


def test_a_job_shows_its_step_times_and_where_it_would_go_on(viewer: TestClient) -> None:
    page = viewer.get("/dashboard/jobs/1").text
    assert 'class="heat"' in page
    assert "from step <b>20</b>" in page
    checkpoints = page.partition('id="restore"')[2].partition("</section>")[0]
    cells = "".join(rf"<td[^>]*>({one})</td>" for one in (r"\d+", ".*?", "[^<]*", "[^<]*", "[^<]*"))
    ((step, _, lies_on, read_back, against),) = re.findall(f"<tr>{cells}</tr>", checkpoints)
    assert (step, lies_on, read_back, against) == ("20", "shared file system", "not yet", "nothing")
    assert "A checkpoint holds the training up for 2 s; by the fleet's failures the gang is interrupted" in checkpoints
    assert 'Best is every <a href="../../v1/explain/checkpoints/1">' in checkpoints
    assert "ETTR" in page
    attempts = page.partition('id="attempts"')[2].partition("</section>")[0]
    assert f"Attempt 1 runs with code <code>commit 1</code> data <code>{html.escape(HOSTILE)[:20]}" in attempts
    assert "code changed between attempt 0 of job 1 and attempt 1 of job 1" in attempts


def test_the_pages_lead_to_each_other(rehearsal: Rehearsal, viewer: TestClient) -> None:
    """No link of any page within the dashboard is dead."""
    seen, waiting = set[str](), ["/dashboard"]
    while waiting and len(seen) < 80:
        here = waiting.pop()
        seen.add(here)
        page = viewer.get(here)
        assert page.status_code == 200, here
        if not page.headers["content-type"].startswith("text/html"):
            continue
        for link in re.findall(r'(?:href|src)="([^"#]+)', page.text):
            target = str(page.url.join(html.unescape(link))).removeprefix(str(viewer.base_url))
            if target.startswith("https://grafana.example/"):
                continue  # another server's
            if target not in seen and target not in waiting and not re.search(r"/nodes/r\d|/jobs/1\d\d", target):
                waiting.append(target)
    assert f"/dashboard/recoveries/{swap_of(rehearsal)}" in seen
    assert {"/v1/explain/nodes/n3", "/v1/incidents/1/post-mortem?format=text"} <= seen
    assert len([path for path in seen if path.startswith("/v1/report?")]) >= 4


@pytest.mark.parametrize(
    "path", ["/nodes/none", "/jobs/99", "/jobs/x", "/jobs/²", "/recoveries/0", "/incidents/99999", "/what"]
)
def test_what_is_not_there_is_answered_by_a_page(viewer: TestClient, path: str) -> None:
    page = viewer.get(f"/dashboard{path}")
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")


def test_a_name_leads_to_its_node_and_a_number_to_its_job(viewer: TestClient) -> None:
    texts = ("n3", "1", " 1 ", "R01", "researcher", "none", " ")
    found = [viewer.get(f"/dashboard/find?q={text}") for text in texts]
    assert [(one.status_code, one.headers.get("location")) for one in found] == [
        *((303, "nodes/n3"), (303, "jobs/1"), (303, "jobs/1"), (303, "nodes?q=R01"), (303, "jobs?q=researcher")),
        *((404, None), (404, None)),
    ]


def test_the_page_of_a_job_names_how_long_its_checkpoints_are_kept(viewer: TestClient) -> None:
    days = Retention().job_details_days
    kept = f"{days:g} days after Slurm last showed the job, only the last {CHECKPOINTS_KEPT} are kept"
    assert kept in viewer.get("/dashboard/jobs/1").text


def test_a_job_whose_training_reports_its_tokens_shows_its_mfu(
    rehearsal: Rehearsal, viewer: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "MFU" not in viewer.get("/dashboard/jobs/1").text
    snapshot = rehearsal.control_plane.loop.pulse.snapshot
    assert snapshot is not None
    ((key, table),) = [(key, one) for key, one in snapshot.progress.tables.items() if key.job_id == 1]
    tokens = {rank: Training(tokens_per_second=1000.0, flops_per_token=1.978e11) for rank in range(len(table.nodes))}
    progress = replace(snapshot.progress, tables={key: replace(table, training=tokens)})
    h100 = {
        name: replace(node, gpus=(*(b.gpu(index, name="NVIDIA H100") for index in range(8)),))
        for name, node in snapshot.nodes.items()
    }
    monkeypatch.setattr(
        rehearsal.control_plane.loop.pulse, "snapshot", replace(snapshot, progress=progress, nodes=h100)
    )
    assert re.search(r"<dt>MFU</dt><dd>(20\.0|20) ?%</dd>", viewer.get("/dashboard/jobs/1").text)


def test_pages_of_nodes_and_jobs_lead_to_their_past_in_grafana(viewer: TestClient) -> None:
    there = f"{GRAFANA}/d/understudy-"
    assert f'href="{there}node?var-node=n3"' in viewer.get("/dashboard/nodes/n3").text
    assert f'href="{there}job?var-job_id=1"' in viewer.get("/dashboard/jobs/1").text
    uids = [json.loads(one.read_text())["uid"] for one in (REPOSITORY / "deploy/grafana").glob("*.json")]
    assert {"understudy-node", "understudy-job"} <= {*uids}


def test_static_files_are_kept_until_they_change(viewer: TestClient) -> None:
    for name in STATIC:
        kept = viewer.get(f"/dashboard/static/{RELEASE}/{name}")
        assert (kept.status_code, "immutable" in kept.headers["cache-control"]) == (200, True)
        assert viewer.get(f"/dashboard/static/older/{name}").headers["cache-control"] == "no-store"
    assert viewer.get(f"/dashboard/static/{RELEASE}/..%2F__init__.py").status_code == 404


def test_until_the_first_round_the_page_says_that_it_starts(rehearsal: Rehearsal, viewer: TestClient) -> None:
    pulse = rehearsal.control_plane.loop.pulse
    kept, pulse.snapshot = pulse.snapshot, None
    try:
        assert "control plane starts" in viewer.get("/dashboard").text
    finally:
        pulse.snapshot = kept


# -- live updates ---------------------------------------------------------------------------------------------------


def of_viewer() -> Identity:
    return Identity(Role.VIEWER, "viewer", "", "127.0.0.1", 1)


def parts_in(event: str) -> dict[str, str]:
    kind, _, data = event.strip().partition("\ndata: ")
    return dict(msgspec.json.decode(data)["parts"]) if kind == "event: parts" else {}


def test_a_viewer_gets_the_parts_that_changed_and_no_others(rehearsal: Rehearsal) -> None:
    plane = rehearsal.control_plane
    pages = Pages(plane.reads)

    async def admit() -> None:
        """They may go on."""

    async def watch() -> list[dict[str, str]]:
        views = LiveViews(plane.loop.pulse, Limits())
        reads = 0

        async def read() -> Page:
            nonlocal reads
            reads += 1
            page = await plane.reads.readers.attempt(lambda: pages.read(of_viewer(), ""))
            assert isinstance(page, Page)
            return page

        begun = await read()
        streams = [views.stream("fleet", read, (begun.at, begun.layout), admit) for _ in range(3)]
        for stream in streams:
            while "event: parts" not in await anext(stream):
                """It has not read the page yet."""
        found = []
        for state in (NodeState.QUARANTINED, NodeState.IN_SERVICE):
            set_state(plane, "r03n05", state)
            for stream in streams:
                async for event in stream:
                    parts = parts_in(event)
                    if any(name.startswith("g-") for name in parts):
                        found.append(parts)
                        break
        assert reads < 8, "all viewers share one reading"
        return found

    found = asyncio.run(asyncio.wait_for(watch(), 30))
    changed = [sorted(name for name in parts if name.startswith("g-")) for parts in found]
    assert changed == [["g-2"]] * 6
    assert all("t-q" in parts["g-2"] for parts in found[:3])


def test_viewers_who_share_a_reading_are_not_shown_under_each_others_name(rehearsal: Rehearsal) -> None:
    pages = Pages(rehearsal.control_plane.reads)
    found = []
    for name in ("ada", "bob"):
        page = pages.read(Identity(Role.OPERATOR, name, "", "127.0.0.1", 1), "")
        assert isinstance(page, Page)
        found.append(page.parts)
    assert found[0] == found[1]


def test_only_a_session_can_be_ended(rehearsal: Rehearsal, operator: TestClient) -> None:
    assert "log-out" in browser(rehearsal, Role.OPERATOR).get("/dashboard/jobs").text
    assert "log-out" not in operator.get("/dashboard/jobs").text


def test_a_page_whose_layout_has_changed_is_loaded_again(rehearsal: Rehearsal) -> None:
    plane = rehearsal.control_plane

    async def watch() -> list[str]:
        views, pages = LiveViews(plane.loop.pulse, Limits()), Pages(plane.reads)

        async def admit() -> None:
            """They may go on."""

        stream = views.stream(
            "fleet",
            lambda: plane.reads.readers.attempt(lambda: pages.read(of_viewer(), "")),
            (0.0, "another"),
            admit,
        )
        return [event async for event in stream if "beat" not in event]

    assert asyncio.run(asyncio.wait_for(watch(), 30))[-1] == "event: reload\ndata: {}\n\n"


def test_a_viewer_who_may_read_no_longer_is_cut_off(rehearsal: Rehearsal) -> None:
    plane = rehearsal.control_plane

    async def watch() -> list[str]:
        views, pages = LiveViews(plane.loop.pulse, Limits()), Pages(plane.reads)

        async def admit() -> None:
            raise Denied(401, "the session has ended", "log in")

        read = partial(plane.reads.readers.attempt, partial(pages.read, of_viewer(), ""))
        return [event async for event in views.stream("fleet", read, (0.0, ""), admit)]

    assert asyncio.run(asyncio.wait_for(watch(), 30)) == ["event: hello\ndata: {}\n\n"], "it sees no part of the page"


def test_a_page_that_cannot_be_made_is_reported_to_its_viewers_and_made_again(rehearsal: Rehearsal) -> None:
    plane, failures = rehearsal.control_plane, iter([ValueError("a node without a name")])

    async def watch() -> list[str]:
        views, pages = LiveViews(plane.loop.pulse, Limits()), Pages(plane.reads)

        async def admit() -> None:
            """They may go on."""

        async def read() -> Page:
            for failure in failures:
                raise failure
            page = await plane.reads.readers.attempt(lambda: pages.read(of_viewer(), ""))
            assert isinstance(page, Page)
            return page

        layout, seen = (await plane.reads.readers.attempt(lambda: pages.read(of_viewer(), ""))), []
        assert isinstance(layout, Page)
        async for event in views.stream("fleet", read, (0.0, layout.layout), admit):
            seen.append(event)
            if "could not be made" in event:
                set_state(plane, "r03n05", NodeState.IN_SERVICE)  # the next round
            if "event: parts" in event:
                return seen
        return []

    with capture_logs() as lines:
        found = asyncio.run(asyncio.wait_for(watch(), 30))
    assert any("could not be made" in event for event in found)
    assert [one["error"] for one in lines if one["event"] == "page_not_made"] == ["a node without a name"]


def test_streams_are_bounded_for_each_token_and_in_all() -> None:
    async def enter() -> list[int]:
        views = LiveViews(None, Limits(event_streams_max=3, event_streams_per_token_max=2))  # type: ignore[arg-type]
        refusals = [views.places.enter(who) for who in ("a", "a", "a", "b", "c")]
        views.places.leave("a")
        return [0 if one is None else one.status_code for one in (*refusals, views.places.enter("c"))]

    assert asyncio.run(enter()) == [0, 0, 429, 0, 503, 0]
