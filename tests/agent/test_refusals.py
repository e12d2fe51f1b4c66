"""What an agent logs of a request that was not done."""

from __future__ import annotations

import httpx
import msgspec
import pytest

from understudy_agent.refusals import describe
from understudy_wire.messages import Refusal

PROBLEM = Refusal("Forbidden", 403, "not_permitted", "the token is not n2's", "give each node its own")


@pytest.mark.parametrize(
    ("body", "described"),
    [
        (msgspec.json.encode(PROBLEM), "HTTP 403 the token is not n2's; give each node its own"),
        (msgspec.json.encode(msgspec.structs.replace(PROBLEM, hint="")), "HTTP 403 the token is not n2's"),
        (b"<html>a proxy</html>", "HTTP 403 <html>a proxy</html>"),
        (b"", "HTTP 403"),
        (b"x" * 10_000, f"HTTP 403 {'x' * 500}"),
    ],
)
def test_cause_and_remedy_of_a_refusal_are_one_line(body: bytes, described: str) -> None:
    assert describe(httpx.Response(403, content=body)) == described
