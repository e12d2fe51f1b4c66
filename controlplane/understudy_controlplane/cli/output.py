"""What commands print, and with which code they exit."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class Exit(IntEnum):
    """`docs/api.md` documents the codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3  # by the state of a node or recovery, or held by a guard
    UNREACHABLE = 4
    RECORDED = 5  # and not carried out: the control plane observes, or an operator has to approve it


def console() -> Console:
    """Made for each use: tests replace standard output."""
    from rich.console import Console

    return Console(highlight=False)


def print_json(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    console().print(table_of(columns, rows))


def table_of(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(escape("" if cell is None else str(cell)) for cell in row))
    return table


def print_fields(record: dict[str, object]) -> None:
    """One record, a field on each line; what is nested as JSON."""
    import msgspec

    width = max(map(len, record), default=0) + 2
    for name, value in record.items():
        shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if (name == "at" or name.endswith(("_at", "since"))) and isinstance(value, int | float):
            shown = date(value)
        click.echo(f"{name:{width}}{shown}")


def note(message: str) -> None:
    """For people, so that standard output holds nothing but the result."""
    click.echo(message, err=True)


def fail(message: str, code: Exit) -> NoReturn:
    note(message)
    sys.exit(code)


def date(at: float | None) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S") if at else ""
