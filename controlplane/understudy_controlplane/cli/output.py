"""What commands print, and with which code they exit."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NoReturn

import click

from understudy_controlplane.clock import moment
from understudy_controlplane.fleet.plain_text import one_line

TIMES = ("at", "since", "until", "approve_by")


class Exit(IntEnum):
    """`docs/api.md` documents the codes."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3  # by the state of a node or recovery, or held by a guard
    UNREACHABLE = 4
    RECORDED = 5  # and not carried out: the control plane observes, or an operator has to approve it
    PERSON_NEEDED = 6  # with `understudy status --check`


def print_json(value: object) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def show(found: Any, as_json: bool, lines: Callable[[Any], Iterable[str]]) -> None:
    """Prints JSON, or what `lines` makes for people."""
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(lines(found)))


def table_lines(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """Cells below each other, for people and for `awk`: thousands of rows take milliseconds."""
    cells = [list(columns), *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    aligned = [_aligned(column) for column in zip(*cells, strict=True)]
    return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]


def _aligned(column: Sequence[str]) -> list[str]:
    cells = column if "".join(column).isprintable() else [one_line(cell) for cell in column]
    width = max(map(len, cells))
    return [cell.ljust(width) for cell in cells]


@dataclass(frozen=True, slots=True)
class Check:
    """`detail`: what was found; of a problem its cause and remedy."""

    name: str
    ok: bool
    detail: str


def end_with(checks: Sequence[Check], as_json: bool, failed: Exit, none: str = "") -> NoReturn:
    """Prints them, and exits with `failed` where one is not good. `none` is printed where there are none."""
    lines = [f"{'good ' if one.ok else 'WRONG'} {one.name}: {one.detail}" for one in checks] or [none]
    show([asdict(one) for one in checks], as_json, lambda _: lines)
    sys.exit(Exit.DONE if all(one.ok for one in checks) else failed)


def pair_lines(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Names below each other, and beside each a text, wrapped at the width of the terminal."""
    rows = [(name, one_line(text) or "-") for name, text in pairs]
    made = click.HelpFormatter(width=shutil.get_terminal_size().columns)
    if rows:  # click refuses a list without any
        made.write_dl(rows, col_max=60)
    return made.getvalue().splitlines()


def field_lines(record: Mapping[str, object]) -> list[str]:
    """One record, a field on each line; a list of records as a table below its name."""
    width = max(map(len, record), default=0) + 2
    lines = []
    for name, value in record.items():
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            columns = list(dict.fromkeys(key for one in value for key in one))
            rows = [[cell(key, one.get(key)) for key in columns] for one in value]
            lines += [name, *(f"  {line}" for line in table_lines(columns, rows))]
        else:
            lines.append(f"{name:{width}}{one_line(cell(name, value))}".rstrip())
    return lines


def cell(name: str, value: object) -> str:
    """The value of a field of this name, for people."""
    if isinstance(value, dict):
        filled = ((key, one) for key, one in value.items() if one not in (None, "", [], {}))
        return ", ".join(f"{key}={cell(key, one)}" for key, one in filled)
    if isinstance(value, list):
        return " ".join(f"({cell(name, one)})" if isinstance(one, dict) else cell(name, one) for one in value)
    if value is None or isinstance(value, bool):
        return {None: "", True: "yes", False: "no"}[value]
    if isinstance(value, int | float) and (name in TIMES or name.endswith(("_at", "_until"))):
        return date(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def note(message: str) -> None:
    """Writes to standard error, so that standard output holds nothing but the result."""
    click.echo(message, err=True)


def fail(message: str, code: Exit) -> NoReturn:
    note(message)
    sys.exit(code)


@lru_cache(maxsize=1024)
def date(at: float | None) -> str:
    """Nodes of thousands were often changed at the same time."""
    return moment(at).strftime("%Y-%m-%d %H:%M:%S") if at else ""
