"""`understudy ticket`: nodes that need a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, number_argument, print_item, print_items
from understudy_controlplane.cli.output import date
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

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
        "acknowledged by": lambda one: one.acknowledged_by,
        "closed": lambda one: date(one.closed_at),
    }
    return Listing("/v1/tickets", Ticket, columns)


@ticket.command("show")
@number_argument
@connected
def show(client: Client, as_json: bool, number: int) -> None:
    """One ticket, with its evidence."""
    print_item(client, f"/v1/tickets/{number}", as_json)


@ticket.command("ack")
@number_argument
@request_options
@connected
def acknowledge(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Acknowledge a ticket: others see who deals with it."""
    send(client, as_json, Requests([f"/v1/tickets/{number}/ack"], **options))


@ticket.command("close")
@number_argument
@request_options
@connected
def close(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Close a ticket. Its node stays in manual repair until it is released."""
    send(client, as_json, Requests([f"/v1/tickets/{number}/close"], **options))
