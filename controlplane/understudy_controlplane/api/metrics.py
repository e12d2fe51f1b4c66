"""`/metrics` for Prometheus, from memory: no query, and no wait for the loop or for readers.

Names: prefix `understudy_`, base units, `_total` for counters (`exported/`, `live/meters.py`). The text is made on a
thread of its own, and the same text answers every request of the next moments: however many scrape, the work takes a
tenth of one processor at most.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import generate_latest

from understudy_controlplane.api.dependencies import ReadDependencies
from understudy_controlplane.api.exported import METRIC_GROUPS
from understudy_controlplane.api.exported.source import Source
from understudy_controlplane.api.pages import known_parameters

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

ZIP_LEVEL = 1
"""The fastest: a tenth of the bytes."""

KEPT = 10.0
"""How long a text is kept, in relation to the time that it took to make."""


def metrics_router(deps: ReadDependencies) -> APIRouter:
    page = MetricsPage(deps)
    router = APIRouter(dependencies=[Depends(known_parameters)])

    @router.get("/metrics")
    async def metrics(request: Request) -> Response:
        """Metrics in the text format of Prometheus, compressed where the client reads gzip."""
        zipped = "gzip" in request.headers.get("accept-encoding", "")
        return await deps.scrapes.read(lambda: _response(page, zipped=zipped))

    return router


def _response(page: MetricsPage, *, zipped: bool) -> Response:
    headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if zipped else {})
    return Response(page.zipped() if zipped else page.text(), headers=headers, media_type=CONTENT_TYPE)


class MetricsPage:
    """Used by one thread."""

    def __init__(self, deps: ReadDependencies) -> None:
        self._deps = deps
        self._text = self._zipped = b""
        self._kept_until = 0.0

    def text(self) -> bytes:
        begun = time.monotonic()
        if begun >= self._kept_until:
            self._text, self._zipped = "".join(self._pieces()).encode(), b""
            ended = time.monotonic()
            self._kept_until = ended + KEPT * (ended - begun)
        return self._text

    def zipped(self) -> bytes:
        text = self.text()
        if not self._zipped:
            self._zipped = gzip.compress(text, ZIP_LEVEL)
        return self._zipped

    def _pieces(self) -> Iterator[str]:
        deps = self._deps
        pulse, snapshot = deps.pulse, deps.pulse.snapshot
        yield generate_latest(pulse.meters.registry).decode()
        if snapshot is None:
            return
        source = Source(snapshot, deps.current.config, pulse, deps.telemetry, deps.clock.now())
        for metrics in METRIC_GROUPS.values():
            for metric in metrics:
                yield from metric.text(source)
