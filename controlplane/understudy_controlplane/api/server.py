"""The server. It accepts connections itself: uvicorn counts none before its TLS handshake is over, and waits a
minute for that. And what waits for news gets its answer when it stops.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
import time
from collections.abc import Callable

import structlog
import uvicorn

from understudy_controlplane.api.connections import Connections, LimitedHttp, Place

log = structlog.get_logger()

NO_FILES_SECONDS = 1.0
"""Until the next connection is accepted, where the process may open no more files."""


class Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, connections: Connections, stopping: Callable[[], None] = lambda: None
    ) -> None:
        """`stopping` is called before the server waits for open requests."""
        super().__init__(config)
        self.connections = connections
        self._stopping = stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(3)  # as uvicorn's
        listening = sockets or [self.config.bind_socket()]
        listeners = [Listener(one, self.config, self.connections, self._protocol_of) for one in listening]
        self.servers = listeners  # type: ignore[assignment]  # uvicorn uses of asyncio's what a Listener has
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        await super().shutdown(sockets)

    def _protocol_of(self, place: Place) -> LimitedHttp:
        return LimitedHttp(self.connections.limits, place, self.config, self.server_state, self.lifespan.state)


class Listener:
    """Accepts the connections of one socket. Each has its place from the first moment to its end."""

    def __init__(
        self,
        listening: socket.socket,
        config: uvicorn.Config,
        connections: Connections,
        protocol_of: Callable[[Place], LimitedHttp],
    ) -> None:
        listening.setblocking(False)
        listening.listen(config.backlog)
        self.sockets = (listening,)
        self._config = config
        self._connections = connections
        self._protocol_of = protocol_of
        self._beginning: set[asyncio.Task[None]] = set()
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listening))

    def close(self) -> None:
        self._accepting.cancel()
        for one in self._beginning:
            one.cancel()
        self.sockets[0].close()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._accepting, *self._beginning, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except ConnectionError:
                continue  # the client ended it before
            except OSError as error:
                log.warning("connections_not_accepted", error=str(error))
                await asyncio.sleep(NO_FILES_SECONDS)
                continue
            place = self._connections.enter(str(peer[0]), time.monotonic())
            if place is None:
                accepted.close()
                continue
            task = loop.create_task(self._begin(accepted, place))
            self._beginning.add(task)
            task.add_done_callback(self._beginning.discard)

    async def _begin(self, accepted: socket.socket, place: Place) -> None:
        """Returns when the TLS handshake is over."""
        loop, tls = asyncio.get_running_loop(), self._config.ssl
        try:
            accepted.setblocking(False)
            await loop.connect_accepted_socket(
                lambda: self._protocol_of(place),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self._connections.limits.request_seconds_max if tls else None,
            )
        except (OSError, ssl.SSLError):  # the client ended it, or made no handshake
            place.leave()
            accepted.close()
        except asyncio.CancelledError:
            place.leave()
            raise
