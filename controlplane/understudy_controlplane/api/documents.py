"""A document of tables, such as a report, in each form: Markdown, CSV, or one page of HTML that needs nothing else."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import msgspec
from fastapi import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from understudy_controlplane.clock import moment
from understudy_controlplane.fleet.plain_text import one_line

Cell = str | int | float | None

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a cell that a spreadsheet would compute: names of jobs come from users."""

ROWS_SHOWN = 200
"""Rows of a table that people read; CSV and JSON have all."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""HTML has styles of its own, so that its file stands alone, and no script."""


class Form(StrEnum):
    JSON = "json"
    TEXT = "text"
    HTML = "html"
    CSV = "csv"


MEDIA_TYPES = {Form.JSON: "application/json", Form.TEXT: "text/markdown", Form.HTML: "text/html", Form.CSV: "text/csv"}


@dataclass(frozen=True, slots=True)
class Section:
    """`note`: where its numbers come from. Without columns its rows are a list."""

    name: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def more(self) -> str:
        """What is left out for people; empty: nothing."""
        left = len(self.rows) - ROWS_SHOWN
        return f"{left:,} more rows: --format csv has them." if left > 0 else ""


@dataclass(frozen=True, slots=True)
class Document:
    """`record` is the whole in JSON. `about`: the first columns of CSV; `summary`: what is read first."""

    record: msgspec.Struct
    title: str
    sections: Sequence[Section]
    summary: Sequence[tuple[str, str]] = ()
    plots: Sequence[tuple[str, Markup]] = ()
    about: Sequence[tuple[str, Cell]] = ()

    def rendered(self, form: Form) -> str:
        match form:
            case Form.JSON:
                return msgspec.json.format(msgspec.json.encode(self.record), indent=2).decode()
            case Form.TEXT:
                return "\n".join(self._markdown()) + "\n"
            case Form.CSV:
                return self._csv()
            case Form.HTML:
                return _template().render(document=self, shown=shown, rows_shown=ROWS_SHOWN)

    def response(self, form: Form) -> Response:
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
        if form is Form.HTML:
            headers["Content-Security-Policy"] = POLICY
        return Response(self.rendered(form), media_type=MEDIA_TYPES[form], headers=headers)

    def _markdown(self) -> Iterator[str]:
        yield from (
            f"# {_in_markdown(self.title)}",
            "",
            *(f"- {name}: {_in_markdown(value)}" for name, value in self.summary),
        )
        for one in self.sections:
            yield from ("", f"## {one.title}", *([one.note, ""] if one.note else []))
            if one.columns:
                yield from (f"| {' | '.join(one.columns)} |", f"|{'---|' * len(one.columns)}")
            for row in one.rows[:ROWS_SHOWN]:
                cells = " | ".join(_in_markdown(shown(cell)) for cell in row)
                yield f"| {cells} |" if one.columns else f"- {cells}"
            yield from filter(None, (one.more,))

    def _csv(self) -> str:
        """Each table begins with a line of its columns; the first column names the table."""
        made = io.StringIO()
        writer = csv.writer(made, lineterminator="\n")
        writer.writerow(("table", *(name for name, _ in self.about)))
        writer.writerow(("report", *(_in_csv(value) for _, value in self.about)))
        for one in self.sections:
            writer.writerow(("table", *one.columns))
            writer.writerows((one.name, *map(_in_csv, row)) for row in one.rows)
        return made.getvalue()


def date(at: float) -> str:
    return moment(at).strftime("%Y-%m-%d %H:%M:%S")


def shown(cell: Cell) -> str:
    """Text for people. A number that is not known is empty."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _in_markdown(text: str) -> str:
    """One line of a table or list, whatever users wrote."""
    return " ".join(one_line(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _in_csv(cell: Cell) -> Cell:
    """Cell as a program reads it, and as a terminal shows it."""
    if not isinstance(cell, str):
        return cell
    text = one_line(cell)
    return f"'{text}" if cell.startswith(FORMULA) else text


@lru_cache(maxsize=1)
def _template() -> Template:
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    return made.get_template("document.html")
