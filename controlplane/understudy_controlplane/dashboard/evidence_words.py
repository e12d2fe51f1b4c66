"""Evidence in words, for people: its keys differ from rule to rule. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from markupsafe import Markup, escape

from understudy_controlplane.dashboard.page import duration, when

LINES_MAX = 40
LIST_MAX = 8
TIMES = frozenset({"at", "since", "until"})
OF_MACHINES = frozenset({"boot_id", "generation", "policy", "sequence", "uuid"})
EPOCH_MIN = 1e9
"""Numbers below are no time of this century."""


def lines(evidence: Mapping[str, Any]) -> list[tuple[str, Markup]]:
    """Name and value of what is there, at most 40; empty values are left out. Everything is in the JSON below."""
    return [*_lines(evidence)][:LINES_MAX]


def _lines(evidence: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Markup]]:
    for key, value in evidence.items():
        name = f"{of} {key}".strip().replace("_", " ")
        if key in OF_MACHINES:
            continue
        if isinstance(value, Mapping):
            yield from _lines(value, name)
        elif value not in (None, "", [], {}):
            yield name.removesuffix(" seconds"), _value(key, value)


def _value(key: str, value: Any) -> Markup:
    last = key.rpartition("_")[2]
    if isinstance(value, bool):
        return escape("yes" if value else "no")
    if isinstance(value, int | float):
        if last in TIMES and value >= EPOCH_MIN:
            return when(float(value))
        return escape(duration(value * 1000.0) if last == "seconds" else f"{value:,.12g}")
    if isinstance(value, list | tuple):
        shown = ", ".join(_plain(one) for one in value[:LIST_MAX])
        return escape(shown if len(value) <= LIST_MAX else f"{shown} and {len(value) - LIST_MAX} more")
    return escape(value)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key.replace('_', ' ')} {one}" for key, one in value.items())
    return str(value)
