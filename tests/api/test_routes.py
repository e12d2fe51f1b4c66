"""What the windows show, of a real recovery on a virtual cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import msgspec
import pytest
import structlog
from fastapi.testclient import TestClient

import understudy_client
from tests import builders as b
from tests.new_database import new_database
from tests.notify.site import keep_messages
from tests.recover.rehearsal import Rehearsal
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import add_tokens, as_user, bearer, with_tokens
from understudy_controlplane.api import openapi
from understudy_controlplane.api.status import CAUSE_AT
from understudy_controlplane.app import Outside, compose
from understudy_controlplane.cli.explained_subject import lines
from understudy_controlplane.config import Config
from understudy_controlplane.detect import DETECTORS
from understudy_controlplane.fleet.finding import Finding, Signal
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.job import JobKey
from understudy_controlplane.fleet.notice import MessageStatus
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.fleet.slurm import HETEROGENEOUS_JOB, ArrayTask
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.facts import CheckpointShard, FirstStep, RankStarted, TrainingInputs
from understudy_wire.hardware import Part, PartKind
from understudy_wire.ranks import Collective, RankWindow
from understudy_wire.stages import StageName, StageResult, StageStatus

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Rehearsal:
    """A gang with the hook: checkpoint at step 20, lost at step 29, back on a spare."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("windows"))
    add_tokens(rehearsal.control_plane.engine, ["n1"])
    play(rehearsal, attempt=0, first=0, last=29)
    record(rehearsal, *(shard(rank, 20) for rank in range(4)), *(shard(rank, 24) for rank in range(2)))
    rehearsal.run(3)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run(1)  # until the control plane has seen it
    answer = (
        client_of(rehearsal)
        .get(f"/v1/restore-point?job_id=1&restart_count=1&user_id={owner(rehearsal)}", headers=agent(rehearsal))
        .json()
    )
    assert (answer["step"], answer["path"]) == (20, "/c/20")
    play(rehearsal, attempt=1, first=20, last=40)
    rehearsal.run_until(rehearsal.ended)
    return rehearsal


def play(rehearsal: Rehearsal, attempt: int, first: int, last: int) -> None:
    """Ranks say hello, take their steps, and report the first."""
    now, nodes = rehearsal.fake.now, rehearsal.gang_nodes()
    record(rehearsal, *(RankStarted(1, attempt, rank, 4, now + 0.1, 100 + rank) for rank in range(4)))
    rehearsal.run(1)
    record(rehearsal, *(FirstStep(1, attempt, rank, 4, first, now + 0.5) for rank in range(4)))
    for rank, node in enumerate(nodes):
        times = [0.1] * (last + 1 - first)
        entered = Collective("ddp_gradients", last - first + 1 - (rank == 2), now, last, inside=rank != 2)
        window = RankWindow(1, attempt, rank, 4, 0, owner(rehearsal), "", first, times, times, collective=entered)
        report = b.report(node, boot_id=f"boot of {node}", ranks=[window])
        rehearsal.control_plane.telemetry.receive(report, rehearsal.fake.now)
    rehearsal.run(1)


def record(rehearsal: Rehearsal, *facts: RankStarted | TrainingInputs | FirstStep | CheckpointShard) -> None:
    rows = rehearsal.control_plane.stores.fleet.known_jobs(b.CLUSTER, [fact.job_id for fact in facts])
    of_owner = [msgspec.structs.replace(fact, user_id=owner(rehearsal)) for fact in facts]
    node = rehearsal.gang_nodes()[0]
    assert rehearsal.control_plane.stores.facts.record(node, of_owner, rehearsal.fake.now, rows.get) == []


def owner(rehearsal: Rehearsal) -> int:
    return next(job.user_id for job in rehearsal.fake.jobs() if job.job_id == rehearsal.gang)


def student(rehearsal: Rehearsal) -> int:
    """User whose job runs on nodes beside the gang."""
    return next(job.user_id for job in rehearsal.fake.jobs() if job.user == "student")


def shard(rank: int, step: int) -> CheckpointShard:
    return CheckpointShard(1, 0, rank, 4, step, f"/c/{step}", f"rank-{rank}", 10, "crc32:00000000", b.NOW)


def agent(_rehearsal: Rehearsal) -> dict[str, str]:
    return bearer(Role.NODE, "n1")


def client_of(rehearsal: Rehearsal) -> TestClient:
    return TestClient(
        rehearsal.control_plane.app, headers=bearer(Role.VIEWER)
    )  # not entered: the loop is ticked by the rehearsal


@pytest.fixture
def get(rehearsal: Rehearsal) -> Iterator[Any]:
    def ask(path: str) -> Any:
        response = client_of(rehearsal).get(path)
        assert response.status_code == 200, response.text
        return response.json()

    return ask  # type: ignore[return-value]


def as_user_of(rehearsal: Rehearsal, user_id: int) -> TestClient:
    plane = rehearsal.control_plane
    return TestClient(plane.app, headers=as_user(plane.admission, user_id))


def test_a_user_of_the_cluster_sees_their_own_jobs(rehearsal: Rehearsal, get: Any) -> None:
    own = as_user_of(rehearsal, owner(rehearsal))
    swap = next(one["id"] for one in get("/v1/recoveries")["items"] if one["job"])
    for path in ("/v1/jobs/1", "/v1/jobs/1/ranks", "/v1/checkpoints", f"/v1/recoveries/{swap}"):
        assert own.get(path).json() == get(path), path
    assert ([one["job_id"] for one in get("/v1/jobs")["items"]], jobs_of(own)) == ([2, 1], [1])
    assert (jobs_of(own, limit=1), jobs_of(own, user="student"), jobs_of(own, user="researcher")) == ([1], [], [1])
    assert [one["id"] for one in own.get("/v1/recoveries").json()["items"]] == [swap]
    assert own.get(f"/v1/recoveries?cursor={swap}").json() == {"items": [], "next": None}
    assert own.get("/v1/status").json()["nodes"] == get("/v1/status")["nodes"]


def jobs_of(client: TestClient, **filters: str | int) -> list[int]:
    return [one["job_id"] for one in client.get("/v1/jobs", params=filters).json()["items"]]


OF_ONE_USER = (
    "/v1/jobs",
    "/v1/jobs?limit=1&cursor=2",
    "/v1/jobs?limit=1",
    "/v1/jobs?managed=true",
    "/v1/jobs?user=researcher",
    "/v1/recoveries",
    "/v1/recoveries?job=1",
    "/v1/recoveries?node=n3",
    "/v1/recoveries?cursor=1000",
    "/v1/checkpoints",
    "/v1/checkpoints?job=1",
    "/v1/checkpoints?cursor=9e99_999",
    "/v1/requests",
    "/v1/nodes?job=1",
)
REASON = {"reason": "they are good"}


def test_another_users_jobs_do_not_exist_for_a_user(rehearsal: Rehearsal, get: Any) -> None:
    """Lists, filters, cursors, ids and requests do not show them."""
    stranger = as_user_of(rehearsal, student(rehearsal))
    assert jobs_of(stranger) == [2]
    assert client_of(rehearsal).post("/v1/jobs/1/trust-checkpoints", json=REASON).status_code == 403
    for path in OF_ONE_USER:
        assert get(path)["items"] or path == "/v1/requests", path
        shown = stranger.get(path).json()["items"]
        assert [one.get("job_id") for one in shown] == [2] * len(shown), path
    for path in ("/v1/jobs/1", "/v1/jobs/1/ranks"):
        unknown = stranger.get(path.replace("jobs/1", "jobs/99")).json()
        assert (unknown["status"], stranger.get(path).json()) == (404, {**unknown, "detail": "job 1 is not known"})
    for recovery in get("/v1/recoveries")["items"]:
        assert stranger.get(f"/v1/recoveries/{recovery['id']}").status_code == 404
    assert stranger.post("/v1/jobs/1/trust-checkpoints", json=REASON).status_code == 404
    assert stranger.post("/v1/jobs/1/trust-checkpoints", json={**REASON, "dry_run": True}).status_code == 404
    nodes = stranger.get("/v1/nodes").json()["items"]
    assert {one["name"]: one["state"] for one in nodes} == {
        one["name"]: one["state"] for one in get("/v1/nodes")["items"]
    }
    assert {job for one in nodes for job in one["jobs"]} <= {2}
    assert {one["reason"] for one in nodes} == {""}
    status = stranger.get("/v1/status").json()
    assert (status["problems"], status["slurm"]["error"], status["loop"]["error"]) == (None, "", "")


def explained(client: understudy_client.Client, what: str) -> list[str]:
    return list(lines(client.get(f"/v1/explain/{what}")))


def test_a_users_job_is_explained_to_them(rehearsal: Rehearsal) -> None:
    app = as_user_of(rehearsal, owner(rehearsal))

    def answer(request: httpx.Request) -> httpx.Response:
        found = app.get(request.url.raw_path.decode())
        return httpx.Response(found.status_code, content=found.content)

    with understudy_client.Client("http://control-plane", "token", transport=httpx.MockTransport(answer)) as client:
        job = explained(client, "jobs/1")
        with pytest.raises(understudy_client.RefusedError, match="job 2 is not known"):
            explained(client, "jobs/2")
        with pytest.raises(understudy_client.RefusedError, match="may not read"):
            explained(client, "nodes/n3")
    assert job[0].endswith("restarted once, managed"), job
    assert any(" pool n3 to n6: succeeded in " in line for line in job), job


def test_a_user_trusts_their_own_jobs_checkpoints_and_sees_what_became_of_it(rehearsal: Rehearsal) -> None:
    own, stranger = (as_user_of(rehearsal, user_id) for user_id in (owner(rehearsal), student(rehearsal)))
    answer = own.post("/v1/jobs/1/trust-checkpoints", json=REASON)
    assert answer.status_code == 202, answer.text
    number = answer.json()["request"]
    assert own.get(f"/v1/requests/{number}").json()["by"] == f"user ? ({owner(rehearsal)})"
    assert [one["id"] for one in own.get("/v1/requests").json()["items"]] == [number]
    assert stranger.get(f"/v1/requests/{number}").status_code == 404


def test_status_shows_the_whole_at_a_glance(get: Any) -> None:
    status = get("/v1/status")
    assert status["nodes"] == {"in_service": 7, "quarantined": 1}
    assert status["spares"] == {"held": 3, "wanted": 3}
    assert (status["mode"], status["paused"], status["problems"]) == ("act", "", [])


POSTED = ("/v1/user-token", "/v1/drills", "/v1/signals/alertmanager")
MODELS = {**openapi.ANSWERED, **openapi.LISTED}
READ = {
    path: kind
    for path, kind in MODELS.items()
    if path.startswith("/v1/") and not kind.__module__.startswith("understudy_wire.")
}


@pytest.mark.parametrize("path", [path for path in READ if path not in POSTED])
def test_each_answer_is_what_its_model_says_and_no_more(rehearsal: Rehearsal, path: str) -> None:
    """A field that the model does not have would be lost on the way through it."""
    if not rehearsal.control_plane.stores.tickets.tickets(1):
        rehearsal.control_plane.stores.tickets.open_ticket("n9-1", "n9", {"why": "broken"}, b.NOW)
    if not rehearsal.control_plane.stores.notices.messages(1, 100):
        keep_messages(rehearsal.control_plane.stores.notices, b.NOW)
    passed = StageResult(StageName.CPU, StageStatus.PASSED, 900.0, 800.0, 3.0)
    rehearsal.control_plane.stores.stages.record(1, "n3", [passed], b.NOW)
    rehearsal.control_plane.stores.parts.see({"n3": [Part(PartKind.BOARD, "board", serial="4711")]}, b.NOW)
    request = rehearsal.control_plane.stores.requests.ask(Verb.RESUME, FLEET, "fire is out", "alice", b.NOW)
    inside = {"node": "n3", "job_id": 1, "incident": 1, "decision": 1, "recovery": 2, "ticket": 1, "request": request}
    as_operator = TestClient(
        rehearsal.control_plane.app, headers=bearer(Role.OPERATOR)
    )  # who may read what ranks showed
    response = as_operator.get(path.format(**inside))
    assert response.status_code == 200, response.text
    answer = response.json()
    records = answer["items"] if path in openapi.LISTED else [answer]
    assert records
    for record in records:
        assert msgspec.to_builtins(msgspec.convert(record, READ[path])) == record


def test_a_node_and_a_job_are_explained(rehearsal: Rehearsal) -> None:
    app = client_of(rehearsal)

    def answer(request: httpx.Request) -> httpx.Response:
        found = app.get(request.url.raw_path.decode())
        return httpx.Response(found.status_code, content=found.content)

    with understudy_client.Client("http://control-plane", transport=httpx.MockTransport(answer)) as client:
        node, job = (explained(client, what) for what in ("nodes/n3", "jobs/1"))
    assert node[0].startswith("n3 is quarantined since "), node
    assert " in Slurm IDLE DRAIN: understudy: xid.79" in node[0]
    assert any(" quarantine (row 10): " in line for line in node), node
    assert job[0].endswith("restarted once, managed"), job
    assert any(" pool n3 to n6: succeeded in " in line for line in job), job
    assert any(" quarantine (row 10): Xid 79 " in line for line in job), "why it was moved"


def test_the_explanation_of_a_job_says_what_it_is_to_slurm(rehearsal: Rehearsal) -> None:
    pulse = rehearsal.control_plane.loop.pulse
    before = pulse.snapshot
    assert before is not None
    (key,) = [key for key in before.jobs if key.job_id == 1]

    def explained_as(**changes: Any) -> str:
        job = before.jobs[key]
        pulse.snapshot = replace(before, jobs={key: replace(job, slurm=replace(job.slurm, **changes))})
        return str(client_of(rehearsal).get("/v1/explain/jobs/1").json()["is_now"])

    assert explained_as(array_task=ArrayTask(1, 4)).endswith("managed; it is task 1_4 of a job array")
    assert explained_as(part_of=HETEROGENEOUS_JOB).endswith(
        "it belongs to a heterogeneous job, which Slurm requeues as a whole: its gang is left to a person"
    )
    pending = {"state": "PENDING", "nodes": (), "reason": "Resources"}
    assert explained_as(**pending).endswith("managed; Slurm gives the reason Resources")
    pulse.snapshot = before


def test_nodes_show_their_state_here_and_in_slurm(get: Any) -> None:
    n3 = get("/v1/nodes/n3")
    assert (n3["state"], n3["row"], n3["slurm"]["flags"]) == ("quarantined", 10, ["DRAIN"])
    assert n3["slurm"]["reason"].startswith("understudy: xid.79")
    assert len(n3["gpus"]) == 8


def test_a_recovery_shows_each_phase_and_what_it_cost(get: Any) -> None:
    recovery = next(one for one in get("/v1/recoveries")["items"] if one["kind"] == "pool")
    phases = recovery["phases_ms"]
    assert list(phases) == ["detected", "decided", "drained", "seats_held", "requeued", "running", "first_step"]
    assert list(phases.values()) == sorted(phases.values())
    assert (recovery["last_step"], recovery["restore_step"], recovery["steps_lost"]) == (29, 20, 10)


def test_jobs_have_attempts_and_an_ettr(get: Any) -> None:
    job = get("/v1/jobs/1")
    assert [one["nodes"] for one in job["attempts"]] == [["n1", "n2", "n3", "n4"], ["n1", "n2", "n4", "n6"]]
    assert [one["restore_step"] for one in job["attempts"]] == [None, 20]
    assert 0 < job["ettr"]["ratio"] <= 1
    assert job["ettr"]["steps_lost"] == 10


def test_the_ranks_of_a_job_show_which_of_them_the_others_wait_for(get: Any) -> None:
    answer = get("/v1/jobs/1/ranks")
    assert (answer["job_id"], answer["restart_count"], answer["launch"]) == (1, 1, 0)
    assert [(one["node"], one["last_step"]) for one in answer["items"]] == [(n, 40) for n in ("n1", "n2", "n4", "n6")]
    sequences = [one["collective"]["sequence"] for one in answer["items"]]
    assert sequences == [21, 21, 20, 21]
    assert [one["collective"]["inside"] for one in answer["items"]] == [True, True, False, True]
    assert get("/v1/jobs/4711/ranks") == {
        "job_id": 4711,
        "restart_count": None,
        "launch": None,
        "items": [],
        "next": None,
    }


def test_an_incident_has_its_evidence_and_its_decision(get: Any) -> None:
    (incident,) = get("/v1/incidents")["items"]
    assert (incident["subject_kind"], incident["subject"], incident["nodes"]) == ("node", "n3", ["n3"])
    assert (incident["rule"], incident["closed_at"]) == ("xid.79", None)
    assert ": 79," in incident["evidence"]["kernel_log"]
    decision = next(one for one in get("/v1/decisions")["items"] if one["table_row"] == 10)
    assert (decision["incident"], decision["action"], decision["because"]) == (incident["id"], "quarantine", "rule")
    assert "moves to n6" in decision["reason"]


def test_half_a_checkpoint_is_shown_as_what_it_is(get: Any) -> None:
    shown = {one["step"]: (one["shards"], one["complete"]) for one in get("/v1/checkpoints")["items"]}
    assert shown == {20: (4, True), 24: (2, False)}


LISTS = (
    *("nodes", "jobs", "gpus", "incidents", "decisions", "recoveries", "checkpoints", "tickets", "jobs/1/ranks"),
    "notifications",
)


@pytest.mark.parametrize("path", LISTS)
def test_the_pages_of_a_list_are_the_list(rehearsal: Rehearsal, path: str) -> None:
    client = client_of(rehearsal)

    def records(limit: int, cursor: Any = None) -> tuple[list[Any], Any]:
        response = client.get(f"/v1/{path}", params={"limit": limit} | ({} if cursor is None else {"cursor": cursor}))
        assert response.status_code == 200, response.text
        return response.json()["items"], response.json()["next"]

    whole, more = records(1000)
    assert more is None
    size = len(whole) // 2 or 1  # where the last page is full, an empty one may follow
    found, following = records(size)
    while following is not None:
        page, following = records(size, following)
        found += page
    assert found == whole


FILTERS: dict[str, list[tuple[dict[str, Any], Callable[[Any], bool]]]] = {
    "nodes": [
        ({"state": "quarantined"}, lambda one: one["name"] == "n3"),
        ({"names": "n[2-3,7]"}, lambda one: one["name"] in ("n2", "n3", "n7")),
        ({"names": "n[1-4]", "state": "in_service"}, lambda one: one["name"] in ("n1", "n2", "n4")),
        ({"spare": "true"}, lambda one: one["name"] in ("n5", "n7", "n8")),
        ({"job": 1}, lambda one: one["name"] in ("n1", "n2", "n4", "n6")),
    ],
    "jobs": [
        ({"managed": "true"}, lambda one: one["job_id"] == 1),
        ({"state": "PENDING"}, lambda one: one["state"] == "PENDING"),
        ({"user": "no-one"}, lambda one: one["user"] == "no-one"),
    ],
    "recoveries": [
        ({"kind": "pool"}, lambda one: one["kind"] == "pool"),
        ({"status": "running"}, lambda one: one["status"] == "running"),
        ({"job": 1}, lambda one: one["job"] is not None),
        ({"node": "n3"}, lambda one: "n3" in one["nodes"]),
    ],
    "incidents": [
        ({"open": "true"}, lambda one: one["closed_at"] is None),
        ({"open": "false"}, lambda one: one["closed_at"] is not None),
        ({"subject": "n3"}, lambda one: one["subject"] == "n3"),
    ],
    "decisions": [
        ({"subject": "n3"}, lambda one: one["subject"] == "n3"),
        ({"action": "quarantine"}, lambda one: one["action"] == "quarantine"),
        ({"since": b.NOW + 5}, lambda one: one["at"] >= b.NOW + 5),
        ({"until": b.NOW + 5}, lambda one: one["at"] < b.NOW + 5),
    ],
    "tickets": [({"open": "true"}, lambda one: one["closed_at"] is None)],
    "notifications": [
        *(({"status": name}, lambda one, name=name: one["status"] == name) for name in MessageStatus),
        ({"receiver": "pager"}, lambda one: one["receiver"] == "pager"),
    ],
    "checkpoints": [({"job": 1}, lambda one: one["job_id"] == 1), ({"job": 2}, lambda one: one["job_id"] == 2)],
    "gpus": [({"node": "n3"}, lambda one: one["node"] == "n3")],
}


@pytest.mark.parametrize("path", FILTERS)
def test_a_filter_keeps_what_fits_it_and_nothing_else(get: Any, path: str) -> None:
    whole = get(f"/v1/{path}?limit=1000")["items"]
    for parameters, fits in FILTERS[path]:
        query = urlencode({"limit": 1000, **parameters})
        assert get(f"/v1/{path}?{query}")["items"] == [one for one in whole if fits(one)], parameters


@pytest.mark.parametrize("path", ["incidents", "decisions", "recoveries"])
def test_each_record_of_a_list_has_an_address_of_its_own(get: Any, path: str) -> None:
    newest = get(f"/v1/{path}")["items"][0]
    assert get(f"/v1/{path}/{newest['id']}") == newest


@pytest.mark.parametrize(
    "path", ["nodes/n9", "jobs/4711", "incidents/999", "decisions/999", "recoveries/999", "tickets/9"]
)
def test_what_is_not_there_is_refused_by_its_name(rehearsal: Rehearsal, path: str) -> None:
    refusal = client_of(rehearsal).get(f"/v1/{path}")
    assert (refusal.status_code, refusal.json()["code"]) == (404, "not_found")
    assert path.partition("/")[2] in refusal.json()["detail"]


def test_a_node_in_a_list_is_one_line(get: Any) -> None:
    n3 = get("/v1/nodes?names=n3")["items"][0]
    assert n3.pop("reason").startswith("understudy: xid.79")
    assert n3.pop("since") > b.NOW
    assert n3.pop("heard_at") > b.NOW
    assert n3 == {
        "name": "n3",
        "state": "quarantined",
        "slurm": "IDLE+DRAIN",
        "spare": False,
        "jobs": [],
        "gpus": 8,
        "gpus_ok": 8,
    }


@pytest.mark.parametrize("path", [f"v1/{path}" for path in (*LISTS, "status")] + ["healthz", "metrics"])
def test_a_parameter_that_a_route_does_not_have_is_refused(rehearsal: Rehearsal, path: str) -> None:
    refusal = client_of(rehearsal).get(f"/{path}?colour=red")
    assert (refusal.status_code, refusal.json()["code"]) == (422, "invalid")
    assert "colour" in refusal.json()["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "jobs/99999999999999999999/ranks",
        "jobs?cursor=99999999999999999999",
        "gpus?cursor=1",
        "nodes?cursor=" + "x" * 300,
        "nodes?state=broken",
        "nodes?names=n[3-1]",
        "jobs?state=RUNING",
        "jobs?managed=perhaps",
        "jobs?task=4711",
        "decisions?since=nan",
    ],
)
def test_a_value_that_makes_no_sense_is_refused(rehearsal: Rehearsal, path: str) -> None:
    assert client_of(rehearsal).get(f"/v1/{path}").status_code == 422


def test_a_page_of_nodes_may_begin_after_a_name_of_any_characters(rehearsal: Rehearsal) -> None:
    assert client_of(rehearsal).get("/v1/nodes?cursor=n7").json()["items"][0]["name"] == "n8"
    assert client_of(rehearsal).get("/v1/nodes", params={"cursor": "n\u00b2 &"}).status_code == 200


def test_limits_are_checked(rehearsal: Rehearsal) -> None:
    assert client_of(rehearsal).get("/v1/jobs?limit=0").status_code == 422
    refusal = client_of(rehearsal).get("/v1/jobs?limit=1001")
    assert refusal.status_code == 422
    assert "limit" in refusal.json()["detail"]
    assert client_of(rehearsal).get("/v1/nowhere").json()["detail"] == "Not Found"


def test_healthz_turns_bad_when_the_loop_no_longer_ticks(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    client = client_of(rehearsal)
    assert client.get("/healthz").status_code == 200
    rehearsal.fake.advance(60)
    answer = client.get("/healthz")
    assert answer.status_code == 503
    assert "has not ticked" in answer.json()["problems"][0]


def test_a_detector_that_fails_is_shown_and_judgement_goes_on(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    add_tokens(rehearsal.control_plane.engine)
    loop, client = rehearsal.control_plane.loop, client_of(rehearsal)

    def broken(_seen: Snapshot, _config: Config) -> list[Finding]:
        raise ZeroDivisionError

    loop.detectors = {**loop.detectors, "straggler": broken}
    with structlog.testing.capture_logs() as logs:
        loop.tick()
        loop.tick()
    assert [one["error"] for one in logs if one["event"] == "detector_failed"] == [
        "detector straggler failed: ZeroDivisionError: "
    ], "one that goes on failing is logged once"
    health, ready = client.get("/healthz"), client.get("/readyz")
    assert (health.status_code, ready.status_code) == (200, 503), "a restart would stop the other detectors"
    for answer in (health, ready):
        assert "detector straggler fails" in answer.json()["problems"][0]
    assert "ZeroDivisionError" in client.get("/v1/status").json()["problems"][0]
    assert 'understudy_detectors_failed_total{detector="straggler"} 2.0' in client.get("/metrics").text
    loop.detectors = DETECTORS
    loop.tick()
    assert client.get("/readyz").status_code == 200


def test_a_decision_that_fails_is_shown_and_the_loop_goes_on(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    add_tokens(rehearsal.control_plane.engine)
    loop, client = rehearsal.control_plane.loop, client_of(rehearsal)

    def of_a_job_that_is_gone(seen: Snapshot, _config: Config) -> list[Finding]:
        return [Finding(Signal.JOB_HELD, "prolog.job_held", "", seen.now, "held", job=JobKey("testbed", 9, 1))]

    loop.detectors = {**loop.detectors, "held": of_a_job_that_is_gone}
    with structlog.testing.capture_logs() as logs:
        loop.tick()
        loop.tick()
    (logged,) = (one for one in logs if one["event"] == "decision_failed")
    assert logged["error"].startswith("decision prolog.job_held failed: KeyError")
    assert client.get("/healthz").json()["problems"][0].startswith("decision prolog.job_held fails")
    shown = [one["because"] for one in client.get("/v1/decisions").json()["items"] if one["subject"] == "job 9"]
    assert shown == ["decision_failed"]
    assert 'understudy_detectors_failed_total{detector="decision prolog.job_held"} 2.0' in client.get("/metrics").text


def test_readyz_needs_a_tick_and_slurm(tmp_path: Path) -> None:
    server = {"database": new_database(tmp_path / "fleet.db")}
    fake = VirtualSlurm([f"c{number}" for number in range(30)])
    with closing(compose(b.config(mode="observe", server=server), Outside(fake, lambda _node: True))) as plane:
        client = TestClient(plane.app)
        assert (client.get("/readyz").status_code, "first tick" in client.get("/readyz").text) == (503, True)
        plane.loop.tick()
        assert client.get("/readyz").json() == {"ready": True, "problems": []}
        plane.loop.pulse.slurm.error = "slurmctld does not answer"
        assert client.get("/readyz").json()["problems"] == [f"Slurm cannot be read; {CAUSE_AT}"]


def test_the_first_start_of_a_fleet_without_agents_writes_one_decision(tmp_path: Path) -> None:
    server = {"database": with_tokens(new_database(tmp_path / "fleet.db"))}
    fake = VirtualSlurm([f"c{number}" for number in range(30)])
    clock = Ahead()
    with closing(compose(b.config(mode="observe", server=server), Outside(fake, lambda _node: True, clock))) as plane:
        plane.loop.tick()
        clock.ahead = 60.0
        plane.loop.tick()
        plane.loop.tick()  # which sees the nodes as the one before has left them
        client = TestClient(plane.app, headers=bearer(Role.VIEWER))
        (decision,) = client.get("/v1/decisions?limit=1000").json()["items"]
        assert (decision["subject"], len(decision["evidence"]["nodes"])) == ("fleet", 30)
        assert client.get("/v1/status").json()["nodes"] == {"unknown": 30}


class Ahead:
    ahead = 0.0

    def now(self) -> float:
        return b.NOW + self.ahead

    def monotonic(self) -> float:
        return self.now()
