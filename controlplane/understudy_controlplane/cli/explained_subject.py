"""`understudy explain node|job`: what was decided and why, what goes on, and what holds back the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from understudy_controlplane.cli.output import date
from understudy_controlplane.cli.recovery import took
from understudy_controlplane.fleet.plain_text import one_line

if TYPE_CHECKING:
    from understudy_client import Record

LAUNCHES_SHOWN = 10


def lines(explained: Record) -> Iterator[str]:
    return map(one_line, _lines(explained))


def _lines(explained: Record) -> Iterator[str]:
    yield explained.is_now
    yield from _section("open incidents", [_incident(one, explained.record) for one in explained.incidents])
    yield from _section("newest recoveries", [_recovery(one) for one in explained.recoveries])
    launches = [one for one in explained.record.get("launches", ()) if one.reason]
    yield from _section("launches that ended", list(map(_launch, launches[-LAUNCHES_SHOWN:])))
    requests = [f"{one.id} {one.verb} by {one.by}: {one.status}: {one.why}" for one in explained.requests]
    yield from _section("requests", requests)
    yield from _section("newest decisions", [_decision(one) for one in explained.decisions])


def _incident(one: Record, explained: Record) -> str:
    """One of a node names it in what is explained of a job."""
    on = f"{one.subject} " if "job_id" in explained and one.subject_kind == "node" else ""
    return f"{one.id} {on}{one.rule}: {one.summary}"


def _recovery(one: Record) -> str:
    moved = f" to {' '.join(one.spares)}" if one.nodes and one.spares else ""
    about = " ".join(one.nodes or one.spares)
    after = f" in {took(one)}" if took(one) else ""
    outcome = f": {one.outcome}" if one.outcome else ""
    cause = f": {one.reason}" if one.reason else ""
    return f"{one.id} {date(one.detected_at)} {one.kind} {about}{moved}: {one.status}{after}{outcome}{cause}"


def _launch(one: Record) -> str:
    return f"{one.restart_count}.{one.launch} {date(one.at)}: {one.reason}"


def _decision(one: Record) -> str:
    """A decision to do nothing names the guard that holds it back, where it is one."""
    because = "" if one.because == "rule" else f", because of {one.because}"
    return f"{one.id} {date(one.at)} {one.action}{because} (row {one.table_row}): {one.reason}"


def _section(title: str, entries: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []
