"""Limits of requests before any route sees them: a rate for each address, and no characters that SQL refuses."""

from __future__ import annotations

import time

from fastapi import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from understudy_controlplane.config import Limits
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.ingest.rates import Rates


class RequestLimits:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._rates = Rates(limits.requests_per_second_per_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self._app if refusal is None else refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        address = scope["client"][0] if scope.get("client") else ""
        if not self._rates.admits(address, time.monotonic()):
            refusal = refuse(429, f"too many requests from {address}", "wait a second and send fewer requests")
            refusal.headers["Retry-After"] = "1"
            return refusal
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return refuse(400, "the address of the request contains the character NUL", "send it without NUL")
        return None
