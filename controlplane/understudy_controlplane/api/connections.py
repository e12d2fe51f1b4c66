"""Limits of connections: how many, how large a request, and how long it may take to arrive and to be answered.

uvicorn closes a connection that is idle after a request, but waits without end for a first request, for the rest of
one, and for a client that does not read its answer.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from understudy_controlplane.config import Limits
from understudy_controlplane.ingest.rates import Rates
from understudy_wire.messages import REPORT_BYTES_MAX

CLOSE_SECONDS = 0.5
HEAD_BYTES_MAX = 65_536
HEADERS_MAX = 128
REQUEST_BYTES_MAX = HEAD_BYTES_MAX + 4 * REPORT_BYTES_MAX
"""Size with what frames the parts of the body. A route refuses a body that is too large before that."""


class Connections:
    """How many are open, and how fast each address opens them. A connection counts from before its TLS handshake."""

    def __init__(self, limits: Limits, refused: Callable[[str], None] = lambda _cause: None) -> None:
        """`refused(cause)` is called for each connection that has no place."""
        self.limits = limits
        self._refused = refused
        self.open = 0
        self.open_of: Counter[str] = Counter()
        self._rates = Rates(limits.connections_per_second_per_address)

    def enter(self, address: str, now: float) -> Place | None:
        """None: the connection must be closed. `now` is monotonic."""
        over = self._limit_reached(address, now)
        if over is not None:
            self._refused(over)
            return None
        self.open += 1
        self.open_of[address] += 1
        return Place(self, address)

    def _limit_reached(self, address: str, now: float) -> str | None:
        if self.open >= self.limits.connections_max:
            return "all"
        if self.open_of[address] >= self.limits.connections_per_address_max:
            return "address"
        return None if self._rates.admits(address, now) else "rate"


class Place:
    """Place of one connection."""

    def __init__(self, connections: Connections, address: str) -> None:
        self._connections: Connections | None = connections
        self._address = address

    def leave(self) -> None:
        if self._connections is None:
            return
        connections, self._connections = self._connections, None
        connections.open -= 1
        connections.open_of[self._address] -= 1
        if not connections.open_of[self._address]:
            del connections.open_of[self._address]


class LimitedHttp(HttpToolsProtocol):
    def __init__(
        self, limits: Limits, place: Place, config: uvicorn.Config, state: ServerState, app_state: dict[str, Any]
    ) -> None:
        super().__init__(config, state, app_state)
        self.limits = limits
        self._place = place

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._late: TimerHandle | None = None
        self._stalled: TimerHandle | None = None
        self._bytes, self._in_head = 0, True
        self._unanswered: list[RequestResponseCycle] = []
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_arrived()
        self._answer_flows()
        self._place.leave()
        for one in self._unanswered:  # uvicorn sets it for the newest alone, and the answer to another one would fail
            one.disconnected = True
            one.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._late is None:
            self._await_request()
        self._bytes += len(data)
        super().data_received(data)
        if self._in_head and self._bytes > HEAD_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._bytes > REQUEST_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def shutdown(self) -> None:
        """Shuts down. A TLS client has to answer that the connection ends; an idle one does not read that."""
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(CLOSE_SECONDS, self.transport.abort)

    def on_message_begin(self) -> None:
        self._in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Also those after a body in parts. The parser ends at an exception, and uvicorn answers 400."""
        if len(self.headers) >= HEADERS_MAX:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()
        self._unanswered = [one for one in (*self._unanswered, self.cycle) if not one.response_complete]

    def on_message_complete(self) -> None:
        self._request_arrived()
        self._bytes = 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        self._stalled = self.loop.call_later(self.limits.response_seconds_max, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._answer_flows()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self.transport.get_write_buffer_size():  # it would wait for the client to read the rest
            self.transport.abort()

    def _await_request(self) -> None:
        seconds = self.limits.request_seconds_max
        self._late = self.loop.call_later(seconds, self._refuse, HTTPStatus.REQUEST_TIMEOUT)

    def _request_arrived(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _answer_flows(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _refuse(self, status: HTTPStatus) -> None:
        """Answers where no answer has begun, and closes the connection."""
        if self.transport.is_closing():
            return
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not begun:
            head = f"HTTP/1.1 {status.value} {status.phrase}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            self.transport.write(head.encode())
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
