"""The stream of events: complete, in order, resumable, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from tests.tokens import add_tokens, bearer
from tests.waiting import PATIENCE_SECONDS
from understudy_controlplane.access.admission import Denied
from understudy_controlplane.api import events as events_module
from understudy_controlplane.api.events import EventFeed, EventsQuery
from understudy_controlplane.app import ControlPlane
from understudy_controlplane.fleet.event import Cursor, EventKind, Happened, Position
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.fleet.operator import FLEET, Verb
from understudy_controlplane.store.events import SETTLED_SECONDS, EventStore

pytestmark = pytest.mark.integration

START = Cursor.of({})


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    """A node of a gang fails, the gang moves, an operator pauses and resumes."""
    rehearsal = Rehearsal(tmp_path_factory.mktemp("events"), limits={"event_streams_per_token_max": 2})
    plane = rehearsal.control_plane
    add_tokens(plane.engine)
    rehearsal.run(1)
    rehearsal.fail("n3")
    rehearsal.run_until(lambda: rehearsal.gang_state() == ("RUNNING", 1))
    rehearsal.run_until(rehearsal.ended)
    operator = TestClient(plane.app, headers=bearer(Role.OPERATOR))
    operator.post("/v1/pause", json={"reason": "fire"})
    operator.post("/v1/resume", json={"reason": "the fire is out"})
    rehearsal.run(5)
    yield rehearsal
    plane.close()


@pytest.fixture
def store(rehearsal: Rehearsal) -> EventStore:
    return EventStore(rehearsal.control_plane.reads.engine)


def read(store: EventStore, now: float, cursor: Cursor = START, page: int = 500) -> list[Happened]:
    found: list[Happened] = []
    while more := store.after(cursor, page, now):
        found += more
        for one in more:
            cursor = Cursor.parse(str(cursor.after(one)))
    return found


def test_the_stream_is_all_that_happened_each_once_in_order(rehearsal: Rehearsal, store: EventStore) -> None:
    now = rehearsal.clock.now()
    whole = read(store, now)
    assert [one.event.at for one in whole] == sorted(one.event.at for one in whole)
    client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))
    numbers = {kind: sorted(one.event.number for one in whole if one.event.kind is kind) for kind in EventKind}
    lists = {"decisions": EventKind.DECISION, "incidents": EventKind.INCIDENT_OPENED, "requests": EventKind.REQUEST}
    for path, kind in (lists | {"recoveries": EventKind.RECOVERY_BEGUN}).items():
        items = client.get(f"/v1/{path}?limit=1000").json()["items"]
        assert numbers[kind] == sorted(one["id"] for one in items), path
    recoveries = client.get("/v1/recoveries?limit=1000").json()["items"]
    steps = [one["id"] for one in recoveries for step in one["steps"] if step["status"] == "done"]
    assert numbers[EventKind.RECOVERY_STEP] == sorted(steps)
    assert numbers[EventKind.RECOVERY_ENDED] == sorted(one["id"] for one in recoveries if one["ended_at"])
    assert read(store, now, page=3) == whole, "in pages as well"


def test_a_stream_goes_on_behind_any_of_its_events(rehearsal: Rehearsal, store: EventStore) -> None:
    now = rehearsal.clock.now()
    whole, cursor = read(store, now), START
    for place, one in enumerate(whole):
        cursor = cursor.after(one)
        assert store.after(Cursor.parse(str(cursor)), 500, now) == whole[place + 1 :]
    assert store.after(store.newest(now), 500, now) == []


def test_a_recovery_of_a_job_names_its_nodes_and_its_job(rehearsal: Rehearsal, store: EventStore) -> None:
    whole = [one.event for one in read(store, rehearsal.clock.now())]
    begun = next(one for one in whole if one.kind is EventKind.RECOVERY_BEGUN and one.text == "pool")
    assert (begun.nodes, begun.job, begun.subject) == (("n3",), 1, f"recovery {begun.number}")
    decision = next(one for one in whole if one.kind is EventKind.DECISION and one.text.startswith("quarantine: "))
    assert (decision.subject, decision.nodes, decision.job) == ("n3", ("n3",), 1)
    pause = next(one for one in whole if one.kind is EventKind.REQUEST and one.text.startswith("pause"))
    assert (pause.subject, pause.text, pause.job) == ("fleet", "pause by operator: fire", None)
    of_job = EventsQuery(job=1, kinds=[EventKind.RECOVERY_STEP])
    assert {one.kind for one in whole if of_job.admits(one)} == {EventKind.RECOVERY_STEP}
    assert not any(EventsQuery(node="n7").admits(one) for one in (begun, decision, pause))


def test_rows_that_several_threads_write_wait_until_earlier_ones_must_be_there(
    rehearsal: Rehearsal, store: EventStore
) -> None:
    whole = read(store, rehearsal.clock.now())
    resumed = [one for one in whole if one.event.kind is EventKind.REQUEST][-1].event.at
    kinds = [one.event.text for one in read(store, resumed + SETTLED_SECONDS - 0.01) if one.event.kind == "request"]
    assert not any("resume" in text for text in kinds)


def test_a_stream_that_begins_while_a_row_waits_shows_it_later(rehearsal: Rehearsal, store: EventStore) -> None:
    """It was lost: the stream began behind it."""
    whole = read(store, rehearsal.clock.now())
    settles = [one for one in whole if one.event.kind is EventKind.REQUEST][-1].event.at + SETTLED_SECONDS
    began = store.newest(settles - 0.01)
    assert any("resume" in one.event.text for one in store.after(began, 500, settles + 0.01))


def test_a_clock_that_is_set_back_ends_no_stream(rehearsal: Rehearsal, store: EventStore) -> None:
    now = rehearsal.clock.now()
    ahead = Position(now + 3600.0, 5)
    cursor = Cursor.of({EventKind.RECOVERY_STEP: ahead, EventKind.RECOVERY_ENDED: ahead})
    assert EventKind.RECOVERY_ENDED not in {one.event.kind for one in store.after(cursor, 500, now)}
    later = store.after(cursor, 500, now + 7200.0)
    assert {one.event.kind for one in later} >= {EventKind.DECISION}


@pytest.mark.parametrize("text", ["", "1", "1_2_3_4_5_6", "a_b_c_d_e_f_g", "1_2_3_4_5_6_-7", "1_2_3_4_5_6_1e400~1"])
def test_what_is_no_id_is_refused(text: str, rehearsal: Rehearsal) -> None:
    with pytest.raises(ValueError, match="no id"):
        Cursor.parse(text)
    if text:
        client = TestClient(rehearsal.control_plane.app, headers=bearer(Role.VIEWER))
        refusal = client.get("/v1/events", headers={"Last-Event-ID": text})
        assert (refusal.status_code, refusal.json()["code"]) == (422, "invalid")


class Reader:
    """One client of `GET /v1/events`, by ASGI."""

    def __init__(self, plane: ControlPlane, last: str = "", role: Role = Role.VIEWER, query: str = "") -> None:
        headers = bearer(role) | ({"Last-Event-ID": last} if last else {})
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "GET",
            "path": "/v1/events",
            "raw_path": b"/v1/events",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 5),
            "server": ("test", 80),
            "scheme": "http",
            "root_path": "",
        }
        self.status = 0
        self.got: asyncio.Queue[str] = asyncio.Queue()
        self._gone = asyncio.Event()
        self.task = asyncio.create_task(plane.app(self.scope, self._receive, self._send))

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        for block in message.get("body", b"").decode().split("\n\n"):
            if block:
                self.got.put_nowait(block)

    async def next(self) -> dict[str, str]:
        block = await asyncio.wait_for(self.got.get(), PATIENCE_SECONDS)
        return dict(line.split(": ", 1) for line in block.splitlines())

    async def events(self, count: int) -> AsyncIterator[dict[str, str]]:
        while count:
            block = await self.next()
            if "data" in block:
                count -= 1
                yield block

    async def leave(self) -> None:
        self._gone.set()
        await asyncio.wait_for(self.task, PATIENCE_SECONDS)


def add_request(plane: ControlPlane, now: float, reason: str) -> None:
    plane.stores.requests.ask(Verb.RESUME, FLEET, reason, "alice", now)


def test_streams_get_what_is_new_and_resume_where_they_ended(
    rehearsal: Rehearsal, store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "POLL_SECONDS", 0.005)
    plane, clock = rehearsal.control_plane, rehearsal.clock
    whole = read(store, clock.now())

    async def play() -> None:
        fresh, resumed = Reader(plane), Reader(plane, str(START), query="kinds=decision&kinds=request")
        first = await fresh.next()
        assert (first["retry"], "data" in first) == ("1000", False)
        wanted = [one for one in whole if one.event.kind in (EventKind.DECISION, EventKind.REQUEST)]
        got = [block async for block in resumed.events(len(wanted))]
        assert [one["event"] for one in got] == [one.event.kind.value for one in wanted]
        assert [msgspec.json.decode(one["data"])["text"] for one in got] == [one.event.text for one in wanted]
        add_request(plane, clock.now() - SETTLED_SECONDS, "one")
        for reader in (fresh, resumed):
            new = [block async for block in reader.events(1)]
            assert msgspec.json.decode(new[0]["data"])["text"] == "resume by alice: one"
        third = Reader(plane)
        await asyncio.wait_for(third.task, PATIENCE_SECONDS)
        assert third.status == 429, "two streams of one token"
        await fresh.leave()
        add_request(plane, clock.now() - SETTLED_SECONDS, "two")
        again = Reader(plane, new[0]["id"])
        after = [block async for block in again.events(1)]
        assert "two" in after[0]["data"], "neither the first again, nor a gap"
        await again.leave()
        await resumed.leave()

    asyncio.run(play())


def test_a_client_without_events_gets_the_newest_id_until_its_token_ends(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "HEARTBEAT_SECONDS", 0.01)
    plane = rehearsal.control_plane
    refusing = asyncio.Event()

    async def play() -> None:
        feed: EventFeed = plane.events
        assert feed.enter("a test") is None
        stream = feed.stream(await feed.begin(None), lambda _event: True, admit)
        first = await anext(stream)
        beat = await anext(stream)
        assert beat.startswith(": ")
        assert beat.splitlines()[1] == first.splitlines()[1], "the id again"
        refusing.set()
        assert [block async for block in stream] == []
        feed.leave("a test")

    async def admit() -> None:
        if refusing.is_set():
            raise Denied(401, "revoked", "")

    asyncio.run(play())


def test_a_token_that_is_revoked_gets_no_event_that_happens_afterwards(rehearsal: Rehearsal) -> None:
    """Its next heartbeat may be many seconds away."""
    plane = rehearsal.control_plane
    revoked = asyncio.Event()

    async def play() -> list[str]:
        feed: EventFeed = plane.events
        assert feed.enter("a test") is None
        stream = feed.stream(await feed.begin(None), lambda _event: True, admit)
        await anext(stream)
        revoked.set()
        await asyncio.to_thread(rehearsal.fail, "n2")
        await asyncio.to_thread(rehearsal.run, 5)
        found = [block async for block in stream]
        feed.leave("a test")
        return found

    async def admit() -> None:
        if revoked.is_set():
            raise Denied(401, "revoked", "")

    assert asyncio.run(asyncio.wait_for(play(), 30)) == []


def test_streams_end_when_the_control_plane_stops_and_a_new_one_does_at_once(tmp_path: Any) -> None:
    rehearsal = Rehearsal(tmp_path)
    plane = rehearsal.control_plane
    add_tokens(plane.engine)

    async def play() -> None:
        reader = Reader(plane)
        await reader.next()
        plane.end_waits()
        await asyncio.wait_for(reader.task, PATIENCE_SECONDS)
        late = Reader(plane)
        await asyncio.wait_for(late.task, PATIENCE_SECONDS)
        assert (reader.status, late.status) == (200, 200)

    asyncio.run(play())
    plane.close()


def test_a_reader_needs_a_token_that_may_read(rehearsal: Rehearsal) -> None:
    client = TestClient(rehearsal.control_plane.app)
    assert client.get("/v1/events").status_code == 401
    assert client.get("/v1/events", headers=bearer(Role.METRICS)).status_code == 403
    refusal = client.get("/v1/events?kinds=weather", headers=bearer(Role.VIEWER))
    assert refusal.status_code == 422
    assert b.CLUSTER not in refusal.text
