"""Answers of the routes: each refusal says what failed and what to do."""

from __future__ import annotations

import msgspec
from fastapi import Response

from understudy_agent.wire import Refusal

JSON = "application/json"
_encoder = msgspec.json.Encoder()


def answer(value: msgspec.Struct, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status_code=status, media_type=JSON)


def refuse(status: int, error: str, hint: str = "") -> Response:
    return answer(Refusal(error, hint), status)
