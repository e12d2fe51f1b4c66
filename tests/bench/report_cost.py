"""What the token of a report costs: `authenticated_report_cost_ratio`, reports a second with tokens over without.

Whole requests with full reports of many nodes, in this process and without a network, and of each the part that admits
it. With a network between them the ratio is nearer to 1.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import Request

from tests import builders as b
from tests.bench.report_load import full_report, node_name
from tests.bench.result import Result, Size, result
from tests.tokens import bearer
from understudy_controlplane.app import ControlPlane
from understudy_controlplane.fleet.identity import Permission, Role
from understudy_wire.messages import Report

NODES = 200
ROUNDS = 5
REQUESTS_A_ROUND = 2000


def measure_report_cost(plane: ControlPlane, size: Size) -> Result:
    """Its tokens are those of `tests.tokens` for the first nodes of `tests.bench.report_load`."""
    plane.telemetry.know([node_name(index) for index in range(NODES)])
    bodies = [_body(index) for index in range(NODES)]
    scopes = [scope(node_name(index)) for index in range(NODES)]

    async def request(number: int) -> None:
        await post(plane.app, scopes[number % NODES], bodies[number % NODES])

    async def admit(number: int) -> None:
        await plane.admission.admit(Request(scopes[number % NODES]), Permission.REPORT)

    async def rounds() -> list[float]:
        await _seconds(request, NODES)
        rounds, count = size.of(ROUNDS, 1), size.of(REQUESTS_A_ROUND, NODES)
        return [1 - await _seconds(admit, count) / await _seconds(request, count) for _ in range(rounds)]

    return result("authenticated_report_cost_ratio", "1", asyncio.run(rounds()), {}, more_is_better=True)


def _body(index: int) -> bytes:
    report = msgspec.json.decode(full_report(index), type=Report)
    return msgspec.json.encode(msgspec.structs.replace(report, cluster=b.CLUSTER))


def scope(node: str) -> dict[str, Any]:
    token = bearer(Role.NODE, node)["Authorization"].encode()
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/reports",
        "query_string": b"",
        "headers": [(b"authorization", token), (b"content-type", b"application/json")],
        "client": ("10.0.0.1", 40000),
    }


async def post(app: Any, scope: dict[str, Any], body: bytes) -> None:
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(dict(scope), receive, send)
    assert statuses == [200], statuses


async def _seconds(do: Callable[[int], Awaitable[None]], count: int) -> float:
    begun = time.perf_counter()
    for number in range(count):
        await do(number)
    return time.perf_counter() - begun
