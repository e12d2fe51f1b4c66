"""Limits of requests before any route sees them: a rate for each address, a size, and no NUL."""

from __future__ import annotations

import time

from fastapi import Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from understudy_agent.wire import REPORT_BYTES_MAX
from understudy_controlplane.config import Limits
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.ingest.refusals import Cause, Refusals

REPORTS = "/v1/reports"


class RequestLimits:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, limits: Limits, refusals: Refusals) -> None:
        """`refusals` takes note of reports."""
        self._app = app
        self._refusals = refusals
        self._rates = Rates(limits.requests_per_second_per_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, _bounded(receive), send)

    def _refusal(self, scope: Scope) -> Response | None:
        address = scope["client"][0] if scope.get("client") else ""
        now = time.monotonic()
        if not self._rates.admits(address, now):
            error = f"too many requests from {address}"
            if scope["path"] == REPORTS:
                self._refusals.note(Cause.RATE, address, error, now)
            refusal = refuse(429, error, "wait a second and send fewer requests")
            refusal.headers["Retry-After"] = "1"
            return refusal
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return refuse(400, "the address of the request contains the character NUL", "send it without NUL")
        return None


def _bounded(receive: Receive) -> Receive:
    """Its messages until they are more than a route takes. Raises HTTPException, which ends the connection."""
    received = 0

    async def bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > REPORT_BYTES_MAX:
            raise HTTPException(
                413, f"the body of a request has at most {REPORT_BYTES_MAX} bytes", {"Connection": "close"}
            )
        return message

    return bounded
