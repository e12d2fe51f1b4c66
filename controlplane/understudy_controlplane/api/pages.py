"""Lists come in pages. The header `Link` (RFC 8288) has the address of the next page, where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated
from urllib.parse import urlencode

import msgspec
from fastapi import HTTPException, Query, Request, Response

from understudy_controlplane.ingest.answers import JSON
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import Record

NODE_NAME_CHARACTERS_MAX = 255

Limit = Annotated[int, Query(ge=1, le=1000, description="Most records to return, newest first.")]
Before = Annotated[int, Query(ge=1, le=ID_MAX, description="Where the page begins: as the page before has it in Link.")]
BeforeTime = Annotated[
    str,
    Query(
        pattern=r"^\d{1,20}(\.\d{1,12})?(e[+-]?\d{1,2})?_\d{1,18}$", description="As the page before has it in Link."
    ),
]
AfterNode = Annotated[
    str, Query(max_length=NODE_NAME_CHARACTERS_MAX, description="Name of the node after which the page begins.")
]
AfterRank = Annotated[int, Query(ge=-1, le=ID_MAX, description="Rank after which the page begins.")]

NEWEST = f"9e99_{10**18 - 1}"


def page(request: Request, content: object, following: Mapping[str, object]) -> Response:
    """`following` is the parameter with which the next page begins; empty: this is the last one."""
    response = Response(msgspec.json.encode(content), media_type=JSON)
    if following:
        limit = request.query_params.get("limit")
        query = urlencode({**({"limit": limit} if limit else {}), **following})
        response.headers["Link"] = f'<?{query}>; rel="next"'
    return response


def after_id(records: Sequence[Record], limit: int) -> dict[str, object]:
    """What follows a page of records with an id."""
    return {"before": records[-1]["id"]} if len(records) == limit else {}


def after_time(records: Sequence[Record], at: str, number: str, limit: int) -> dict[str, object]:
    """What follows a page of records of the column `at`. Takes `number`, which is not shown, out of them."""
    numbers = [record.pop(number) for record in records]
    return {"before": f"{records[-1][at]}_{numbers[-1]}"} if len(records) == limit else {}


def point_in_time(cursor: str) -> tuple[float, int]:
    """Of records without an id of their own: when, and which of that time."""
    at, _, number = cursor.partition("_")
    return float(at), int(number)


async def known_parameters(request: Request) -> None:
    """Refuse what the route does not know: a filter that is not there must not look like one that found nothing."""
    known = [one.alias for one in request.scope["route"].dependant.query_params]
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise HTTPException(422, f"this route has no parameter {', '.join(unknown):.200}: {takes}")
