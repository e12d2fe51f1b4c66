"""What a client can do with a connection: be slow, send without end, not read, and open many of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from tests.waiting import PATIENCE_SECONDS, until
from understudy_controlplane.api.connections import HEAD_BYTES_MAX, REQUEST_BYTES_MAX, Connections
from understudy_controlplane.api.server import Server
from understudy_controlplane.config import Limits

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

QUICK = Limits(request_seconds_max=0.1, response_seconds_max=0.1, connections_per_address_max=4)
LARGE = 16 << 20


def test_connections_over_a_limit_are_counted_by_that_limit() -> None:
    causes: list[str] = []
    few = Limits(connections_max=16, connections_per_address_max=3)
    connections = Connections(few, causes.append)
    for number in (*[0] * 5, *range(1, 16)):
        connections.enter(f"10.0.0.{number}", 0.0)
    assert causes == ["address"] * 2 + ["all"] * 2
    slow = Connections(Limits(connections_per_second_per_address=0.1), causes.append)
    slow.enter("10.0.0.1", 0.0)
    slow.enter("10.0.0.1", 0.0)
    slow.enter("10.0.0.1", 0.0)
    assert causes[4:] == ["rate"]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """`/slow` answers late, `/large` with more than a socket holds, all others when the request has arrived."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    if scope["path"] == "/slow":
        await asyncio.sleep(0.25)
    body = b"x" * (LARGE if scope["path"] == "/large" else 2)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def read_all(reader: asyncio.StreamReader) -> bytes:
    received = b""
    try:
        while part := await reader.read(65_536):
            received += part
    except ConnectionError:
        pass  # the server closed it with data of the client unread
    return received


class Site:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.port = server.servers[0].sockets[0].getsockname()[1]

    async def connect(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def answer_to(self, *parts: bytes) -> bytes:
        """All that the server sends until it ends the connection. The parts come 20 ms apart."""
        reader, writer = await self.connect()
        answer = asyncio.create_task(read_all(reader))
        for part in parts:
            if writer.is_closing() or answer.done():
                break
            writer.write(part)
            await asyncio.sleep(0.02)
        try:
            return await asyncio.wait_for(answer, PATIENCE_SECONDS)
        finally:
            writer.close()

    async def is_well(self) -> bool:
        answer = await self.answer_to(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        return answer.startswith(b"HTTP/1.1 200")


@asynccontextmanager
async def site(limits: Limits) -> AsyncIterator[Site]:
    config = uvicorn.Config(app, port=0, ws="none", lifespan="off", log_config=None, timeout_keep_alive=1)
    config.load()
    server = Server(config, Connections(limits))
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield Site(server)
    finally:
        server.should_exit = True
        await server.shutdown()


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_SECONDS))


CHUNKED = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
SLOW = {
    "first line": [b"GET /", *[b"x"] * 20],
    "headers": [b"GET / HTTP/1.1\r\n", *[b"a: b\r\n"] * 20],
    "body": [b"POST / HTTP/1.1\r\ncontent-length: 100\r\n\r\n", *[b"x"] * 20],
}
ENDLESS = {
    "headers": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000, b"400"),
    "header": (b"GET / HTTP/1.1\r\na: " + b"x" * HEAD_BYTES_MAX * 2, b"431"),
    "path": (b"GET /" + b"x" * HEAD_BYTES_MAX * 2, b"431"),
    "body": (CHUNKED + b"1\r\nx\r\n" * (REQUEST_BYTES_MAX // 6 + 1), b"413"),
    "trailer": (CHUNKED + b"0\r\n" + b"a: b\r\n" * 1000, b"400"),
}


@pytest.mark.parametrize("part", SLOW)
def test_a_slow_request_is_refused_and_others_are_answered_meanwhile(part: str) -> None:
    async def test() -> None:
        async with site(QUICK) as server:
            refusal = asyncio.create_task(server.answer_to(*SLOW[part]))
            assert await server.is_well()
            assert (await refusal).startswith(b"HTTP/1.1 408")

    run(test())


@pytest.mark.parametrize("part", ENDLESS)
def test_an_endless_request_is_ended_and_nothing_of_it_is_kept(part: str) -> None:
    async def test() -> None:
        async with site(Limits()) as server:
            sent, status = ENDLESS[part]
            answer = await server.answer_to(sent)
            assert answer.startswith(b"HTTP/1.1 " + status) or answer == b"", "the client may not get to read it"
            assert not server.server.server_state.connections

    run(test())


def test_idle_connections_are_closed_and_above_the_limit_at_once() -> None:
    async def test() -> None:
        async with site(QUICK) as server:
            idle = [await server.connect() for _ in range(QUICK.connections_per_address_max)]
            assert not await server.is_well(), "one more of this address"
            for reader, writer in idle:
                assert (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).startswith(b"HTTP/1.1 408")
                writer.close()
            assert await server.is_well()
            assert len(server.server.server_state.connections) <= 1

    run(test())


def test_an_address_that_opens_connections_without_end_is_refused_and_counts_are_forgotten() -> None:
    async def test() -> None:
        async with site(Limits(connections_per_second_per_address=0.1)) as server:
            assert [await server.is_well() for _ in range(3)] == [True, True, False]
            connections = server.server.connections
            await until(lambda: (connections.open, dict(connections.open_of)) == (0, {}))

    run(test())


def test_a_client_that_does_not_read_its_answer_is_disconnected() -> None:
    async def test() -> None:
        async with site(QUICK) as server:
            reader, writer = await server.connect()
            reader._transport.pause_reading()  # type: ignore[attr-defined]  # a client that never reads
            writer.write(b"GET /large HTTP/1.1\r\nhost: a\r\n\r\n")
            await until(lambda: server.server.server_state.total_requests == 1)
            await until(lambda: not server.server.server_state.connections)
            writer.transport.abort()

    run(test())


def test_an_answer_that_takes_longer_than_a_request_may_is_not_cut() -> None:
    async def test() -> None:
        async with site(QUICK) as server:
            answer = await server.answer_to(b"GET /slow HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")

    run(test())


def test_a_client_that_goes_with_two_requests_unanswered_costs_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn marks the newer one alone as disconnected. uvloop, unlike asyncio, then fails for the other."""

    async def test() -> None:
        async with site(Limits()) as served:
            _, writer = await served.connect()
            writer.write(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n" * 2)
            await asyncio.sleep(0.1)
            writer.close()
            await asyncio.sleep(0.3)
            assert await served.is_well()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(test(), PATIENCE_SECONDS))
    assert caplog.text == ""
