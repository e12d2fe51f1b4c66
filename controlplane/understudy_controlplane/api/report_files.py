"""A report as a file: Markdown, CSV, or one page of HTML with plots that needs nothing else."""

from __future__ import annotations

import csv
import io
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from understudy_controlplane.api.fleet_report import FleetReport
from understudy_controlplane.api.report_plots import plots
from understudy_controlplane.api.report_sections import Section, date, shown, summary
from understudy_controlplane.fleet.plain_text import one_line

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters that begin a cell that a spreadsheet would compute: names of jobs come from users."""


ROWS_SHOWN = 200
"""Rows of a table that people read; CSV and JSON have all."""


def as_text(report: FleetReport, sections: list[Section]) -> str:
    lines = [f"# Understudy, {date(report.since)} to {date(report.until)}", ""]
    lines += [f"- {name}: {value}" for name, value in summary(report)]
    for one in sections:
        lines += ["", f"## {one.title}", *([one.note, ""] if one.note else [])]
        lines += [f"| {' | '.join(one.columns)} |", f"|{'---|' * len(one.columns)}"]
        lines += [f"| {' | '.join(_in_markdown(shown(cell)) for cell in row)} |" for row in one.rows[:ROWS_SHOWN]]
        lines += [more(one)] if more(one) else []
    return "\n".join(lines) + "\n"


def more(section: Section) -> str:
    """What is left out for people; empty: nothing."""
    left = len(section.rows) - ROWS_SHOWN
    return f"{left:,} more rows: --format csv has them." if left > 0 else ""


def _in_markdown(text: str) -> str:
    return " ".join(one_line(text).split()).replace("|", "\\|")


def as_csv(report: FleetReport, sections: list[Section]) -> str:
    """Each table begins with a line of its columns; the first column names the table."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(("table", "since", "until", "cluster"))
    writer.writerow(("report", date(report.since), date(report.until), _in_csv(report.cluster)))
    for one in sections:
        writer.writerow(("table", *one.columns))
        writer.writerows((one.name, *map(_in_csv, row)) for row in one.rows)
    return made.getvalue()


def _in_csv(cell: object) -> object:
    """Cell as a program reads it, and as a terminal shows it."""
    if not isinstance(cell, str):
        return cell
    text = one_line(cell)
    return f"'{text}" if cell.startswith(FORMULA) else text


def as_html(report: FleetReport, sections: list[Section]) -> str:
    values = {"report": report, "sections": sections, "summary": summary(report), "plots": plots(report.costs)}
    return _template().render(values, date=date, shown=shown, more=more, rows_shown=ROWS_SHOWN)


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
    return made.get_template("report.html")
