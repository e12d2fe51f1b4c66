"""Commands that show records: a table, one record, or JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from understudy_controlplane.cli.connection import command
from understudy_controlplane.cli.output import cell, record_lines, show, table_lines, terminal_width
from understudy_controlplane.cli.subjects import FLEET, Parameter, Subject

if TYPE_CHECKING:
    from understudy_client import Client, Record

Column = str | Callable[["Record"], object]
"""A field of the record, or what makes the cell from the record."""


@dataclass(frozen=True, slots=True)
class Listing:
    """`path`: of the route. `columns`: by title."""

    path: str
    columns: Mapping[str, Column]

    def lines(self, records: Iterable[Record]) -> list[str]:
        return table_lines(
            self.columns,
            ([_cell(column, one) for column in self.columns.values()] for one in records),
            terminal_width(),
        )


def _cell(column: Column, record: Record) -> object:
    return cell(column, record[column]) if isinstance(column, str) else column(record)


limit_option = click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Records to show, newest first."
)


def list_command(name: str, words: str, listing: Listing, *parameters: Parameter) -> click.Command:
    """A command for pages of records. `parameters`: those of the route, and the limit; without it all are shown."""

    def show_records(client: Client, /, as_json: bool, limit: int | None = None, **chosen: Any) -> None:
        show(client.items(listing.path, limit, **chosen), as_json, listing.lines)

    return command(name, words, show_records, *parameters)


def show_command(
    name: str,
    words: str,
    path: str,
    subject: Subject = FLEET,
    *parameters: Parameter,
    lines: Callable[[Any], Iterable[str]] = record_lines,
) -> click.Command:
    """A command for one answer. `path` has `{}` for the subject; `parameters` are those of the route."""

    def show_one(client: Client, /, as_json: bool, subject: Any = None, **chosen: Any) -> None:
        (one,) = named(client, subject)
        show(client.get(path.format(one), **chosen), as_json, lines)

    named = subject.named
    return command(name, words, show_one, subject.argument, *parameters)
