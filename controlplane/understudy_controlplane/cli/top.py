"""`understudy top`: what `status` shows, and what goes on now, read again and again."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.decision import DECISIONS
from understudy_controlplane.cli.incident import INCIDENTS
from understudy_controlplane.cli.listing import Listing
from understudy_controlplane.cli.output import console, print_json
from understudy_controlplane.cli.recovery import RECOVERIES
from understudy_controlplane.cli.status import lines

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from understudy_client import Client, Record

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
        print_json({"status": client.get("/v1/status"), **{title: _read(client, title) for title in LISTS}})
        return
    from rich.live import Live

    with suppress(KeyboardInterrupt), Live(frame(client), console=console(), screen=True, auto_refresh=False) as live:
        while True:
            live.update(_frame_or_error(client, every), refresh=True)
            time.sleep(every)


LISTS: dict[str, tuple[str, Listing, dict[str, object]]] = {
    "awaiting_approval": ("Recoveries that await approval", RECOVERIES, {"status": "awaits_approval"}),
    "running": ("Recoveries under way", RECOVERIES, {"status": "running"}),
    "incidents": ("Open incidents", INCIDENTS, {"open": True}),
    "decisions": ("Newest decisions", DECISIONS, {}),
}
"""Name in JSON → title, records, and which of them."""


def _read(client: Client, name: str) -> list[Record]:
    _, listing, chosen = LISTS[name]
    return client.items(listing.path, ROWS, **chosen)


def frame(client: Client) -> Group:
    """Its parts are bounded, however large the fleet is."""
    from rich.console import Group
    from rich.text import Text

    parts = [Text("\n".join(lines(client.get("/v1/status"), time.time())))]
    for name, (title, listing, _) in LISTS.items():
        records = _read(client, name)
        if records:
            table = "\n".join(listing.lines(records))
            parts += [Text(f"\n{title}", style="bold"), Text(table, no_wrap=True, overflow="ellipsis")]
    return Group(*parts)


def _frame_or_error(client: Client, every: float) -> RenderableType:
    from understudy_client import UnreachableError

    try:
        return frame(client)
    except UnreachableError as error:
        return f"{error}\nIt is asked again every {every:g} s; Ctrl-C ends."
