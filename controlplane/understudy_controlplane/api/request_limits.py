"""Limits of requests before any route sees them: a rate for each token, or address, a size, and no NUL.

A flood without a valid token, or with another one, never uses up what an agent may send, also from the same address.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fastapi import Response
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from understudy_controlplane.access.admission import Sender
from understudy_controlplane.api.readers import reader
from understudy_controlplane.config import Limits
from understudy_controlplane.fleet.durations import HOUR_SECONDS
from understudy_controlplane.ingest.answers import refuse
from understudy_controlplane.ingest.rates import Rates
from understudy_controlplane.ingest.refusals import Cause, Refusals
from understudy_controlplane.ingest.reports import REPORTS
from understudy_controlplane.live.meters import ROUTES_OF_NODES
from understudy_wire.messages import REPORT_BYTES_MAX

READING = frozenset({"GET", "HEAD"})

CHANGES_OF_USER_EACH_HOUR = 120
"""Each is an entry of the audit, which no person can delete."""


class RequestLimits:
    """ASGI middleware."""

    def __init__(
        self, app: ASGIApp, limits: Limits, refusals: Refusals, sender_of: Callable[[HTTPConnection], Sender]
    ) -> None:
        """`refusals` takes note of reports. `sender_of` asks no database."""
        self._app = app
        self._refusals = refusals
        self._sender_of = sender_of
        self._reads = Rates(limits.reads_per_second_per_token)
        self._writes = Rates(limits.writes_per_second_per_token)
        self._changes_of_users = Rates(CHANGES_OF_USER_EACH_HOUR / HOUR_SECONDS, HOUR_SECONDS)
        self._without_token = Rates(limits.requests_per_second_per_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = self._sender_of(HTTPConnection(scope))
        reader.set(sender.name)
        refusal = self._refusal(scope, sender)
        await (refusal or self._app)(scope, _bounded(receive), self._counted(scope["path"], send))

    def _counted(self, route: str, send: Send) -> Send:
        if route not in ROUTES_OF_NODES:
            return send

        async def counted(message: Message) -> None:
            if message.get("status", 200) >= 400:
                self._refusals.note_request(route, message["status"])
            await send(message)

        return counted

    def _refusal(self, scope: Scope, sender: Sender) -> Response | None:
        rates, now = self._rates_of(scope, sender), time.monotonic()
        # What a node asks for its users' programs takes nothing of what it may report.
        of_node = sender.has_token and scope["path"] in ROUTES_OF_NODES
        purpose = f"{sender.name} {scope['path']}" if of_node else sender.name
        if not rates.admits(purpose, now):
            error = f"too many requests from {sender.name}"
            if scope["path"] == REPORTS:
                self._refusals.note(Cause.RATE, sender.name, error, now)
            refusal = refuse(429, error, "wait for the time in Retry-After, and send fewer requests")
            refusal.headers["Retry-After"] = str(math.ceil(max(rates.wait_seconds(purpose, now), 1.0)))
            return refusal
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return refuse(400, "the address of the request contains the character NUL", "send it without NUL")
        return None

    def _rates_of(self, scope: Scope, sender: Sender) -> Rates:
        if not sender.has_token:
            return self._without_token
        if scope["method"] in READING:
            return self._reads
        return self._changes_of_users if sender.is_user else self._writes


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
