"""A page and its templates. Whatever a template shows is escaped: names and reasons come from users and from Slurm."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from understudy_controlplane.api.documents import shown
from understudy_controlplane.clock import moment
from understudy_controlplane.fleet.provider import in_words

FOLDER = Path(__file__).parent
STATIC = {
    path.name: path.read_bytes()
    for path in sorted((FOLDER / "static").iterdir())
    if path.suffix in (".css", ".js", ".svg")
}
RELEASE = hashlib.sha256(b"".join(STATIC.values())).hexdigest()[:12]
"""Digest of all static files: part of their addresses, so that browsers keep them until they change."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class Page:
    """`parts` are kept up to date: id of an element → what it contains. `layout` names everything else: where that has
    changed, the page is loaded again. `at` is the time of its snapshot.
    """

    template: str
    title: str
    at: float
    parts: Mapping[str, Markup]
    layout: str = "1"
    context: Mapping[str, Any] = field(default_factory=dict)


def when(at: float | None) -> Markup:
    """A time. The script of the page adds how long ago that is."""
    if at is None:
        return Markup("—")
    at_utc = moment(at)
    return Markup('<time datetime="{}" data-at="{}">{}</time>').format(
        at_utc.isoformat(timespec="milliseconds"), f"{at:.3f}", at_utc.strftime("%Y-%m-%d %H:%M:%S")
    )


def duration(milliseconds: float) -> str:
    seconds = milliseconds / 1000
    if abs(seconds) < 10:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def with_code(text: str) -> Markup:
    """`commands` in text as code."""
    pieces = str(text).split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece) for number, piece in enumerate(pieces)
    )


def as_json(value: object) -> str:
    return json.dumps(value, indent=2, default=str, ensure_ascii=False)


def job_of_subject(subject: str) -> str:
    """The job's number where the subject of an incident or a decision is a gang; empty: it is none."""
    found = re.fullmatch(r".*/(\d+)@\d+", subject)
    return found[1] if found is not None else ""


def words(value: object) -> str:
    return str(getattr(value, "value", value)).replace("_", " ")


@lru_cache(maxsize=1)
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "when": when,
        "duration": duration,
        "percent": lambda ratio: f"{ratio:.1%}",
        "with_code": with_code,
        "as_json": as_json,
        "words": words,
        "of_provider": in_words,
        "cell": shown,
        "job_of": job_of_subject,
        "moment": lambda at: moment(at).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC",
        "segment": lambda text: quote(str(text), safe=""),
    }
    made.globals["ui"] = made.get_template("ui.html").module
    return made


def template(name: str) -> Template:
    return environment().get_template(name)


def parts_of(name: str, **context: Any) -> dict[str, Markup]:
    """The blocks of a template, each rendered by itself."""
    made = template(name)
    return {
        block: Markup("".join(render(made.new_context(context))))  # noqa: S704 - the template has escaped it
        for block, render in made.blocks.items()
    }
