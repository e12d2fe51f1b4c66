"""What the door for reports promises: bad input gets a clear error and loses nothing."""

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
from sqlalchemy import Engine, text

from tests import builders as b
from tests.new_database import new_database
from understudy_agent.wire import (
    REPORT_BYTES_MAX,
    CheckpointShard,
    Collective,
    Fact,
    GpuStatus,
    HardwareEvent,
    HardwareKind,
    JobRefused,
    KernelEvent,
    LaunchEnded,
    RankWindow,
    Report,
)
from understudy_controlplane.fleet.job import Attempt, KnownJob
from understudy_controlplane.fleet.node import Generation, generation_of
from understudy_controlplane.ingest.authority import Token
from understudy_controlplane.ingest.reports import Doors, reports_router
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.telemetry import ExpectedJob, Telemetry
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.fleet import FleetStore
from understudy_controlplane.store.launches import LaunchStore

SECRET = "a-secret-that-only-agents-know"
HEADERS = {"Authorization": f"Bearer {SECRET}"}


@dataclass
class Door:
    client: TestClient
    engine: Engine
    telemetry: Telemetry
    directory: JobDirectory
    woken: list[float] = field(default_factory=list)
    unfit: dict[str, str] = field(default_factory=dict)

    def post(self, content: bytes | Report, headers: dict[str, str] = HEADERS) -> httpx.Response:
        body = msgspec.json.encode(content) if isinstance(content, Report) else content
        return self.client.post("/v1/reports", content=body, headers=headers)

    @property
    def events_stored(self) -> int:
        return len(FactStore(self.engine).kernel_events(0, 0.0))


class Still:
    def now(self) -> float:
        return b.NOW


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    telemetry = Telemetry()
    telemetry.know(["n1", "n2"])
    telemetry.expect({7: ExpectedJob(0, 1000, frozenset({"n1", "n2"}))})
    known = FleetStore(engine).see_jobs([b.job()], b.NOW)[0]
    directory = JobDirectory({known.key.job_id: known})
    woken: list[float] = []

    def tell(known: KnownJob, attempt: Attempt) -> tuple[int, str]:
        return (20, f"/c/20/{known.row}/{attempt}")

    unfit: dict[str, str] = {}
    doors = Doors(
        b.CLUSTER,
        Token(SECRET),
        telemetry,
        directory,
        FactStore(engine),
        LaunchStore(engine),
        Still(),
        lambda: woken.append(b.NOW),
        tell,
        lambda node, _now: unfit.get(node, ""),
    )
    app = FastAPI()
    app.include_router(reports_router(doors))
    with TestClient(app) as client:
        yield Door(client, engine, telemetry, directory, woken, unfit)
    engine.dispose()


def refused(response: httpx.Response, status: int, *words: str) -> None:
    assert response.status_code == status, response.text
    body = response.json()
    for word in words:
        assert word in body["error"] + body["hint"]


def window(**changes: Any) -> RankWindow:
    values = {"job_id": 7, "restart_count": 0, "rank": 0, "world_size": 4, "first_step": 0, "self_seconds": [0.1, 0.2]}
    return RankWindow(**(values | changes))  # type: ignore[arg-type]


def test_a_good_report_is_heard_and_acknowledged(door: Door) -> None:
    response = door.post(b.report("n1", ranks=[window()]))
    assert (response.status_code, response.json()) == (200, {"facts": 0})
    assert door.telemetry.heard()["n1"].at == b.NOW
    assert door.woken == []


@pytest.mark.parametrize(
    "body", [b'{"version": 1, "cluster": "\xe2"}', b'{"\xff": 1}', b'{"x": ' + b"[" * 100_000, b"\xff", b"[" * 100_000]
)
def test_what_is_no_text_or_has_no_end_is_refused_as_any_other_nonsense(door: Door, body: bytes) -> None:
    refused(door.post(body), 400)


@pytest.mark.parametrize(
    "fact",
    [
        HardwareEvent(b.BOOT, b.NOW, HardwareKind.PORT_OUTAGE, "mlx5_0/1", 2**64),
        KernelEvent(b.BOOT, 1, b.NOW, "NVRM: Xid", 2**40),
        LaunchEnded(7, 0, 0, "L130", "over", b.NOW, status=2**63),
    ],
)
def test_a_number_that_no_database_holds_is_refused(door: Door, fact: Fact) -> None:
    refused(door.post(b.report("n1", facts=[fact])), 400, "cannot be read")


def test_a_fact_is_stored_with_driver_and_gpus_as_last_known_in_its_boot(door: Door) -> None:
    door.post(b.report("n1", driver_version="570.124.06"))
    for sequence, boot_id in ((1, b.BOOT), (2, "boot-2")):
        event = b.xid_event("n1", 79, sequence=sequence, boot_id=boot_id).event
        door.post(b.report("n1", facts=[event], gpus=[], boot_id=boot_id))
    same, other = (one.generation for one in FactStore(door.engine).kernel_events(0, 0.0))
    assert same == generation_of("570.124.06", [b.gpu(i) for i in range(8)])
    assert other == Generation()


def test_the_last_collective_of_a_rank_is_heard_with_its_window_and_bounded(door: Door) -> None:
    entered = Collective("all_reduce", 3, b.NOW, 10, inside=True)
    assert door.post(b.report("n1", ranks=[window(collective=entered)])).status_code == 200
    told = door.telemetry.ranks(7)
    assert told is not None
    assert told[1][0].collective == entered
    for nonsense in (Collective("", 3, b.NOW), Collective("x" * 65, 3, b.NOW), Collective("x", 3, 1e99)):
        refused(door.post(b.report("n1", ranks=[window(collective=nonsense)])), 400, "cannot be read")


def test_a_fact_is_in_the_database_when_it_is_acknowledged_and_wakes_the_loop(door: Door) -> None:
    response = door.post(b.report("n1", facts=[b.xid_event("n1", 79).event]))
    assert response.json() == {"facts": 1}
    assert door.events_stored == 1
    assert door.woken


def test_a_repeated_fact_is_acknowledged_again_and_counts_once(door: Door) -> None:
    for _ in range(2):
        assert door.post(b.report("n1", facts=[b.xid_event("n1", 79).event])).status_code == 200
    assert door.events_stored == 1


def test_a_report_of_an_unknown_node_is_refused_by_name_and_leaves_nothing(door: Door) -> None:
    refused(door.post(b.report("n99", facts=[b.xid_event("n99", 79).event])), 404, "n99", "NodeName")
    assert door.events_stored == 0
    assert "n99" not in door.telemetry.heard()


def test_without_the_token_nobody_is_heard(door: Door) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}):
        refused(door.post(b.report("n1"), headers), 401, "token")
    assert door.telemetry.heard() == {}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'{"version": 1}', b'{"version": "one"}', b"null"])
def test_a_malformed_report_is_refused_with_the_reason(door: Door, body: bytes) -> None:
    refused(door.post(body), 400, "cannot be read")


@pytest.mark.parametrize("release", ["", "0.3.0"])
def test_what_only_a_newer_release_sends_is_ignored_and_counted_and_the_rest_is_taken(door: Door, release: str) -> None:
    gpus = [b.gpu(0), {"index": 1, "status": "on_fire", "flames": 3}]
    facts = [b.xid_event("n1", 79).event, {"type": "fan_stopped", "fan": 2}, {"type": "fan_stopped", "fan": 3}]
    facts += [{"type": "hardware", "boot_id": b.BOOT, "at": b.NOW, "kind": "nvml_smoke", "part": "0000:1b:00.0"}]
    report = msgspec.to_builtins(b.report("n1", release=release)) | {"gpus": gpus, "facts": facts, "weather": "hot"}
    for _ in range(2):
        answer = door.post(msgspec.json.encode(report))
        assert answer.status_code == 200
        assert answer.json()["facts"] == 1
        assert sum("does not know: fan_stopped" in text for text in answer.json()["dropped"]) == 2
        assert sum("HardwareEvent.kind" in text for text in answer.json()["dropped"]) == 1
    assert door.events_stored == 1
    assert [gpu.status for gpu in door.telemetry.heard()["n1"].report.gpus] == [GpuStatus.OK, GpuStatus.UNKNOWN]
    assert door.telemetry.unknown.totals() == {"field": 4, "value": 4, "kind": 4}


def test_an_invalid_fact_beside_one_of_an_unknown_kind_is_refused(door: Door) -> None:
    facts = [{"type": "fan_stopped"}, {"type": "kernel", "boot_id": b.BOOT, "sequence": -1, "at": b.NOW, "text": ""}]
    report = msgspec.to_builtins(b.report("n1")) | {"facts": facts}
    refused(door.post(msgspec.json.encode(report)), 400, "cannot be read")


def test_an_unknown_wire_version_is_named_whatever_else_is_in_the_report(door: Door) -> None:
    refused(door.post(b'{"version": 7, "something": "new"}'), 400, "wire version 7", "speaks 1")


def test_an_oversized_report_is_refused(door: Door) -> None:
    refused(door.post(b'{"version": 1, "node": "' + b"x" * REPORT_BYTES_MAX + b'"}'), 413, str(REPORT_BYTES_MAX))


def test_an_oversized_report_without_a_length_is_refused_before_it_is_read(door: Door) -> None:
    pulled = 0

    def endless() -> Iterator[bytes]:
        nonlocal pulled
        for _ in range(100):
            pulled += 1
            yield b"x" * 65_536

    response = door.client.post("/v1/reports", content=endless(), headers=HEADERS)
    assert response.status_code == 413


def test_a_report_for_another_cluster_is_refused(door: Door) -> None:
    refused(door.post(b.report("n1", cluster="elsewhere")), 400, "elsewhere", "ClusterName")


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
    door: Door, changes: dict[str, Any]
) -> None:
    response = door.post(b.report("n1", ranks=[window(**changes)], facts=[b.xid_event("n1", 79).event]))
    assert response.status_code == 200
    assert len(response.json()["dropped"]) == 1
    assert "n1" in door.telemetry.heard()
    assert door.events_stored == 1
    assert door.telemetry.progress() == {}


@pytest.mark.parametrize("changes", [{"rank": -1}, {"world_size": 0}, {"first_step": -1}, {"first_step": 2**60}])
def test_a_number_out_of_all_bounds_is_refused_by_name(door: Door, changes: dict[str, int]) -> None:
    refused(door.post(b.report("n1", ranks=[window(**changes)])), 400, next(iter(changes)))


def test_a_window_that_contradicts_its_gang_is_dropped(door: Door) -> None:
    door.post(b.report("n1", ranks=[window()]))
    response = door.post(b.report("n2", ranks=[window(rank=1, world_size=8)]))
    assert "the gang has 4 ranks" in response.json()["dropped"][0]


def test_a_fact_of_another_users_process_is_dropped_and_said_so(door: Door) -> None:
    shard = CheckpointShard(7, 0, 0, 1, 2**40, "/evil", "x", 1, "0" * 64, b.NOW, user_id=1234)
    response = door.post(b.report("n1", facts=[shard]))
    assert response.json()["dropped"] == ["user 1234 speaks for job 7 of user 1000"]


def test_too_many_facts_are_refused_as_a_whole(door: Door) -> None:
    facts = [b.xid_event("n1", 79, sequence=i).event for i in range(257)]
    refused(door.post(b.report("n1", facts=facts)), 422, "257 facts")
    assert door.events_stored == 0


def test_a_shard_of_a_rank_outside_its_world_is_refused(door: Door) -> None:
    shard = CheckpointShard(7, 0, 4, 4, 20, "/c", "rank-4", 1, "0" * 64, b.NOW)
    refused(door.post(b.report("n1", facts=[shard])), 422, "rank 4")


def test_a_fact_that_cannot_be_stored_is_not_acknowledged(door: Door) -> None:
    with door.engine.begin() as connection:
        connection.execute(text("ALTER TABLE kernel_event RENAME TO elsewhere"))
    refused(door.post(b.report("n1", facts=[b.xid_event("n1", 79).event])), 503, "repeat")
    with door.engine.begin() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO kernel_event"))
    assert door.post(b.report("n1", facts=[b.xid_event("n1", 79).event])).status_code == 200
    assert door.events_stored == 1


def test_an_unfit_node_is_told_with_every_acknowledgement_and_the_others_are_not(door: Door) -> None:
    door.unfit["n2"] = "quarantined by row 10"
    event = b.xid_event("n2", 79).event
    assert door.post(b.report("n1")).json() == {"facts": 0}
    assert door.post(b.report("n2")).json() == {"facts": 0, "unfit": "quarantined by row 10"}
    assert door.post(b.report("n2", facts=[event])).json() == {"facts": 1, "unfit": "quarantined by row 10"}


def test_a_refusal_counts_once_however_often_it_arrives(door: Door) -> None:
    refusal = JobRefused(7, b.NOW - 1, "unfit", 0)
    for _ in range(3):
        assert door.post(b.report("n1", facts=[refusal])).json() == {"facts": 1}
    assert door.post(b.report("n2", facts=[refusal])).json() == {"facts": 1}
    stored = FactStore(door.engine).refusals_since(0.0)
    assert [(one.node, one.job_id, one.restart_count, one.at, one.reason) for one in stored] == [
        ("n2", 7, 0, b.NOW - 1, "unfit"),
        ("n1", 7, 0, b.NOW - 1, "unfit"),
    ]
    assert door.woken


class TestRestorePoint:
    def ask(self, door: Door, job_id: int, headers: dict[str, str] = HEADERS, **changes: object) -> httpx.Response:
        values = {"job_id": job_id, "restart_count": 0, "user_id": 1000} | changes
        query = {name: str(value) for name, value in values.items()}
        return door.client.get("/v1/restore-point", params=query, headers=headers)

    def test_ranks_are_told_where_to_go_on(self, door: Door) -> None:
        told = self.ask(door, 7)
        assert told.json() == {"job_id": 7, "restart_count": 0, "step": 20, "path": "/c/20/1/0"}

    def test_a_job_that_slurm_has_not_named_is_asked_for_again(self, door: Door) -> None:
        refused(self.ask(door, 8), 404, "job 8")
        assert door.woken

    def test_an_attempt_that_slurm_has_not_begun_is_not_settled_beforehand(self, door: Door) -> None:
        refused(self.ask(door, 7, restart_count=1), 404, "attempt 1 of job 7")

    def test_only_the_jobs_owner_and_root_are_told(self, door: Door) -> None:
        refused(self.ask(door, 7, user_id=1001), 403, "user 1001", "user 1000")
        assert self.ask(door, 7, user_id=0).status_code == 200

    def test_a_job_that_did_not_ask_for_us_gets_a_plain_no_where_it_does_not_ask_itself(self, door: Door) -> None:
        (known,) = FleetStore(door.engine).see_jobs([b.job(managed=False, job_id=9)], b.NOW)
        door.directory.put(known)
        no = {"job_id": 9, "restart_count": 0, "step": 0, "path": "", "managed": False}
        assert self.ask(door, 9, if_managed="true").json() == no
        assert self.ask(door, 9).json()["step"] == 20
        assert self.ask(door, 7, if_managed="true").json()["step"] == 20

    def test_only_agents_are_told(self, door: Door) -> None:
        refused(self.ask(door, 7, {}), 401)
