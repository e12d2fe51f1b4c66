"""The door for launchers: who may speak for a gang, and how soon the word is there."""

from __future__ import annotations

import threading
import time
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
from understudy_agent.wire import REPORT_BYTES_MAX, WIRE_VERSION, LaunchEnded, LauncherReport
from understudy_controlplane.fleet.gang import Anew, Gang, Word
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.ingest.authority import Token
from understudy_controlplane.ingest.launchers import launchers_router
from understudy_controlplane.ingest.reports import Doors
from understudy_controlplane.live.directory import JobDirectory
from understudy_controlplane.live.launchers import Launchers
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
    launchers: Launchers
    facts: FactStore
    directory: JobDirectory
    newest: list[tuple[int, str]]
    woken: list[float] = field(default_factory=list)

    def post(self, headers: dict[str, str] = HEADERS, **changes: Any) -> httpx.Response:
        return self.client.post("/v1/launchers", content=msgspec.json.encode(report(**changes)), headers=headers)


class Still:
    def now(self) -> float:
        return b.NOW


def report(**changes: Any) -> LauncherReport:
    values: dict[str, Any] = {
        "version": WIRE_VERSION,
        "cluster": b.CLUSTER,
        "node": "n1",
        "job_id": 7,
        "restart_count": 1,
        "user_id": 1000,
        "launch": 0,
        "phase": "running",
        "seats": ["n1", "n2", "n3"],
        "spares": ["n4"],
        "nodes_min": 3,
    }
    return LauncherReport(**(values | changes))


@pytest.fixture(params=[True])
def door(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Door]:
    """`param`: whether the job asked for us."""
    engine = open_database(f"sqlite:///{tmp_path}/fleet.db")
    telemetry = Telemetry()
    telemetry.expect({7: ExpectedJob(1, 1000, frozenset({"n1", "n2", "n3", "n4"}))})
    known = FleetStore(engine).see_jobs([b.job(managed=request.param, restart_count=1)], b.NOW)[0]
    launchers, woken, facts = Launchers(), [], FactStore(engine)  # type: Launchers, list[float], FactStore
    directory, newest = JobDirectory({7: known}), [(40, "/c/40")]
    doors = Doors(
        b.CLUSTER,
        Token(SECRET),
        telemetry,
        directory,
        facts,
        LaunchStore(engine),
        Still(),
        lambda: woken.append(b.NOW),
        lambda _known, _attempt: (0, ""),
        lambda _node, _now: "",
        lambda _job: newest[-1],
    )
    app = FastAPI()
    app.include_router(launchers_router(doors, launchers))
    with TestClient(app) as client:
        yield Door(client, launchers, facts, directory, newest, woken)
    engine.dispose()


def test_what_a_launcher_says_is_heard_and_wakes_the_loop_when_it_is_news(door: Door) -> None:
    answer = door.post()
    assert (answer.status_code, answer.json()["version"]) == (200, "")
    gang = Gang(Attempt(1, 0), "n1", ("n1", "n2", "n3"), ("n4",), (), 3, "running", b.NOW)
    assert door.launchers.gangs() == {7: gang}
    assert len(door.woken) == 1
    door.post()
    assert len(door.woken) == 1
    door.post(launch=1)
    assert len(door.woken) == 2
    door.post(launch=0)
    assert door.launchers.gangs()[7].attempt == Attempt(1, 1), "what comes late is not listened to"


def test_a_word_that_is_there_is_told_at_once_and_once(door: Door) -> None:
    word = Word({"n2": "Xid 79"}, Anew(0, "it hangs", ("n3",)))
    door.launchers.say({7: word})
    told = door.post(wait_seconds=5.0).json()
    assert (told["bad"], told["version"]) == ({"n2": "Xid 79"}, word.version)
    assert told["anew"] == {"launch": 0, "reason": "it hangs", "without": ["n3"]}
    assert door.post(known=word.version).json()["version"] == ""
    door.launchers.say({7: Word()})
    taken_back = door.post(known=word.version).json()
    assert (taken_back["version"], "bad" in taken_back) == (Word().version, False)


@pytest.mark.parametrize("by", ["say", "tell"])
def test_who_waits_hears_the_word_within_a_moment(door: Door, by: str) -> None:
    word = Word({"n2": "Xid 79"})
    said: list[float] = []

    def speak() -> None:
        said.append(time.monotonic())
        door.launchers.say({7: word}) if by == "say" else door.launchers.tell(7, word)

    timer = threading.Timer(0.3, speak)
    timer.start()
    told = door.post(wait_seconds=10.0).json()
    assert told["bad"] == {"n2": "Xid 79"}
    assert time.monotonic() - said[0] < 0.2


def test_nobody_waits_longer_than_he_said(door: Door) -> None:
    begun = time.monotonic()
    assert door.post(wait_seconds=0.2).json()["version"] == ""
    assert 0.15 < time.monotonic() - begun < 2.0


def test_a_second_poll_for_the_same_job_ends_the_first(door: Door) -> None:
    answers: list[float] = []

    def wait() -> None:
        door.post(wait_seconds=10.0)
        answers.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    door.post(wait_seconds=0.1)
    waiting.join(2.0)
    assert answers


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"version": 99}, 400, "wire version 99"),
        ({"cluster": "another"}, 400, "another"),
        ({"user_id": 1001}, 403, "user 1001 speaks for job 7 of user 1000"),
        ({"node": "n9"}, 403, "does not run on n9"),
        ({"job_id": 8}, 404, "does not show attempt 1 of job 8"),
        ({"restart_count": 2}, 404, "attempt 2"),
        ({"restart_count": 0}, 404, "attempt 0"),
    ],
)
def test_others_are_refused_in_words(door: Door, changes: dict[str, Any], status: int, words: str) -> None:
    answer = door.post(**changes)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert door.launchers.gangs() == {}


def test_nonsense_is_refused(door: Door) -> None:
    for body, status in ((b"{", 400), (b"{}", 400), (b"x" * (REPORT_BYTES_MAX + 1), 413)):
        assert door.client.post("/v1/launchers", content=body, headers=HEADERS).status_code == status
    assert door.post(headers={}).status_code == 401
    assert door.post(seats=[""]).status_code == 400


@pytest.mark.parametrize("door", [False], indirect=True)
def test_a_job_that_did_not_ask_for_us_is_left_alone(door: Door) -> None:
    answer = door.post()
    assert (answer.status_code, answer.json()["hint"]) == (403, "sbatch --comment=understudy")


def test_root_may_speak_for_anybody_and_a_spare_of_others_is_none(door: Door) -> None:
    assert door.post(user_id=0, spares=["n4", "n9"]).status_code == 200
    assert door.launchers.gangs()[7].spares == ("n4",)


def test_what_was_spent_before_a_requeue_is_told(door: Door) -> None:
    ends = [LaunchEnded(7, 0, launch, "L130", "it failed", float(launch), counted=True) for launch in range(2)]
    assert door.facts.record("n1", ends, b.NOW, door.directory.get) == []
    assert door.post().json()["launches_without_progress"] == 2


def test_the_newest_checkpoint_is_told_with_every_answer(door: Door) -> None:
    """For launches that begin while nobody can be asked."""
    answer = door.post().json()
    assert (answer["version"], answer["restore_step"], answer["restore_path"]) == ("", 40, "/c/40")
    threading.Timer(0.2, lambda: door.newest.append((60, "/c/60"))).start()
    assert door.post(wait_seconds=0.6).json()["restore_step"] == 60, "as it is when the answer goes out"
