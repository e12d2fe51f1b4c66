"""`understudy top`: what `status` shows, and what goes on now, read again and again."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from understudy_controlplane.cli import decision, incident, recovery
from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import Chosen, Listing, rows_of
from understudy_controlplane.cli.output import console, print_json, table_lines
from understudy_controlplane.cli.status import lines

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from understudy_client import Client

ROWS = 10


@click.command()
@click.option(
    "--every", type=click.FloatRange(0.5, 3600), default=2.0, show_default=True, help="Seconds between two reads."
)
@connected
def top(client: Client, as_json: bool, every: float) -> None:
    """Show what goes on, until Ctrl-C: counts, recoveries under way, open incidents, newest decisions.

    With --json it prints this once.
    """
    if as_json:
        status = client.get("/v1/status", dict)
        lists = {
            title: client.items(listing.path, dict, ROWS, **chosen) for title, (listing, chosen) in _lists().items()
        }
        print_json({"status": status, **lists})
        return
    from rich.live import Live

    with suppress(KeyboardInterrupt), Live(frame(client), console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_frame_or_error(client, every), refresh=True)
            time.sleep(every)


def _lists() -> dict[str, tuple[Listing[Any], dict[str, Chosen]]]:
    return {
        "awaiting_approval": (recovery.listing(), {"status": "awaits_approval"}),
        "running": (recovery.listing(), {"status": "running"}),
        "incidents": (incident.listing(), {"open": True}),
        "decisions": (decision.listing(), {}),
    }


TITLES = {
    "awaiting_approval": "Recoveries that await approval",
    "running": "Recoveries under way",
    "incidents": "Open incidents",
    "decisions": "Newest decisions",
}


def frame(client: Client) -> Group:
    """Its parts are bounded, however large the fleet is."""
    from rich.console import Group
    from rich.text import Text

    from understudy_client import Status

    parts = [Text("\n".join(lines(client.get("/v1/status", Status), time.time())))]
    for title, (listing, chosen) in _lists().items():
        rows = rows_of(client, listing, ROWS, chosen)
        if rows:
            table = "\n".join(table_lines(listing.columns, rows))
            parts += [Text(f"\n{TITLES[title]}", style="bold"), Text(table, no_wrap=True, overflow="ellipsis")]
    return Group(*parts)


def _frame_or_error(client: Client, every: float) -> RenderableType:
    from understudy_client import UnreachableError

    try:
        return frame(client)
    except UnreachableError as error:
        return f"{error}\nIt is asked again every {every:g} s; Ctrl-C ends."
