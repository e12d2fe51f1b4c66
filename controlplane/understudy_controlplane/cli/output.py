"""What commands print, and with which code they exit."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NoReturn

import click

from understudy_controlplane.clock import moment
from understudy_controlplane.fleet.plain_text import one_line, whole_words

NESTED_FROM = 80
"""Characters from which a field of fields gets a line for each."""
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


CUT_TO = 24
"""No column becomes narrower than this."""


def terminal_width() -> int | None:
    """None: the output is read by a program, which gets all of it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table_lines(columns: Iterable[str], rows: Iterable[Iterable[object]], most: int | None = None) -> list[str]:
    """Cells below each other, for people and for `awk`: thousands of rows take milliseconds. `most`: characters of a
    line; the widest columns are cut for it, and a last line reports it.
    """
    cells = [list(columns), *(["" if cell is None else str(cell) for cell in row] for row in rows)]
    shown = [_printable(column) for column in zip(*cells, strict=True)]
    widths = [max(map(len, column)) for column in shown]
    fitting = widths if most is None else _fitting(widths, most)
    if fitting != widths:
        shown = [[whole_words(cell, width) for cell in column] for column, width in zip(shown, fitting, strict=True)]
    aligned = [[cell.ljust(width) for cell in column] for column, width in zip(shown, fitting, strict=True)]
    lines = ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    return lines if fitting == widths else [*lines, f"(cut to {most} columns; --json, or a pipe, shows all)"]


def _printable(column: Sequence[str]) -> Sequence[str]:
    return column if "".join(column).isprintable() else [one_line(cell) for cell in column]


def _fitting(widths: Sequence[int], most: int) -> list[int]:
    """The widest column gives first."""
    found = list(widths)
    while (over := sum(found) + 2 * (len(found) - 1) - most) > 0 and (widest := max(found)) > CUT_TO:
        narrower = max((one for one in found if one < widest), default=CUT_TO)
        found[found.index(widest)] = max(widest - over, narrower - 1, CUT_TO)
    return found


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


def record_lines(record: Mapping[str, object]) -> list[str]:
    return field_lines(record, terminal_width())


def field_lines(record: Mapping[str, object], most: int | None = None) -> list[str]:
    """One record, a field on each line; a list of records as a table below its name. `most`: characters of a line."""
    heads = [one_line(name) for name in record]
    width = max(map(len, heads), default=0) + 2
    lines = []
    for head, (name, value) in zip(heads, record.items(), strict=True):
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            columns = list(dict.fromkeys(key for one in value for key in one))
            rows = [[cell(key, one.get(key)) for key in columns] for one in value]
            lines += [head, *(f"  {line}" for line in table_lines(columns, rows, most and most - 2))]
        elif isinstance(value, dict) and len(cell(name, value)) > NESTED_FROM:
            filled = {key: one for key, one in value.items() if one not in (None, "", [], {})}
            lines += [head, *(f"  {line}" for line in field_lines(filled, most and most - 2))]
        else:
            lines += _wrapped(f"{head:{width}}", one_line(cell(name, value)), most)
    return lines


def _wrapped(name: str, text: str, most: int | None) -> list[str]:
    if most is None or len(name) + len(text) <= most:
        return [f"{name}{text}".rstrip()]
    indent = " " * len(name)
    return textwrap.wrap(
        text, max(most, CUT_TO + len(name)), initial_indent=name, subsequent_indent=indent, break_long_words=False
    )


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
    if name == "ratio" and isinstance(value, float):
        return f"{value:.1%}"
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
