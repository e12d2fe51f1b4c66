"""Answers of the routes: each refusal says what failed and what to do, by RFC 9457."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus

import msgspec
from fastapi import Request, Response
from starlette.exceptions import HTTPException

from understudy_controlplane.access.admission import Denied
from understudy_controlplane.store.database import MAKE_ROOM, StoreError, is_full
from understudy_wire.messages import Refusal

JSON = "application/json"
PROBLEM = "application/problem+json"
_encoder = msgspec.json.Encoder()


class ErrorCode(StrEnum):
    """Why a request is refused, for programs."""

    MALFORMED = "malformed"  # it cannot be read
    NO_VALID_TOKEN = "no_valid_token"  # noqa: S105 - no secret
    NOT_PERMITTED = "not_permitted"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    CONFLICT = "conflict"
    NODE_STATE = "node_state"  # the node's state does not allow it
    RECOVERY_STATUS = "recovery_status"  # the recovery's status does not allow it
    TOO_LARGE = "too_large"
    INVALID = "invalid"  # it can be read, and makes no sense
    TOO_MANY_REQUESTS = "too_many_requests"
    INTERNAL = "internal"  # an error of the control plane; its log has the cause
    UNAVAILABLE = "unavailable"  # repeat the request


CODES = {
    400: ErrorCode.MALFORMED,
    401: ErrorCode.NO_VALID_TOKEN,
    403: ErrorCode.NOT_PERMITTED,
    404: ErrorCode.NOT_FOUND,
    405: ErrorCode.METHOD_NOT_ALLOWED,
    409: ErrorCode.CONFLICT,
    413: ErrorCode.TOO_LARGE,
    422: ErrorCode.INVALID,
    429: ErrorCode.TOO_MANY_REQUESTS,
    500: ErrorCode.INTERNAL,
    503: ErrorCode.UNAVAILABLE,
}

REPEATED = frozenset({429, 503})
"""The client may repeat such a request after a second."""


def answer(value: msgspec.Struct, status: int = 200) -> Response:
    return Response(_encoder.encode(value), status_code=status, media_type=JSON)


def refuse(status: int, detail: str, hint: str = "", code: ErrorCode | None = None) -> Response:
    refusal = Refusal(
        HTTPStatus(status).phrase, status, (code or CODES.get(status, ErrorCode.MALFORMED)).value, detail, hint
    )
    headers = {"Retry-After": "1"} if status in REPEATED else None
    return Response(_encoder.encode(refusal), status_code=status, headers=headers, media_type=PROBLEM)


async def refuse_denied(_request: Request, error: Exception) -> Response:
    """The application's handler of Denied."""
    assert isinstance(error, Denied)
    return refuse(error.status, error.error, error.hint)


def refuse_http_error(error: HTTPException) -> Response:
    """The framework's own refusal, in the form of all others."""
    refusal = refuse(error.status_code, str(error.detail), "`understudy help api` lists routes and parameters")
    refusal.headers.update(error.headers or {})
    return refusal


def refuse_for_error(error: Exception) -> Response:
    """The server logs the error, with its traceback."""
    if isinstance(error, StoreError) and is_full(error):
        return refuse(503, "the disk of the database is full, and nothing of the request is stored", MAKE_ROOM)
    return refuse(500, "the control plane failed to carry out the request", "its log names the cause")
