"""An empty application on the same server as the control plane's, beside which `tests.bench.report` measures."""

from __future__ import annotations

import sys

import uvicorn
from starlette.types import Receive, Scope, Send


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the request, and answers as to a report in which nothing is new."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    head = [(b"content-type", b"application/json"), (b"content-length", b"11")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b'{"facts":0}'})


if __name__ == "__main__":
    uvicorn.run(bare, port=int(sys.argv[1]), lifespan="off", ws="none", access_log=False, proxy_headers=False)
