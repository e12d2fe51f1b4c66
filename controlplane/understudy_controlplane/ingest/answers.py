"""Answers of the routes: each refusal says what failed and what to do."""

from __future__ import annotations

import msgspec
from fastapi import Request, Response

from understudy_agent.wire import Refusal
from understudy_controlplane.access.admission import Denied

JSON = "application/json"
_encoder = msgspec.json.Encoder()


def answer(value: msgspec.Struct, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status_code=status, media_type=JSON)


def refuse(status: int, error: str, hint: str = "") -> Response:
    return answer(Refusal(error, hint), status)


async def refuse_denied(_request: Request, error: Exception) -> Response:
    """The application's handler of Denied."""
    assert isinstance(error, Denied)
    return refuse(error.status, error.error, error.hint)
