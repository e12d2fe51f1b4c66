"""Lists come in pages: `{"items": [...], "next": CURSOR}`, where the next page begins; null: this is the last one.

The parameters of a list are one model: what it does not have, and a value that makes no sense, is refused with 422. A
filter that is not there must not look like one that found nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from fastapi import HTTPException, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from understudy_controlplane.ingest.answers import JSON
from understudy_controlplane.store.database import ID_MAX
from understudy_controlplane.store.queries import Record
from understudy_wire.values import EPOCH_SECONDS_MAX

NAME_CHARACTERS_MAX = 255

Cursor = int | str | None
Name = Annotated[str, Field(max_length=NAME_CHARACTERS_MAX)]
Epoch = Annotated[float, Field(ge=0, le=EPOCH_SECONDS_MAX)]
"""Seconds since the Unix epoch."""
Number = Annotated[int, Field(ge=0, le=ID_MAX)]


class ListQuery(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(100, ge=1, le=1000, description="Most records of a page.")


class NumberedQuery(ListQuery):
    """Query of records with an id, newest first."""

    cursor: int | None = Field(None, ge=1, le=ID_MAX, description="`next` of the page before.")

    @property
    def before(self) -> int:
        return ID_MAX if self.cursor is None else self.cursor


class TimedQuery(ListQuery):
    """Query of records without an id of their own, newest first. The cursor is when, and which of that time."""

    cursor: str | None = Field(
        None,
        pattern=r"^\d{1,20}(\.\d{1,12})?(e[+-]?\d{1,2})?_\d{1,18}$",
        description="`next` of the page before.",
    )

    @property
    def before(self) -> tuple[float, int]:
        at, _, number = (self.cursor or f"9e99_{10**18 - 1}").partition("_")
        return float(at), int(number)


class NamedQuery(ListQuery):
    """Query of records in the order of their names."""

    cursor: str | None = Field(None, max_length=NAME_CHARACTERS_MAX, description="`next` of the page before.")


def page(items: Sequence[Any], following: Cursor, **more: object) -> Response:
    """`following`: with which the next page begins; None: this is the last one."""
    return Response(msgspec.json.encode({**more, "items": items, "next": following}), media_type=JSON)


def numbered_page(records: Sequence[Record], limit: int) -> Response:
    return page(records, records[-1]["id"] if len(records) == limit else None)


def timed_page(records: Sequence[Record], at: str, number: str, limit: int) -> Response:
    """Page of records of the column `at`. `number` is not shown."""
    numbers = [record.pop(number) for record in records]
    return page(records, f"{records[-1][at]}_{numbers[-1]}" if len(records) == limit else None)


async def known_parameters(request: Request) -> None:
    """Refuse parameters that the route does not have. A list's own model does it as well."""
    fields = [one.field_info.annotation for one in request.scope["route"].dependant.query_params]
    if any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in fields):
        return
    known = [one.alias for one in request.scope["route"].dependant.query_params]
    unknown = sorted(set(request.query_params) - set(known))
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise HTTPException(422, f"this route has no parameter {', '.join(unknown):.200}: {takes}")
