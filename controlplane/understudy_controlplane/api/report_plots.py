"""Plots of a report as SVG: shapes and words, no script, colours by class. A plot of nothing is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from understudy_controlplane.api.documents import shown
from understudy_controlplane.figures.fleet_costs import FleetCosts

WIDTH, LABEL, ROW = 720.0, 230.0, 24.0
CAUSES_SHOWN = 12


class Bar(NamedTuple):
    name: str
    value: float
    words: str
    kind: str = "bar"


def plots(costs: FleetCosts) -> list[tuple[str, Markup]]:
    """Title and SVG of each."""
    hours = [Bar("productive", costs.productive_gpu_hours, shown(costs.productive_gpu_hours), "good")]
    hours += [Bar(name, value, shown(value), f"loss-{name}") for name, value in costs.lost_gpu_hours.items()]
    causes = [
        Bar(one.component, one.interruptions, str(one.interruptions))
        for one in costs.interrupted.causes[:CAUSES_SHOWN]
        if one.interruptions
    ]
    levels = [Bar(level, 100 * share, f"{100 * share:.1f} %") for level, share in _levels(costs)]
    made = [
        ("GPU-hours by what became of them", bars(hours)),
        ("Interruptions by cause", bars(causes)),
        ("Nodes out of service at the same time, % of the time", bars(levels)),
    ]
    return [(title, drawn) for title, drawn in made if drawn]


def _levels(costs: FleetCosts) -> list[tuple[str, float]]:
    """Levels in at most twelve groups of the same width."""
    if costs.outages.down_max == 0:
        return []
    width = costs.outages.down_max // 12 + 1
    groups: dict[int, float] = {}
    for level, share in costs.down_share.items():
        groups[int(level) // width] = groups.get(int(level) // width, 0.0) + share
    return [
        (str(group) if width == 1 else f"{group * width} to {group * width + width - 1}", share)
        for group, share in sorted(groups.items())
    ]


def bars(drawn: Sequence[Bar]) -> Markup:
    """Empty where there is nothing to show."""
    most = max((one.value for one in drawn), default=0.0)
    if most <= 0:
        return Markup("")
    room = WIDTH - LABEL - 110
    rows = [
        Markup(
            '<text x="{}" y="{}" text-anchor="end">{}</text><rect class="{}" x="{}" y="{}" width="{:.1f}" height="{}"/>'
            '<text x="{:.1f}" y="{}">{}</text>'
        ).format(
            LABEL - 8,
            number * ROW + 16,
            one.name,
            one.kind,
            LABEL,
            number * ROW + 4,
            room * one.value / most,
            ROW - 8,
            LABEL + room * one.value / most + 6,
            number * ROW + 16,
            one.words,
        )
        for number, one in enumerate(drawn)
    ]
    words = "; ".join(f"{one.name}: {one.words}" for one in drawn)
    return Markup('<svg class="plot" role="img" viewBox="0 0 {:.0f} {:.0f}" aria-label="{}">{}</svg>').format(
        WIDTH, len(drawn) * ROW, words, Markup("").join(rows)
    )
