"""The route for launchers: which reports are believed, and how soon orders arrive."""

from __future__ import annotations

import base64
import queue
import threading
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests import builders as b
from tests.new_database import new_database
from tests.tokens import add_tokens, admission_of, bearer
from understudy_controlplane.access.admission import Denied
from understudy_controlplane.fleet.gang import Earlier, Gang, orders_version
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.job import Attempt, RestoreAnswer, RestoreDecision
from understudy_controlplane.ingest.answers import refuse_denied
from understudy_controlplane.ingest.launchers import launchers_router
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.ingest.reports import ReportDependencies
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.launchers import Launchers
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.launches import LaunchStore
from understudy_wire.facts import LaunchEnded
from understudy_wire.launcher import (
    EarlierAllocations,
    LauncherOrders,
    LauncherPhase,
    LauncherReport,
    LauncherState,
    Restart,
)
from understudy_wire.messages import REPORT_BYTES_MAX, WIRE_VERSION
from understudy_wire.places import Place
from understudy_wire.ranks import RankWindow

HEADERS = bearer(Role.NODE, "n1")


@dataclass
class Route:
    client: TestClient
    launchers: Launchers
    facts: FactStore
    directory: JobDirectory
    newest: list[RestoreDecision]
    telemetry: Telemetry
    woken: list[float] = field(default_factory=list)

    def post(self, headers: dict[str, str] | None = None, **changes: Any) -> httpx.Response:
        sent = report(**changes)
        headers = bearer(Role.NODE, sent.node) if headers is None else headers
        return self.client.post("/v1/launchers", content=msgspec.json.encode(sent), headers=headers)


class Still:
    def now(self) -> float:
        return b.NOW

    def monotonic(self) -> float:
        return b.NOW


STATE = LauncherState(7, 1, 0, LauncherPhase.RUNNING, ("n1", "n2", "n3"), ("n4",), nodes_min=3)


def report(**changes: Any) -> LauncherReport:
    """`changes` are fields of the report or of the state in it."""
    state = {name: changes.pop(name) for name in STATE.__struct_fields__ if name in changes}
    values: dict[str, Any] = {"version": WIRE_VERSION, "cluster": b.CLUSTER, "node": "n1", "user_id": 1000}
    return LauncherReport(**(values | {"state": msgspec.structs.replace(STATE, **state)} | changes))


@pytest.fixture(params=[True])
def route(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Route]:
    """`param`: whether the job asked for Understudy."""
    engine = open_database(new_database(tmp_path / "fleet.db"))
    telemetry = Telemetry()
    telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1", "n2", "n3", "n4"}))})
    attempts = [b.job(managed=request.param, restart_count=count) for count in range(2)]
    known = FleetStore(engine).see_jobs(attempts, b.NOW)[-1]
    launchers, woken, facts = Launchers(), [], FactStore(engine)  # type: Launchers, list[float], FactStore
    directory, newest = JobDirectory(known={7: known}), [RestoreDecision(RestoreAnswer.RESTORE, 40, "/c/40", ranks=8)]
    deps = ReportDependencies(
        b.CLUSTER,
        telemetry,
        directory,
        facts,
        LaunchStore(engine),
        Still(),
        lambda: woken.append(b.NOW),
        lambda: woken.append(b.NOW),
        lambda _user: woken.append(b.NOW),
        lambda *_: RestoreDecision(RestoreAnswer.FRESH),
        lambda _node, _now: "",
        Rates(per_second=50),
        lambda _job: newest[-1],
    )
    app = FastAPI()
    add_tokens(engine, ["n1", "n2", "n3", "n4", "n9"])
    app.add_exception_handler(Denied, refuse_denied)
    admission = admission_of(engine, Still())
    app.include_router(launchers_router(deps, launchers, admission))
    with TestClient(app) as client:
        yield Route(client, launchers, facts, directory, newest, telemetry, woken)
    admission.close()
    engine.dispose()


def test_a_report_is_kept_and_wakes_the_loop_when_its_state_is_new(route: Route) -> None:
    answer = route.post()
    assert (answer.status_code, "orders" in answer.json()) == (200, False)
    assert route.launchers.gangs() == {7: Gang(STATE, "n1", b.NOW)}
    assert len(route.woken) == 1
    route.post()
    assert len(route.woken) == 1
    route.post(launch=1)
    assert len(route.woken) == 2
    route.post(launch=0)
    assert route.launchers.gangs()[7].attempt == Attempt(1, 1), "a report that comes late is ignored"


def test_the_token_of_one_node_speaks_for_no_launcher_elsewhere(route: Route) -> None:
    forged = route.post(bearer(Role.NODE, "n9"), node="n1", launch=7)
    assert (forged.status_code, forged.json()["detail"]) == (403, "the token of node n9 does not speak for node n1")
    assert route.launchers.gangs() == {}


def test_orders_that_stand_are_sent_at_once_and_once(route: Route) -> None:
    orders = LauncherOrders({"n2": "Xid 79"}, Restart(0, "it hangs", ("n3",)))
    route.launchers.replace_orders({7: orders})
    answer = route.post(wait_seconds=5.0).json()
    assert msgspec.convert(answer["orders"], LauncherOrders) == orders
    assert answer["orders_version"] == orders_version(orders)
    assert "orders" not in route.post(known=orders_version(orders)).json()
    route.launchers.replace_orders({7: LauncherOrders()})
    taken_back = route.post(known=orders_version(orders)).json()
    assert (taken_back["orders_version"], taken_back["orders"]) == (orders_version(LauncherOrders()), {})


def test_orders_that_are_not_known_in_one_round_go_on_to_stand(route: Route) -> None:
    """What is added to them would take them back otherwise: a launcher takes each answer as all that stands."""
    route.launchers.replace_orders({7: LauncherOrders({"n3": "Xid 79"}), 8: LauncherOrders()})
    route.launchers.replace_orders({7: None, 9: None})
    route.launchers.add_orders(7, LauncherOrders({"n2": "Xid 79"}))
    assert route.post(wait_seconds=5.0).json()["orders"] == {"bad": {"n2": "Xid 79", "n3": "Xid 79"}}
    assert [route.launchers.orders(job_id) for job_id in (8, 9)] == [None, None]


@pytest.mark.parametrize("by", ["loop", "step"])
def test_orders_reach_a_waiting_launcher_at_once(route: Route, by: str) -> None:
    orders = LauncherOrders({"n2": "Xid 79"})
    given: list[float] = []

    def give() -> None:
        given.append(time.monotonic())
        if by == "loop":
            route.launchers.replace_orders({7: orders})
        else:
            route.launchers.add_orders(7, orders)

    timer = threading.Timer(0.3, give)
    timer.start()
    answer = route.post(wait_seconds=10.0).json()
    assert answer["orders"] == {"bad": {"n2": "Xid 79"}}
    assert time.monotonic() - given[0] < 0.2


def test_a_poll_is_answered_after_its_wait_seconds(route: Route) -> None:
    begun = time.monotonic()
    assert "orders" not in route.post(wait_seconds=0.2).json()
    assert 0.15 < time.monotonic() - begun < 2.0


def test_polls_end_when_the_control_plane_stops(route: Route) -> None:
    timer = threading.Timer(0.3, route.launchers.end_polls)
    timer.start()
    begun = time.monotonic()
    assert "orders" not in route.post(wait_seconds=10.0).json()
    assert "orders" not in route.post(wait_seconds=10.0).json(), "nor does another one wait"
    assert time.monotonic() - begun < 5.0


def test_unknown_fields_of_a_newer_launcher_are_ignored(route: Route) -> None:
    body = msgspec.to_builtins(report())
    body |= {"colour": "red", "state": body["state"] | {"mood": "good"}}
    assert route.client.post("/v1/launchers", json=body, headers=HEADERS).status_code == 200
    assert route.launchers.gangs() == {7: Gang(STATE, "n1", b.NOW)}


def test_a_second_poll_for_the_same_job_ends_the_first(route: Route) -> None:
    """Whichever comes second: threads start in any order."""
    answered: queue.SimpleQueue[httpx.Response] = queue.SimpleQueue()
    polls = [threading.Thread(target=lambda: answered.put(route.post(wait_seconds=20.0))) for _ in range(2)]
    for poll in polls:
        poll.start()
    try:
        assert answered.get(timeout=15).status_code == 200
        assert answered.empty(), "the second waits on"
    finally:
        route.launchers.end_polls()
        for poll in polls:
            poll.join()


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"version": 99}, 400, "wire version 99"),
        ({"cluster": "another"}, 400, "another"),
        ({"user_id": 1001}, 403, "a launcher of user 1001 reported job 7 of user 1000"),
        ({"user_id": 0}, 403, "a launcher of user 0 reported job 7 of user 1000"),
        ({"node": "n9"}, 403, "does not run on n9"),
        ({"job_id": 8}, 404, "does not show attempt 1 of job 8"),
        ({"restart_count": 2}, 404, "attempt 2"),
        ({"restart_count": 0}, 404, "attempt 0"),
    ],
)
def test_other_launchers_are_refused_with_the_reason(
    route: Route, changes: dict[str, Any], status: int, words: str
) -> None:
    answer = route.post(**changes)
    assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
    assert route.launchers.gangs() == {}


def test_nonsense_is_refused(route: Route) -> None:
    for body, status in ((b"{", 400), (b"{}", 400), (b"x" * (REPORT_BYTES_MAX + 1), 413)):
        assert route.client.post("/v1/launchers", content=body, headers=HEADERS).status_code == status
    assert route.post(headers={}).status_code == 401
    assert route.post(seats=("",)).status_code == 400


@pytest.mark.parametrize("route", [False], indirect=True)
def test_a_job_that_did_not_ask_for_understudy_is_refused(route: Route) -> None:
    answer = route.post()
    assert (answer.status_code, answer.json()["hint"]) == (403, "sbatch --comment=understudy")


def test_nodes_of_other_jobs_are_left_out(route: Route) -> None:
    """A stranger may want them to count as lost."""
    assert route.post(spares=("n4", "n9"), seats=("n1", "n8", "n2"), lost=("n3", "n9")).status_code == 200
    gang = route.launchers.gangs()[7]
    assert (gang.seats, gang.spares, gang.state.lost) == (("n1", "n2"), ("n4",), ("n3",))
    assert route.post(seats=("n8", "n9")).status_code == 403


def test_a_node_that_slurm_has_taken_out_of_the_job_stays_known_as_lost(route: Route) -> None:
    assert route.post().status_code == 200
    route.telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1", "n2", "n4"}))})
    assert route.post(seats=("n1", "n2", "n4"), spares=(), lost=("n3", "n9")).status_code == 200
    assert route.launchers.gangs()[7].state.lost == ("n3",)


def test_launches_spent_before_a_requeue_are_in_the_answer(route: Route) -> None:
    ends = [
        LaunchEnded(7, 0, launch, "L130", "it failed", float(launch), counted=True, user_id=1000) for launch in range(2)
    ]
    assert route.facts.record("n1", ends, b.NOW, route.directory.get) == []
    assert route.post().json()["earlier"] == {"launches_without_progress": 2}


def test_a_launcher_knows_steps_in_the_count_of_its_own_allocation(route: Route) -> None:
    """Its job came to step 500 before its requeue, in an epoch that began at 2,900."""
    route.launchers.note_earlier_allocations(7, 1, Earlier(EarlierAllocations(best_step=500), 2900))
    route.telemetry.count_on({7: (Attempt(0), Place(3400, 2900))})
    route.telemetry.know({"n1"})
    answers = []
    for first_step in (498, 0):
        window = RankWindow(7, 1, 0, 1, 0, 1000, "", first_step, [1.0], [1.0])
        assert route.telemetry.receive(b.report("n1", ranks=[window]), b.NOW) == []
        answers.append(route.post().json())
    assert [(one["step"], one.get("count_from", 0), one["earlier"]["best_step"]) for one in answers] == [
        (498, 0, 500),
        (499, 499, 500),
    ]


def test_the_newest_checkpoint_is_in_every_answer(route: Route) -> None:
    """Launches may begin while no control plane answers."""
    answer = route.post().json()
    assert (answer["restore_step"], answer["restore_path"], answer["restore_ranks"]) == (40, "/c/40", 8)
    threading.Timer(0.2, lambda: route.newest.append(RestoreDecision(RestoreAnswer.RESTORE, 60, "/c/60"))).start()
    assert route.post(wait_seconds=0.6).json()["restore_step"] == 60, "as it is when the answer goes out"


def test_nodes_are_unpacked_only_for_the_user_of_the_job(route: Route) -> None:
    bomb = base64.b85encode(zlib.compress(b"n[0-65535]\n" * 80_000)).decode()
    assert route.post(user_id=1001, seats=(), nodes_packed=bomb).status_code == 403
    answer = route.post(seats=(), nodes_packed=bomb)
    assert (answer.status_code, "host list" in answer.json()["detail"]) == (400, True)
    assert route.launchers.gangs() == {}


def test_no_text_of_a_launcher_has_what_no_database_stores(route: Route) -> None:
    wrong: list[dict[str, Any]] = [{"unwell": {"n1": "\0"}}, {"unwell": {"\0": "x"}}, {"seats": ("n1\0",)}]
    for changes in (*wrong, {"group_sizes": "\0"}):
        answer = route.post(**changes)
        assert (answer.status_code, "text without" in answer.json()["detail"]) == (400, True), changes
    assert route.launchers.gangs() == {}
