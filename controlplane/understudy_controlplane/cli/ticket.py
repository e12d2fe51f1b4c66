"""`understudy ticket`: nodes that need a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, number_argument, print_item, print_items
from understudy_controlplane.cli.output import date

if TYPE_CHECKING:
    from understudy_client import Client, Ticket


@click.group()
def ticket() -> None:
    """Tickets for manual repair."""


@ticket.command("list")
@click.option("--open/--closed", "open", default=None, help="Only those that are open, or closed.")
@limit_option
@connected
def list_tickets(client: Client, /, as_json: bool, limit: int, **chosen: Chosen) -> None:
    """The newest tickets."""
    print_items(client, listing(), as_json, limit, chosen)


def listing() -> Listing[Ticket]:
    from understudy_client import Ticket

    columns: dict[str, Callable[[Ticket], object]] = {
        "ticket": lambda one: one.id,
        "node": lambda one: one.node,
        "opened": lambda one: date(one.opened_at),
        "closed": lambda one: date(one.closed_at),
    }
    return Listing("/v1/tickets", Ticket, columns)


@ticket.command("show")
@number_argument
@connected
def show(client: Client, as_json: bool, number: int) -> None:
    """One ticket, with its evidence."""
    print_item(client, f"/v1/tickets/{number}", as_json)
