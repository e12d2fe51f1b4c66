"""`GET /v1/events`: what happens, as it happens (server-sent events), from a place that the client names.

The database is read once for all streams, once a second, and only while there is one. A stream that has fallen behind
what is kept in memory reads on from the database, in pages. A client that reads slowly delays itself only.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import msgspec
import structlog
from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from understudy_controlplane.access.admission import Admission, Denied
from understudy_controlplane.api.pages import Name, Number, known_parameters
from understudy_controlplane.api.readers import Readers, TooManyReads
from understudy_controlplane.api.streams import EVENTS, EventStream, Places, wait, who_reads
from understudy_controlplane.clock import Clock
from understudy_controlplane.config import Limits
from understudy_controlplane.fleet.event import Cursor, Event, EventKind, Happened
from understudy_controlplane.fleet.identity import Identity, Permission
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.store.database import StoreError
from understudy_controlplane.store.events import EventStore

log = structlog.get_logger()

POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
"""Then the client gets the newest id, and its token is checked again."""
RETRY_MILLISECONDS = 1000
PAGE_EVENTS = 500
KEPT_EVENTS = 2000
ID_CHARACTERS_MAX = 500


class EventsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kinds: list[EventKind] = Field([], description="Only these; repeat the parameter for several.")
    node: Name | None = Field(None, description="Only events that concern this node.")
    job: Number | None = Field(None, description="Only events of this job: Slurm's job id.")

    def admits(self, event: Event) -> bool:
        return (
            (not self.kinds or event.kind in self.kinds)
            and (self.node is None or self.node in event.nodes)
            and (self.job is None or self.job == event.job)
        )


class EventFeed:
    """Belongs to one event loop."""

    def __init__(self, store: EventStore, readers: Readers, clock: Clock, limits: Limits) -> None:
        self._store = store
        self._readers = readers
        self._clock = clock
        self._places = Places(limits)
        self._recent: deque[Happened] = deque()
        self._begin: Cursor | None = None  # of what is in memory
        self._end: Cursor | None = None
        self._news = asyncio.Event()
        self._poller: asyncio.Task[None] | None = None
        self._stops = False

    def stop(self) -> None:
        """All streams end: the control plane stops. Clients read on from its successor."""
        self._stops = True
        self._news.set()

    def enter(self, who: str) -> Response | None:
        """A place for one more stream, until `leave`; or a refusal."""
        refusal = self._places.enter(who)
        if refusal is None and self._poller is None:
            self._begin = self._end = None
            self._recent.clear()
            self._news = asyncio.Event()
            self._poller = asyncio.create_task(self._poll())
        return refusal

    def leave(self, who: str) -> None:
        self._places.leave(who)
        if not self._places.taken and self._poller is not None:
            self._poller.cancel()
            self._poller = None

    async def begin(self, asked: Cursor | None) -> Cursor:
        """The place that the client asks for, or now where that is earlier. Raises StoreError, TooManyReads."""
        newest = await self._readers.run(lambda: self._store.newest(self._clock.now()))
        return newest if asked is None else asked.at_most(newest)

    async def stream(
        self, cursor: Cursor, wanted: Callable[[Event], bool], admit: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[str]:
        """`admit` raises Denied when the client may read no longer."""
        yield f"retry: {RETRY_MILLISECONDS}\nid: {cursor}\n\n"
        beat_at = time.monotonic() + HEARTBEAT_SECONDS
        while True:
            news = self._news
            try:
                page, behind = await self._after(cursor)
            except (StoreError, TooManyReads) as error:
                log.warning("events_not_read", error=type(error).__name__)
                return
            try:
                if page:
                    await admit()
            except Denied:
                return
            for one in page:
                cursor = cursor.after(one)
                if wanted(one.event):
                    yield _shown(one.event, cursor)
            cursor = cursor if behind is None else cursor.at_least(behind)
            if self._stops:
                return
            if not page:
                await wait(news, beat_at - time.monotonic())
            if time.monotonic() >= beat_at:
                try:
                    await admit()
                except Denied:
                    return
                yield f": {int(self._clock.now())}\nid: {cursor}\n\n"
                beat_at = time.monotonic() + HEARTBEAT_SECONDS

    async def _after(self, cursor: Cursor) -> tuple[list[Happened], Cursor | None]:
        """The next events, and a place behind which they are where there are no others before it."""
        if self._begin is not None and cursor.reaches(self._begin):
            return [one for one in self._recent if not cursor.has_passed(one)], None
        end = self._end
        page = await self._readers.run(lambda: self._store.after(cursor, PAGE_EVENTS, self._clock.now()))
        return page, end if len(page) < PAGE_EVENTS else None

    async def _poll(self) -> None:
        while not self._stops:
            try:
                more = await self._read_on()
            except (StoreError, TooManyReads) as error:
                log.warning("events_not_read", error=type(error).__name__)
                more = False
            if not more:
                await asyncio.sleep(POLL_SECONDS)

    async def _read_on(self) -> bool:
        """True if there is more."""
        if self._begin is None or self._end is None:
            self._begin = self._end = await self.begin(None)
            self._notify()  # what happened after the streams' own look and before this one
        end, begin = self._end, self._begin
        page = await self._readers.run(lambda: self._store.after(end, PAGE_EVENTS, self._clock.now()))
        for one in page:
            self._recent.append(one)
            end = end.after(one)
        while len(self._recent) > KEPT_EVENTS:
            begin = begin.after(self._recent.popleft())
        self._begin, self._end = begin, end
        if page:
            self._notify()
        return len(page) == PAGE_EVENTS

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


LastEventId = Annotated[
    str | None,
    Header(max_length=ID_CHARACTERS_MAX, description="The newest `id` that the client has; without it: from now on."),
]


def events_router(feed: EventFeed, admission: Admission) -> APIRouter:
    router = APIRouter(prefix="/v1", dependencies=[Depends(known_parameters)])
    reader = Depends(admission.require(Permission.READ))

    @router.get("/events", response_class=_Documented)
    async def events(
        request: Request,
        query: Annotated[EventsQuery, Query()],
        last_event_id: LastEventId = None,
        identity: Identity = reader,
    ) -> Response:
        """What happens, as it happens: decisions, requests, incidents, recoveries and their steps. The stream begins
        behind the event that the header `Last-Event-ID` names, or now.
        """
        try:
            asked = Cursor.parse(last_event_id) if last_event_id else None
        except ValueError as error:
            hint = "send an `id` of this stream, or no header"
            return refuse(422, f"Last-Event-ID cannot be read: {error}", hint)
        return await _open(feed, identity, query, asked, lambda: admission.admit(request, Permission.READ))

    return router


class _Documented(StreamingResponse):
    media_type = EVENTS


async def _open(
    feed: EventFeed,
    identity: Identity,
    query: EventsQuery,
    asked: Cursor | None,
    admit: Callable[[], Awaitable[object]],
) -> Response:
    who = who_reads(identity)
    refusal = feed.enter(who)
    if refusal is not None:
        return refusal
    try:
        cursor = await feed.begin(asked)
    except (StoreError, TooManyReads) as error:
        feed.leave(who)
        return refuse(503, f"events cannot be read: {type(error).__name__}", "repeat the request after a second")
    except BaseException:
        feed.leave(who)
        raise
    return EventStream(feed.stream(cursor, query.admits, admit), lambda: feed.leave(who))


def _shown(event: Event, cursor: Cursor) -> str:
    return f"event: {event.kind.value}\nid: {cursor}\ndata: {msgspec.json.encode(event).decode()}\n\n"
