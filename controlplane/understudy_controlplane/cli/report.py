"""`understudy report`: what happened in a span of time, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.output import date, print_json

if TYPE_CHECKING:
    from understudy_client import Client, Count, FleetReport


@click.command()
@click.option("--since", type=PAST, help="From then on: 30d for a month ago, or a time in UTC; else 7 days.")
@click.option("--until", type=PAST, help="Up to then; else now.")
@connected
def report(client: Client, as_json: bool, since: float | None, until: float | None) -> None:
    """Print what happened as Markdown: incidents, recoveries, time lost, quarantines, what guards held back."""
    if as_json:
        print_json(client.get("/v1/report", dict, since=since, until=until))
        return
    from understudy_client import FleetReport

    click.echo("\n".join(lines(client.get("/v1/report", FleetReport, since=since, until=until))))


def lines(found: FleetReport) -> list[str]:
    recoveries = [(one.kind, one.status, one.count, f"{one.median_seconds:.1f} s") for one in found.recoveries]
    observed = [(one.rule, one.cases, one.agreed, one.disagreed) for one in found.observed]
    return [
        f"# Understudy, {date(found.since)} to {date(found.until)}",
        "",
        f"- incidents: {sum(one.count for one in found.incidents)} opened, {found.incidents_open} open now",
        f"- recoveries: {sum(one.count for one in found.recoveries)} ended",
        f"- gangs stood still for {found.seconds_lost / 60:.1f} min in recoveries, from the fault on",
        f"- nodes quarantined: {sum(one.count for one in found.quarantines)} times",
        *_table("Incidents", ("rule", "opened"), _rows(found.incidents)),
        *_table("Recoveries", ("path", "outcome", "number", "median time"), recoveries),
        *_table("Quarantines", ("rule", "number"), _rows(found.quarantines)),
        *_table("Nodes quarantined most often", ("node", "number"), _rows(found.worst_nodes)),
        *_table("Held back", ("guard", "decisions"), _rows(found.held_back)),
        *_table("Only observed", ("rule", "cases", "agreed", "disagreed"), observed),
    ]


def _rows(counts: Iterable[Count]) -> list[tuple[object, ...]]:
    return [(one.name, one.count) for one in counts]


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    if not rows:
        return []
    body = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return ["", f"## {title}", f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *body]
