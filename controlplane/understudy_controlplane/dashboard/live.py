"""Pages that keep themselves up to date: server-sent events with the parts of a page that have changed.

All viewers of one page share one reading of it, after each round of the loop. Without viewers nothing is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
import structlog
from fastapi import Response

from understudy_controlplane.access.admission import Denied
from understudy_controlplane.api.streams import Places, wait
from understudy_controlplane.config import Limits
from understudy_controlplane.dashboard.page import Page
from understudy_controlplane.live.pulse import Pulse

log = structlog.get_logger()

LOOK_SECONDS = 0.1
"""How often it is checked whether the loop has finished a round."""

REFRESH_SECONDS = 0.5
"""Least time between two readings of a page."""

BEAT_SECONDS = 4.0

Read = Callable[[], Awaitable[Page | Response]]


@dataclass(slots=True)
class View:
    """a page with viewers. `changed_at`: part → the time of the snapshot with which it changed."""

    layout: str = ""
    begun_at: float = 0.0
    parts: dict[str, str] = field(default_factory=dict)
    changed_at: dict[str, float] = field(default_factory=dict)
    shown_at: float = 0.0
    error: str = ""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    viewers: int = 0
    task: asyncio.Task[None] | None = None

    def take(self, page: Page) -> None:
        if not self.begun_at:
            self.begun_at = page.at
        if page.layout != self.layout:
            self.changed_at.clear()
        for name, html in page.parts.items():
            if self.parts.get(name) != html or name not in self.changed_at:
                self.changed_at[name] = page.at
        self.layout, self.shown_at, self.error = page.layout, page.at, ""
        self.parts = {name: str(html) for name, html in page.parts.items()}

    def notify(self) -> None:
        news, self.news = self.news, asyncio.Event()
        news.set()

    def since(self, seen: float) -> dict[str, str]:
        """What a page that was read from the snapshot of that time lacks."""
        everything = seen < self.begun_at
        return {name: html for name, html in self.parts.items() if everything or self.changed_at[name] > seen}


class LiveViews:
    """Belongs to one event loop."""

    def __init__(self, pulse: Pulse, limits: Limits) -> None:
        self._pulse = pulse
        self.places = Places(limits)
        self._views: dict[str, View] = {}
        self._stops = False

    def stop(self) -> None:
        """All streams end: the control plane stops."""
        self._stops = True
        for view in self._views.values():
            view.notify()

    @property
    def viewers(self) -> int:
        return self.places.taken

    async def stream(
        self, key: str, read: Read, shown: tuple[float, str], admit: Callable[[], Awaitable[object]]
    ) -> AsyncIterator[str]:
        """`shown`: time of the snapshot and layout of the page as the viewer has it. `admit` raises Denied when they
        may read no longer: it is asked before each event.
        """
        seen, layout = shown
        view = self._enter_view(key, read)
        first = True
        try:
            yield "event: hello\ndata: {}\n\n"
            while not self._stops:
                news = view.news
                if view.layout and view.layout != layout:
                    yield "event: reload\ndata: {}\n\n"
                    return
                await admit()
                if view.parts and (view.shown_at > seen or first):
                    parts = view.since(seen)
                    seen, first = view.shown_at, False
                    yield _event("parts", {"at": seen, "parts": parts})
                else:
                    yield _event("beat", {"at": view.shown_at, "error": view.error})
                await wait(news, BEAT_SECONDS)
        except Denied:
            return
        finally:
            self._leave_view(key)

    def _enter_view(self, key: str, read: Read) -> View:
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = View()
            view.task = asyncio.create_task(self._keep(view, read))
        view.viewers += 1
        return view

    def _leave_view(self, key: str) -> None:
        view = self._views[key]
        view.viewers -= 1
        if not view.viewers:
            del self._views[key]
            if view.task is not None:
                view.task.cancel()

    async def _keep(self, view: View, read: Read) -> None:
        """Reads the page after each round of the loop."""
        last: object = None
        while not self._stops:
            if self._pulse.snapshot is last:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            last = self._pulse.snapshot
            begun = time.monotonic()
            try:
                page = await read()
            except Exception as error:  # one that no one expects: viewers see it, and the next round may be better
                log.exception("page_not_made", error=str(error))
                view.error = "The page could not be made: the log of the control plane names the cause."
            else:
                if isinstance(page, Page):
                    view.take(page)
                else:
                    view.error = "The page could not be read: the control plane is busy, or its database is."
            view.notify()
            await asyncio.sleep(max(REFRESH_SECONDS - (time.monotonic() - begun), 0.0))


def _event(kind: str, data: object) -> str:
    return f"event: {kind}\ndata: {msgspec.json.encode(data).decode()}\n\n"
