"""Commands that show records: a table, one record, or JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import click

from understudy_controlplane.cli.output import print_fields, print_json, print_table

if TYPE_CHECKING:
    from understudy_client import Client

T = TypeVar("T")
Chosen = str | float | bool | None
"""A filter of a list; None: not set."""


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    path: str
    kind: type[T]
    columns: dict[str, Callable[[T], object]]


limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Records to show, newest first."
)
number_argument = click.argument("number", type=click.IntRange(min=1))


def print_items(
    client: Client, listing: Listing[T], as_json: bool, limit: int | None, chosen: Mapping[str, Chosen]
) -> None:
    """`chosen` are parameters of the route. Without `limit` all records."""
    if as_json:
        print_json(client.items(listing.path, dict, limit, **chosen))
        return
    print_table(listing.columns, rows_of(client, listing, limit, chosen))


def rows_of(client: Client, listing: Listing[T], limit: int | None, chosen: Mapping[str, Chosen]) -> list[list[object]]:
    records = client.items(listing.path, listing.kind, limit, **chosen)
    return [[show(one) for show in listing.columns.values()] for one in records]


def print_item(client: Client, path: str, as_json: bool) -> None:
    record = client.get(path, dict)
    if as_json:
        print_json(record)
    else:
        print_fields(record)
