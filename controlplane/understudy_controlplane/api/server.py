"""The server: what waits for news gets its answer when it stops."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stopping: Callable[[], None] = lambda: None) -> None:
        """`stopping` is called before the server waits for open requests."""
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping()
        await super().shutdown(sockets)
