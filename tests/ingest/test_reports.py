"""What the route for reports promises: bad input gets a clear error and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from msgspec.structs import replace
from sqlalchemy import Engine, text
from sqlalchemy import event as engine_event
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from tests import builders as b
from tests.new_database import new_database
from tests.tokens import PEOPLE, add_tokens, admission_of, bearer
from understudy_controlplane.access.admission import Denied
from understudy_controlplane.decide.leadership import SURE_SECONDS
from understudy_controlplane.fleet.holder import Leader
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.job import Attempt, KnownJob, RestoreAnswer, RestoreDecision
from understudy_controlplane.fleet.node import Generation, generation_of
from understudy_controlplane.ingest.answers import refuse_denied
from understudy_controlplane.ingest.quotas import Quotas
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.ingest.refusals import Cause, Refusals
from understudy_controlplane.ingest.reports import ReportDependencies, ReportsRoute, restore_points_router
from understudy_controlplane.live.directory import INVENTED_SECONDS, OVER_SECONDS, JobDirectory
from understudy_controlplane.live.meters import Meters
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_controlplane.recover.restore import RestorePoints
from understudy_controlplane.store.checkpoints import CheckpointStore
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.launches import LaunchStore
from understudy_wire.facts import (
    CheckpointShard,
    Fact,
    HardwareEvent,
    HardwareKind,
    JobRefused,
    KernelEvent,
    KernelLogPolicy,
    KernelPattern,
    LaunchEnded,
    RankStarted,
)
from understudy_wire.files import AnnouncedFile, FileOutcome, FileResult, FileTask, ReadFiles
from understudy_wire.hardware import GpuStatus
from understudy_wire.leader import HeardLeader
from understudy_wire.messages import REPORT_BYTES_MAX, Acknowledgement, Keeper, KeptJob, Report
from understudy_wire.ranks import Collective, ComputeTestOrder, HangQuestion, JobNote, RankWindow

HEADERS = bearer(Role.NODE, "n1")


@dataclass
class Route:
    client: TestClient
    engine: Engine
    telemetry: Telemetry
    directory: JobDirectory
    woken: list[float] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)
    meters: Meters = field(default_factory=Meters)
    file_tasks: dict[str, ReadFiles] = field(default_factory=dict)
    file_results: list[tuple[str, FileResult]] = field(default_factory=list)

    def post(self, content: bytes | Report, headers: dict[str, str] | None = None) -> httpx.Response:
        """Posts with the token of the report's own node, unless `headers` are others."""
        if headers is None:
            headers = bearer(Role.NODE, content.node) if isinstance(content, Report) else HEADERS
        body = msgspec.json.encode(content) if isinstance(content, Report) else content
        return self.client.post("/v1/reports", content=body, headers=headers)

    @property
    def events_stored(self) -> int:
        return len(FactStore(self.engine).kernel_events(0, 0.0))


class Still:
    def now(self) -> float:
        return b.NOW

    def monotonic(self) -> float:
        return b.NOW


KERNEL_LOG = KernelLogPolicy("2026", (KernelPattern(("XFS (",), ".*shut down"),))


@pytest.fixture
def route(tmp_path: Path) -> Iterator[Route]:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    telemetry = Telemetry(Leader("i", 10))
    telemetry.know(["n1", "n2", "n8"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1", "n2"}))})
    known = FleetStore(engine).see_jobs([b.job()], b.NOW)[0]
    directory = JobDirectory(known={known.key.job_id: known})
    woken: list[float] = []

    def give(known: KnownJob, attempt: Attempt, ranks: int) -> RestoreDecision:
        if ranks == 3:
            return RestoreDecision(RestoreAnswer.UNKNOWN, why="only 4 ranks can restore it")
        if attempt.launch == 9:
            return RestoreDecision(RestoreAnswer.UNKNOWN, why="step 20: loss_nan")
        return RestoreDecision(RestoreAnswer.RESTORE, 20, f"/c/20/{known.row}/{attempt}")

    unfit: dict[str, str] = {}
    file_tasks: dict[str, ReadFiles] = {}
    file_results: list[tuple[str, FileResult]] = []

    def take(node: str, result: FileResult) -> None:
        file_results.append((node, result))
        del file_tasks[node]

    meters = Meters()
    deps = ReportDependencies(
        b.CLUSTER,
        telemetry,
        directory,
        FactStore(engine),
        LaunchStore(engine),
        Still(),
        lambda: woken.append(b.NOW),
        lambda: woken.append(b.NOW),
        lambda _user: woken.append(b.NOW),
        give,
        lambda node, _now: unfit.get(node, ""),
        Rates(per_second=50),
        quotas=Quotas(user_bytes_each_hour=1 << 20),
        meters=meters,
        refusals=Refusals(meters),
        kernel_log=KERNEL_LOG,
        note_run=RestorePoints(CheckpointStore(engine), FleetStore(engine), Still()).note_run,
        file_task=file_tasks.get,
        take_file_result=take,
    )
    app = FastAPI()
    add_tokens(engine, ["n1", "n2", "n3", "n4", "n8", "n99"])
    app.add_exception_handler(Denied, refuse_denied)
    admission = admission_of(engine, Still())
    app.add_middleware(ReportsRoute, deps=deps, admission=admission)
    app.include_router(restore_points_router(deps, admission))
    with TestClient(app) as client:
        yield Route(client, engine, telemetry, directory, woken, unfit, meters, file_tasks, file_results)
    admission.close()
    engine.dispose()


def refused(response: httpx.Response, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    for word in words:
        assert word in body["detail"] + body["hint"]


def window(**changes: Any) -> RankWindow:
    values = {"job_id": 7, "restart_count": 0, "rank": 0, "world_size": 4, "first_step": 0, "self_seconds": [0.1, 0.2]}
    return RankWindow(**(values | {"user_id": 1000} | changes))  # type: ignore[arg-type]


def test_a_good_report_is_heard_and_acknowledged(route: Route) -> None:
    response = route.post(b.report("n1", ranks=[window()]))
    assert (response.status_code, response.json()) == (200, {"facts": 0})
    assert route.telemetry.heard()["n1"].at == b.NOW
    assert route.woken == []


def test_an_agent_that_follows_another_policy_for_the_kernel_log_gets_it_and_an_older_agent_nothing(
    route: Route,
) -> None:
    def answered(followed: str | None) -> KernelLogPolicy | None:
        response = route.post(b.report(kernel_log_policy=followed))
        return msgspec.json.decode(response.content, type=Acknowledgement).kernel_log

    assert [answered(""), answered("2025")] == [KERNEL_LOG, KERNEL_LOG]
    assert [answered("2026"), answered(None)] == [None, None]


def test_an_agent_gets_its_task_on_files_with_each_answer_until_it_reports_what_became_of_it(route: Route) -> None:
    def asked(result: FileResult | None = None) -> FileTask | None:
        response = route.post(b.report("n1", file_result=result))
        return msgspec.json.decode(response.content, type=Acknowledgement).file_task

    assert asked() is None
    task = ReadFiles(5, 1000, "/c/20", [AnnouncedFile("r0", 5, "", b.NOW)], bytes_per_second=1e6, whole=True)
    route.file_tasks["n1"] = task
    found = FileResult(5, FileOutcome.BAD, "r0 is short")
    assert [asked(), asked()] == [task, task]
    assert asked(found) is None
    assert route.file_results == [("n1", found)]


def test_ranks_get_the_order_to_test_their_gpus_with_each_answer_until_they_have_done_it(route: Route) -> None:
    def ordered(first_step: int) -> list[ComputeTestOrder]:
        response = route.post(b.report("n1", ranks=[window(first_step=first_step)]))
        return msgspec.json.decode(response.content, type=Acknowledgement).compute_tests

    one = window()
    assert ordered(0) == []
    order = ComputeTestOrder(one.job_id, one.restart_count, one.launch, one.user_id, 100)
    route.telemetry.compute_tests.order(order)
    assert [ordered(10), ordered(20), ordered(100)] == [[order], [order], []]


def test_the_node_of_rank_0_gets_the_notes_for_its_jobs_owner_with_each_answer_while_they_stand(route: Route) -> None:
    def notes(rank: int = 0, launch: int = 0) -> list[JobNote]:
        response = route.post(b.report("n1", ranks=[replace(window(), rank=rank, launch=launch)]))
        return msgspec.json.decode(response.content, type=Acknowledgement).job_notes

    one = window()
    note = JobNote(one.job_id, one.restart_count, 0, one.user_id, "nan 5", "loss is NaN")
    of_another = replace(note, user_id=one.user_id + 1)
    assert notes() == []
    route.telemetry.job_notes.replace([note, of_another])
    assert [notes(), notes(), notes(rank=1), notes(launch=1)] == [[note], [note], [], []]
    route.telemetry.job_notes.replace([])
    assert notes() == []


def test_all_ranks_of_a_gang_that_hangs_are_asked(route: Route) -> None:
    ranks = [replace(window(), rank=rank) for rank in (2, 3)]
    question = HangQuestion(ranks[0].job_id, ranks[0].restart_count, ranks[0].launch, ranks[0].user_id)
    route.telemetry.hang_questions.replace([question, replace(question, launch=1)])
    response = route.post(b.report("n1", ranks=ranks))
    assert msgspec.json.decode(response.content, type=Acknowledgement).hang_questions == [question]


def test_a_keeper_gets_to_know_which_jobs_have_ended_are_of_others_or_are_none_of_slurms(route: Route) -> None:
    def over(*kept: KeptJob) -> list[KeptJob]:
        response = route.post(b.report("n1", keeper=Keeper(10, 100, jobs=list(kept))))
        return msgspec.json.decode(response.content, type=Acknowledgement).jobs_over

    own, other, unknown = KeptJob(7, 1000), KeptJob(7, 1001), KeptJob(8, 1000)
    assert over(own, unknown) == []
    assert over(own, other, unknown) == [other]
    route.directory.show([7], b.NOW + INVENTED_SECONDS)
    assert over(own, other, unknown) == [other, unknown]
    route.directory.show([7], b.NOW - OVER_SECONDS, ended=[7])
    assert over(own) == [own]


@pytest.mark.parametrize(
    "body", [b'{"version": 1, "cluster": "\xe2"}', b'{"\xff": 1}', b'{"x": ' + b"[" * 100_000, b"\xff", b"[" * 100_000]
)
def test_what_is_no_text_or_has_no_end_is_refused_as_any_other_nonsense(route: Route, body: bytes) -> None:
    refused(route.post(body), 400)


@pytest.mark.parametrize(
    "fact",
    [
        HardwareEvent(b.BOOT, b.NOW, HardwareKind.PORT_OUTAGE, "mlx5_0/1", 2**64),
        KernelEvent(b.BOOT, 1, b.NOW, "NVRM: Xid", 2**40),
        LaunchEnded(7, 0, 0, "L130", "over", b.NOW, status=2**63),
    ],
)
def test_a_number_that_no_database_holds_is_refused_alone(route: Route, fact: Fact) -> None:
    answer = route.post(b.report("n1", facts=[fact, b.xid_event("n1", 79, sequence=2).event])).json()
    assert (answer["facts"], ["a fact cannot be read" in text for text in answer["dropped"]]) == (1, [True])
    assert (route.events_stored, route.telemetry.facts_dropped_total) == (1, 1)


def test_an_xid_that_an_older_agent_could_not_parse_is_stored_with_code_and_address(route: Route) -> None:
    known, unknown = "NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", "NVRM: Xid in a form of tomorrow"
    sent = [
        KernelEvent(b.BOOT, 1, b.NOW, known),
        KernelEvent(b.BOOT, 2, b.NOW, known, 13, "0000:06:00.0"),
        KernelEvent(b.BOOT, 3, b.NOW, unknown, 999, "0000:07:00.0"),
    ]
    route.post(b.report("n1", facts=sent))
    stored = [(one.event.xid, one.event.bus_id) for one in FactStore(route.engine).kernel_events(0, 0.0)]
    assert stored == [(79, "0000:05:00.0"), (79, "0000:05:00.0"), (999, "0000:07:00.0")]


def test_a_fact_is_stored_with_driver_and_gpus_as_last_known_in_its_boot(route: Route) -> None:
    route.post(b.report("n1", driver_version="570.124.06"))
    for sequence, boot_id in ((1, b.BOOT), (2, "boot-2")):
        event = b.xid_event("n1", 79, sequence=sequence, boot_id=boot_id).event
        route.post(b.report("n1", facts=[event], gpus=[], boot_id=boot_id))
    same, other = (one.generation for one in FactStore(route.engine).kernel_events(0, 0.0))
    assert same == generation_of("570.124.06", [b.gpu(i) for i in range(8)])
    assert other == Generation()


def test_the_last_collective_of_a_rank_is_heard_with_its_window_and_bounded(route: Route) -> None:
    entered = Collective("all_reduce", 3, b.NOW, 10, inside=True)
    assert route.post(b.report("n1", ranks=[window(collective=entered)])).status_code == 200
    answer = route.telemetry.ranks(7, range(8))
    assert answer is not None
    assert answer[1][0].collective == entered
    for nonsense in (Collective("", 3, b.NOW), Collective("x" * 65, 3, b.NOW), Collective("x", 3, 1e99)):
        (why,) = route.post(b.report("n1", ranks=[window(collective=nonsense)])).json()["dropped"]
        assert "what a rank reports cannot be read" in why


def test_a_fact_is_in_the_database_when_it_is_acknowledged_and_wakes_the_loop(route: Route) -> None:
    response = route.post(b.report("n1", facts=[b.xid_event("n1", 79).event]))
    assert response.json() == {"facts": 1}
    assert route.events_stored == 1
    assert route.woken


def test_a_node_that_is_heard_for_the_first_time_is_heard_once_its_facts_are_stored(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be a spare between the two that nothing is known against."""
    heard: list[bool] = []
    record = FactStore.record

    def look(self: FactStore, *given: Any) -> list[str]:
        heard.append("n1" in route.telemetry.heard())
        return record(self, *given)

    monkeypatch.setattr(FactStore, "record", look)
    route.post(b.report("n1", facts=[b.xid_event("n1", 79).event]))
    assert (heard, route.events_stored) == ([False], 1)
    route.post(b.report("n1", facts=[b.xid_event("n1", 79).event]))
    assert heard == [False, True], "a database that is slow silences no node"


def test_a_repeated_fact_is_acknowledged_again_and_counts_once(route: Route) -> None:
    for _ in range(2):
        assert route.post(b.report("n1", facts=[b.xid_event("n1", 79).event])).status_code == 200
    assert route.events_stored == 1


def test_a_report_of_an_unknown_node_is_refused_by_name_and_leaves_nothing(route: Route) -> None:
    refused(route.post(b.report("n99", facts=[b.xid_event("n99", 79).event])), 404, "n99", "NodeName")
    assert route.events_stored == 0
    assert "n99" not in route.telemetry.heard()


def test_another_method_is_refused_as_on_every_route(route: Route) -> None:
    refused(route.client.get("/v1/reports", headers=HEADERS), 405, "Method Not Allowed", "understudy help api")


def test_an_error_of_the_control_plane_is_answered_and_reaches_the_servers_log(
    route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr(Telemetry, "receive", fail)
    with pytest.raises(ZeroDivisionError):
        route.post(b.report("n1"))
    not_raising = TestClient(route.client.app, raise_server_exceptions=False)
    body = msgspec.json.encode(b.report("n1"))
    refused(not_raising.post("/v1/reports", content=body, headers=HEADERS), 500, "failed", "log")


def test_the_token_of_one_node_reports_for_no_other(route: Route) -> None:
    forged = b.report("n1", facts=[b.xid_event("n1", 79).event])
    refused(route.post(forged, bearer(Role.NODE, "n8")), 403, "n8", "n1")
    assert (route.events_stored, route.telemetry.heard()) == (0, {})


@pytest.mark.parametrize("role", PEOPLE)
def test_no_other_role_reports_for_a_node(route: Route, role: Role) -> None:
    refused(route.post(b.report("n1"), bearer(role)), 403, role.value, "token_file")
    assert route.telemetry.heard() == {}


def test_without_the_token_every_report_is_refused(route: Route) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
        refused(route.post(b.report("n1"), headers), 401, "token")
    assert route.telemetry.heard() == {}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": "one"}', b"null"])
def test_a_malformed_report_is_refused_with_the_reason(route: Route, body: bytes) -> None:
    refused(route.post(body), 400, "cannot be read")


@pytest.mark.parametrize("release", ["", "9.0.0"])
def test_what_only_a_newer_release_sends_is_ignored_and_counted_and_the_rest_is_taken(
    route: Route, release: str
) -> None:
    gpus = [b.gpu(0), {"index": 1, "status": "on_fire", "flames": 3}]
    facts = [b.xid_event("n1", 79).event, {"type": "fan_stopped", "fan": 2}, {"type": "fan_stopped", "fan": 3}]
    facts += [{"type": "hardware", "boot_id": b.BOOT, "at": b.NOW, "kind": "nvml_smoke", "part": "0000:1b:00.0"}]
    report = msgspec.to_builtins(b.report("n1", release=release)) | {"gpus": gpus, "facts": facts, "weather": "hot"}
    for _ in range(2):
        answer = route.post(msgspec.json.encode(report))
        assert answer.status_code == 200
        assert answer.json()["facts"] == 1
        assert sum("does not know: fan_stopped" in text for text in answer.json()["dropped"]) == 2
        assert sum("HardwareEvent.kind" in text for text in answer.json()["dropped"]) == 1
    assert route.events_stored == 1
    assert [gpu.status for gpu in route.telemetry.heard()["n1"].report.gpus] == [GpuStatus.OK, GpuStatus.UNKNOWN]
    assert route.telemetry.unknown.totals() == {"field": 4, "value": 4, "kind": 4}


def test_facts_that_cannot_be_read_are_left_out_and_named(route: Route) -> None:
    facts = [{"type": "fan_stopped"}, {"type": "kernel", "boot_id": b.BOOT, "sequence": -1, "at": b.NOW, "text": ""}]
    facts += [7, {}, msgspec.to_builtins(b.xid_event("n1", 79).event)]
    report = msgspec.to_builtins(b.report("n1")) | {"facts": facts}
    answer = route.post(msgspec.json.encode(report)).json()
    assert (answer["facts"], len(answer["dropped"]), route.events_stored) == (1, 4, 1)
    assert "does not know: fan_stopped" in answer["dropped"][0]
    assert "$.sequence" in answer["dropped"][1]


def test_an_unknown_wire_version_is_named_whatever_else_is_in_the_report(route: Route) -> None:
    refused(route.post(b'{"version": 7, "something": "new"}'), 400, "wire version 7", "supports 1")


def test_refused_reports_are_counted_by_cause_and_each_sender_and_cause_is_logged_once(route: Route) -> None:
    oversized = b'{"version": 1, "node": "' + b"x" * REPORT_BYTES_MAX + b'"}'
    with capture_logs() as lines:
        for _ in range(3):
            route.post(b.report("n1"), {})
            route.post(b.report("n1"), bearer(Role.NODE, "n8"))
            route.post(oversized)
            route.post(b"[")
            route.post(b'{"version": 7}')
            route.post(b.report("n1", cluster="elsewhere"))
            route.post(b.report("n1", facts=[b.xid_event("n1", 79, sequence=n).event for n in range(257)]))
            route.post(b.report("n99"))
        route.post(b.report("n1"))
    counted = {
        cause.value: route.meters.registry.get_sample_value("understudy_reports_refused_total", {"cause": cause.value})
        for cause in Cause
    }
    assert counted == {
        "token": 6,
        "rate": 0,
        "too_large": 3,
        "unreadable": 3,
        "version": 3,
        "cluster": 3,
        "content": 3,
        "unknown_node": 3,
        "database": 0,
    }
    logged = [(line["sender"], line["cause"]) for line in lines if line["event"] == "report_refused"]
    assert sorted(logged) == sorted(
        [("testclient", "token"), ("n8", "token"), ("n99", "unknown_node")]
        + [("n1", cause) for cause in ("too_large", "unreadable", "version", "cluster", "content")]
    )
    assert any("'elsewhere'" in str(line.get("error")) for line in lines)


def test_an_oversized_report_is_refused(route: Route) -> None:
    refused(route.post(b'{"version": 1, "node": "' + b"x" * REPORT_BYTES_MAX + b'"}'), 413, str(REPORT_BYTES_MAX))


def test_an_oversized_report_without_a_length_is_refused_before_it_is_read(route: Route) -> None:
    pulled = 0

    def endless() -> Iterator[bytes]:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            yield b"x" * 65_536

    response = route.client.post("/v1/reports", content=endless(), headers=HEADERS)
    assert response.status_code == 413


def test_a_report_for_another_cluster_is_refused(route: Route) -> None:
    refused(route.post(b.report("n1", cluster="elsewhere")), 400, "elsewhere", "ClusterName")


@pytest.mark.parametrize(
    "changes",
    [
        {"rank": 4},
        {"world_size": 10**6},
        {"job_id": 8},
        {"restart_count": 1},
        {"user_id": 1234},
        {"self_seconds": [-1.0]},
        {"self_seconds": [1e9]},
    ],
)
def test_a_window_that_cannot_be_true_is_dropped_and_the_rest_of_the_report_taken(
    route: Route, changes: dict[str, Any]
) -> None:
    response = route.post(b.report("n1", ranks=[window(**changes)], facts=[b.xid_event("n1", 79).event]))
    assert response.status_code == 200
    assert len(response.json()["dropped"]) == 1
    assert "n1" in route.telemetry.heard()
    assert route.events_stored == 1
    assert route.telemetry.progress() == {}


@pytest.mark.parametrize("changes", [{"rank": -1}, {"world_size": 0}, {"first_step": -1}, {"first_step": 2**60}])
def test_a_number_out_of_all_bounds_is_refused_by_name(route: Route, changes: dict[str, int]) -> None:
    (why,) = route.post(b.report("n1", ranks=[window(**changes)])).json()["dropped"]
    assert next(iter(changes)) in why
    assert route.telemetry.progress() == {}


def test_a_rank_claims_no_larger_gang_than_slurm_has_allotted(route: Route) -> None:
    """Each rank that it claims to be one of would take memory, and time of every round."""
    of_job = ExpectedJob(0, 1000, frozenset({"n1", "n2"}), ranks_max=40)
    route.telemetry.expect({7: of_job})
    (why,) = route.post(b.report("n1", ranks=[window(world_size=41)])).json()["dropped"]
    assert "it cannot be in a world of 41 on 2 nodes" in why
    assert "dropped" not in route.post(b.report("n1", ranks=[window(world_size=40)])).json()
    assert not ExpectedJob(0, 1000, frozenset({"n1", "n2"}), ranks_max=2).may_have(33)
    assert ExpectedJob(0, 1000, frozenset({"n1", "n2"}), ranks_max=2).may_have(32), "several on one processor"
    assert ExpectedJob(0, 1000, frozenset({"n1", "n2"})).may_have(512), "where it is not known"


def test_a_window_that_contradicts_its_gang_is_dropped(route: Route) -> None:
    route.post(b.report("n1", ranks=[window()]))
    response = route.post(b.report("n2", ranks=[window(rank=1, world_size=8)]))
    assert "the gang has 4 ranks" in response.json()["dropped"][0]


def test_a_fact_of_another_users_process_is_dropped_with_a_reason(route: Route) -> None:
    shard = CheckpointShard(7, 0, 0, 1, 2**40, "/evil", "x", 1, "crc32:00000000", b.NOW, user_id=1234)
    response = route.post(b.report("n1", facts=[shard]))
    assert response.json()["dropped"] == ["user 1234 speaks for job 7 of user 1000"]


EVIL = CheckpointShard(7, 0, 0, 1, 2**40, "/evil", "x", 1, "crc32:00000000", b.NOW, user_id=1000)


def started(rank: int) -> RankStarted:
    return RankStarted(7, 0, rank, 2, b.NOW, 10 + rank, user_id=1000)


def own_shard(rank: int) -> CheckpointShard:
    return CheckpointShard(7, 0, rank, 2, 20, "/c/20", f"rank-{rank}", 1, "crc32:00000000", b.NOW, user_id=1000)


def announced(route: Route) -> list[tuple[int, str]]:
    return [(one.step, one.path) for one in CheckpointStore(route.engine).complete_checkpoints(b.job().key)]


def test_a_node_announces_no_checkpoint_of_a_job_that_does_not_run_there(route: Route) -> None:
    for rank, node in enumerate(("n1", "n2")):
        route.post(b.report(node, facts=[started(rank), own_shard(rank)]))
    response = route.post(b.report("n8", facts=[RankStarted(7, 0, 0, 1, b.NOW, 10, user_id=1000), EVIL]))
    assert response.json()["dropped"] == ["n8 speaks for attempt 0 of job 7, which does not run there"] * 2
    assert announced(route) == [(20, "/c/20")]


def test_a_shard_alone_does_not_decide_how_many_ranks_its_gang_has(route: Route) -> None:
    for rank, node in enumerate(("n1", "n2")):
        route.post(b.report(node, facts=[started(rank), own_shard(rank)]))
    assert "dropped" not in route.post(b.report("n1", facts=[EVIL])).json()
    assert announced(route) == [(20, "/c/20")]


def test_a_checkpoint_of_a_gang_that_has_not_started_is_none(route: Route) -> None:
    for rank, node in enumerate(("n1", "n2")):
        route.post(b.report(node, facts=[own_shard(rank)]))
    assert announced(route) == []


def test_what_is_reported_of_an_attempt_waits_until_slurm_shows_where_it_runs(route: Route) -> None:
    """A forged report waits too, and is dropped then."""
    ahead = [msgspec.structs.replace(fact, restart_count=1) for fact in (started(0), own_shard(0))]
    others = [msgspec.structs.replace(fact, restart_count=1) for fact in (started(1), own_shard(1))]
    forged = [msgspec.structs.replace(fact, restart_count=1) for fact in (started(0), EVIL)]
    for node, facts in (("n1", ahead), ("n8", forged), ("n2", others)):
        assert "dropped" not in route.post(b.report(node, facts=facts)).json()
    store = FactStore(route.engine)
    assert store.attach_waiting(route.directory.get, b.NOW, route.telemetry.nodes_of).found == 0
    route.telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1", "n2"}))})
    assert store.attach_waiting(route.directory.get, b.NOW, route.telemetry.nodes_of).found == 4
    assert announced(route) == [(20, "/c/20")]


def test_what_a_node_reports_late_of_an_attempt_that_is_over_counts(route: Route) -> None:
    route.telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1", "n2"}))})
    for rank, node in enumerate(("n3", "n4")):
        route.telemetry.know([node])
        assert "dropped" not in route.post(b.report(node, facts=[started(rank), own_shard(rank)])).json()
    assert announced(route) == [(20, "/c/20")]


def test_a_job_that_names_folders_is_restored_from_no_other(route: Route) -> None:
    comment = "understudy checkpoints=/c/ checkpoints=/d"
    (known,) = FleetStore(route.engine).see_jobs([b.job(comment=comment)], b.NOW)
    route.directory.put(known)
    for path in ("/evil", "/c/../evil", "/da/20"):
        shard = msgspec.structs.replace(own_shard(0), path=path)
        (reason,) = route.post(b.report("n1", facts=[shard])).json()["dropped"]
        assert reason == f"job 7 announced a checkpoint outside the folders in its comment: {path}"
    for path in ("/c/20", "/d"):
        shard = msgspec.structs.replace(own_shard(0), path=path)
        assert "dropped" not in route.post(b.report("n1", facts=[shard])).json()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"path": "/c/\0"}, "cannot be read: Expected text without control characters - at `$.path`"),
        ({"file": "\x1b[2J"}, "cannot be read: Expected text without control characters - at `$.file`"),
        ({"checksum": "a" * 65}, "cannot be read: Expected `str` of length <= 64 - at `$.checksum`"),
        ({"at": 1e308}, "cannot be read: Expected `float` <= 4102444800.0 - at `$.at`"),
        ({"size_bytes": 2**62}, "cannot be read: Expected `int` <= 9007199254740992 - at `$.size_bytes`"),
        ({"path": "/" + "ä" * 1000}, "no database stores it: path has 2001 bytes, at most 2000 are stored"),
    ],
)
def test_a_fact_that_no_database_stores_is_set_aside_and_blocks_no_other(
    route: Route, changes: dict[str, str], why: str
) -> None:
    bad = msgspec.structs.replace(own_shard(0), **changes)
    response = route.post(b.report("n1", facts=[bad, b.xid_event("n1", 79).event, started(0)]))
    (dropped,) = response.json()["dropped"]
    assert why in dropped
    assert (route.events_stored, route.telemetry.facts_dropped_total) == (1, 1)


def test_such_a_fact_that_waited_for_its_job_blocks_no_other(route: Route) -> None:
    bad = msgspec.structs.replace(own_shard(0), path="/" + "ä" * 1000, restart_count=1)
    ahead = [msgspec.structs.replace(own_shard(rank), restart_count=1) for rank in range(2)]
    route.post(b.report("n1", facts=[bad, *ahead]))
    route.telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1", "n2"}))})
    store = FactStore(route.engine)
    assert store.attach_waiting(route.directory.get, b.NOW, route.telemetry.nodes_of).found == 2


def test_a_line_of_the_kernel_log_is_stored_whatever_it_contains(route: Route) -> None:
    event = msgspec.structs.replace(b.xid_event("n1", 79).event, text="NVRM: Xid \0", bus_id="x" * 99)
    assert route.post(b.report("n1", facts=[event])).json() == {"facts": 1}
    (stored,) = FactStore(route.engine).kernel_events(0, 0.0)
    assert (stored.event.text, len(stored.event.bus_id)) == ("NVRM: Xid \N{REPLACEMENT CHARACTER}", 32)


def test_what_is_over_a_users_quota_is_refused_visibly_and_the_rest_is_stored(route: Route) -> None:
    shards = [msgspec.structs.replace(own_shard(0), step=step, path="/c" + "x" * 1000) for step in range(128)]
    answers = [route.post(b.report("n1", facts=shards)).json() for _ in range(6)]
    assert ["dropped" in answer for answer in answers] == [False] * 4 + [True] * 2
    assert "128 facts of user 1000 on n1: 1 MiB in an hour are stored, and no more" in answers[-1]["dropped"]
    answer = route.post(b.report("n1", facts=[b.xid_event("n1", 79).event, shards[0]])).json()
    assert (len(answer["dropped"]), route.events_stored) == (1, 1)
    assert route.telemetry.facts_dropped_total == 3


@pytest.mark.parametrize("changes", [{"uuid": "GPU-\0"}, {"serial": "\x1b[2J"}, {"bus_id": "x" * 33}, {"name": "a\nb"}])
def test_what_a_node_calls_its_gpus_is_bounded_by_the_columns_that_store_it(
    route: Route, changes: dict[str, str]
) -> None:
    sent = b.report("n1", gpus=[msgspec.structs.replace(b.gpu(0), **changes), b.gpu(1)])
    (dropped,) = route.post(sent).json()["dropped"]
    assert dropped.startswith(f"Gpu.{next(iter(changes))} of the report is odd")
    heard = route.telemetry.heard()["n1"].report
    assert msgspec.json.decode(msgspec.json.encode(heard), type=Report) == heard
    assert (len(heard.gpus), heard.gpus[1]) == (2, b.gpu(1))


def test_too_many_facts_are_refused_as_a_whole(route: Route) -> None:
    facts = [b.xid_event("n1", 79, sequence=i).event for i in range(257)]
    refused(route.post(b.report("n1", facts=facts)), 422, "257 facts")
    assert route.events_stored == 0


def test_a_shard_of_a_rank_outside_its_world_is_refused(route: Route) -> None:
    shard = CheckpointShard(7, 0, 4, 4, 20, "/c", "rank-4", 1, "crc32:00000000", b.NOW, user_id=1000)
    (why,) = route.post(b.report("n1", facts=[shard])).json()["dropped"]
    assert "rank 4 is not in a world of 4" in why


def test_a_fact_that_cannot_be_stored_is_not_acknowledged(route: Route) -> None:
    with route.engine.begin() as connection:
        connection.execute(text("ALTER TABLE kernel_event RENAME TO elsewhere"))
    refused(route.post(b.report("n1", facts=[b.xid_event("n1", 79).event])), 503, "repeat")
    with route.engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO kernel_event"))
    assert route.post(b.report("n1", facts=[b.xid_event("n1", 79).event])).status_code == 200
    assert route.events_stored == 1


def test_what_could_not_be_stored_is_charged_to_no_quota(route: Route) -> None:
    shards = [msgspec.structs.replace(own_shard(0), step=step, path="/c" + "x" * 1000) for step in range(128)]
    with route.engine.begin() as connection:
        connection.execute(text("ALTER TABLE checkpoint_shard RENAME TO elsewhere"))
    for _ in range(8):
        refused(route.post(b.report("n1", facts=shards)), 503, "repeat")
    with route.engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO checkpoint_shard"))
    assert "dropped" not in route.post(b.report("n1", facts=shards)).json()


def test_what_is_over_a_quota_is_not_acknowledged_while_the_database_is_away(route: Route) -> None:
    def away(_connection: object) -> None:
        raise OperationalError("BEGIN", {}, Exception("the server closed the connection"))

    shards = [msgspec.structs.replace(own_shard(0), step=step, path="/c" + "x" * 1000) for step in range(128)]
    while "dropped" not in route.post(b.report("n1", facts=shards)).json():
        pass
    engine_event.listen(route.engine, "begin", away)
    refused(route.post(b.report("n1", facts=shards)), 503, "repeat")
    engine_event.remove(route.engine, "begin", away)
    assert "dropped" in route.post(b.report("n1", facts=shards)).json()


def test_every_acknowledgement_to_an_unfit_node_has_the_reason_and_those_to_others_have_none(route: Route) -> None:
    route.unfit["n2"] = "quarantined by row 10"
    event = b.xid_event("n2", 79).event
    assert route.post(b.report("n1")).json() == {"facts": 0}
    assert route.post(b.report("n2")).json() == {"facts": 0, "unfit": "quarantined by row 10"}
    assert route.post(b.report("n2", facts=[event])).json() == {"facts": 1, "unfit": "quarantined by row 10"}


def test_a_refusal_counts_once_however_often_it_arrives(route: Route) -> None:
    refusal = JobRefused(7, b.NOW - 1, "unfit", 0)
    for _ in range(3):
        assert route.post(b.report("n1", facts=[refusal])).json() == {"facts": 1}
    assert route.post(b.report("n2", facts=[refusal])).json() == {"facts": 1}
    stored = FactStore(route.engine).refusals_since(0.0)
    assert [(one.node, one.job_id, one.restart_count, one.at, one.reason) for one in stored] == [
        ("n2", 7, 0, b.NOW - 1, "unfit"),
        ("n1", 7, 0, b.NOW - 1, "unfit"),
    ]
    assert route.woken


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_the_job_that_met_an_error_is_known_where_the_nodes_clock_is_wrong(route: Route, ahead: float) -> None:
    route.telemetry.allocations.note([], b.NOW - 200)
    for job_id, seconds_ago in ((7, 150), (7, 51), (8, 50)):
        route.telemetry.allocations.note([b.job(job_id=job_id)], b.NOW - seconds_ago)
    event = b.xid_event("n1", 79, at=b.NOW - 80 + ahead).event
    assert route.post(b.report("n1", facts=[event], sent_at=b.NOW - 0.1 + ahead)).status_code == 200
    (stored,) = FactStore(route.engine).kernel_events(0, 0.0)
    assert [job.job_id for job in stored.jobs] == [7]


def test_a_report_that_was_long_on_its_way_does_not_accuse_the_next_job_alone(route: Route) -> None:
    """It looks as if the node's clock were behind."""
    route.telemetry.allocations.note([], b.NOW - 200)
    for job_id, seconds_ago in ((7, 150), (7, 41), (8, 40)):
        route.telemetry.allocations.note([b.job(job_id=job_id)], b.NOW - seconds_ago)
    event = b.xid_event("n1", 79, at=b.NOW - 50).event
    assert route.post(b.report("n1", facts=[event], sent_at=b.NOW - 20)).status_code == 200
    (stored,) = FactStore(route.engine).kernel_events(0, 0.0)
    assert 7 in [job.job_id for job in stored.jobs]


class TestRestorePoint:
    def ask(self, route: Route, job_id: int, headers: dict[str, str] = HEADERS, **changes: object) -> httpx.Response:
        values = {"job_id": job_id, "restart_count": 0, "user_id": 1000} | changes
        query = {name: str(value) for name, value in values.items()}
        return route.client.get("/v1/restore-point", params=query, headers=headers)

    def test_ranks_get_their_restore_point(self, route: Route) -> None:
        answer = self.ask(route, 7)
        assert answer.json() == {"job_id": 7, "restart_count": 0, "step": 20, "path": "/c/20/1/0"}

    def test_a_rank_asks_again_until_rank_0_has_reported_what_it_runs(self, route: Route) -> None:
        refused(self.ask(route, 7, run="train", run_folder="/home/a", arguments="a", rank=3), 503, "rank 0 of job 7")
        assert self.ask(route, 7, run="train", run_folder="/home/a", arguments="b", rank=0).status_code == 200
        assert self.ask(route, 7, run="train", run_folder="/home/a", arguments="a", rank=3).status_code == 200

    def test_what_is_not_known_is_refused_so_that_no_hook_takes_it_for_the_beginning(self, route: Route) -> None:
        refused(self.ask(route, 7, launch=9), 409, "loss_nan", "trust-checkpoints")
        refused(self.ask(route, 7, world_size=3), 409, "only 4 ranks")

    def test_a_job_that_slurm_has_not_named_is_asked_for_again(self, route: Route) -> None:
        refused(self.ask(route, 8), 404, "job 8")
        assert route.woken

    def test_an_attempt_that_slurm_has_not_begun_is_not_settled_beforehand(self, route: Route) -> None:
        refused(self.ask(route, 7, restart_count=1), 404, "attempt 1 of job 7")

    def test_it_is_given_only_where_slurm_shows_the_job(self, route: Route) -> None:
        refused(self.ask(route, 7, bearer(Role.NODE, "n8")), 403, "n8", "job 7")
        route.telemetry.expect({})
        refused(self.ask(route, 7), 404, "attempt 0 of job 7")

    def test_only_the_jobs_owner_gets_it(self, route: Route) -> None:
        for other in (1001, 0):
            refused(self.ask(route, 7, user_id=other), 403, f"user {other}", "user 1000")

    def test_a_job_that_did_not_ask_for_understudy_is_not_managed_unless_its_ranks_ask(self, route: Route) -> None:
        (known,) = FleetStore(route.engine).see_jobs([b.job(managed=False, job_id=9)], b.NOW)
        route.directory.put(known)
        no = {"job_id": 9, "restart_count": 0, "step": 0, "path": "", "managed": False}
        assert self.ask(route, 9, if_managed="true").json() == no
        route.telemetry.expect({number: ExpectedJob(0, 1000, frozenset({"n1"})) for number in (7, 9)})
        assert self.ask(route, 9).json()["step"] == 20
        assert self.ask(route, 7, if_managed="true").json()["step"] == 20

    def test_only_agents_get_it(self, route: Route) -> None:
        refused(self.ask(route, 7, {}), 401)


def test_a_report_of_a_node_that_follows_another_control_plane_is_heard_as_that_alone(route: Route) -> None:
    """Its facts are in that one's database: here they would count for nodes of which this one knows half."""
    other, own = HeardLeader("j", 3, "http://b:7117"), HeardLeader("i", 10, "http://a:7117")
    refused = route.post(b.report("n1", leaders=[other, own], facts=[KernelEvent(b.BOOT, 1, b.NOW, "NVRM: Xid")]))
    assert (refused.status_code, route.telemetry.heard(), route.events_stored) == (503, {}, 0)
    assert "node n1 follows the control plane at http://b:7117" in refused.json()["detail"]
    found = route.telemetry.leaders.other(b.NOW + SURE_SECONDS)
    assert found is not None
    assert other.url in found.words


def test_a_report_that_only_asks_who_leads_replaces_no_other(route: Route) -> None:
    assert route.post(b.report("n1", gpus=[b.gpu(0)])).status_code == 200
    before = route.telemetry.heard()
    assert route.post(b.report("n1", looks=True)).status_code == 200
    assert route.telemetry.heard() == before


def test_a_node_that_slurm_does_not_know_has_no_vote(route: Route) -> None:
    other = HeardLeader("j", 3, "http://b:7117")
    assert route.post(b.report("n9", leaders=[other])).status_code in (401, 403, 404)
    assert route.telemetry.leaders.other(b.NOW + SURE_SECONDS) is None
