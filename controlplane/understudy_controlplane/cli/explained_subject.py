"""`understudy explain node|job`: what was decided and why, what goes on, and what holds back the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from understudy_controlplane.cli.output import date

if TYPE_CHECKING:
    from understudy_client import Decision, Explanation, Recovery


def lines(explained: Explanation) -> Iterator[str]:
    yield explained.is_now
    yield from _section("open incidents", [f"{one.id} {one.rule}: {one.summary}" for one in explained.incidents])
    yield from _section("newest recoveries", [_recovery(one) for one in explained.recoveries])
    requests = [f"{one.id} {one.verb} by {one.by}: {one.status}: {one.why}" for one in explained.requests]
    yield from _section("requests", requests)
    yield from _section("newest decisions", [_decision(one) for one in explained.decisions])


def _recovery(one: Recovery) -> str:
    moved = f" to {' '.join(one.spares)}" if one.nodes and one.spares else ""
    about = " ".join(one.nodes or one.spares)
    took = "" if one.milliseconds is None else f" in {one.milliseconds / 1000:.1f} s"
    outcome = f": {one.outcome}" if one.outcome else ""
    return f"{one.id} {date(one.detected_at)} {one.kind} {about}{moved}: {one.status}{took}{outcome}"


def _decision(one: Decision) -> str:
    """A decision to do nothing names the guard that holds it back, where it is one."""
    because = "" if one.because == "rule" else f", because of {one.because}"
    return f"{date(one.at)} {one.action}{because} (row {one.table_row}): {one.reason}"


def _section(title: str, entries: list[str]) -> list[str]:
    return [f"{title}:", *(f"  {entry}" for entry in entries)] if entries else []
