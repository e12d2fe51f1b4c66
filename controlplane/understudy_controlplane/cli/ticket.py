"""`understudy ticket`: nodes that need a person."""

from __future__ import annotations

import click

from understudy_controlplane.cli.listing import Listing, limit_option, list_command, show_command
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import NUMBER
from understudy_controlplane.fleet.provider import in_words

TICKETS = Listing(
    "/v1/tickets",
    {
        "ticket": "id",
        "node": "node",
        "opened": "opened_at",
        "acknowledged by": "acknowledged_by",
        "closed": "closed_at",
        "provider": lambda one: in_words(one["body"].get("provider", {})),
    },
)
open_option = click.option("--open/--closed", "open", default=None, help="Only those that are open, or closed.")

ticket = click.Group(
    "ticket",
    help="Tickets for manual repair.",
    commands=[
        list_command("list", "The newest tickets.", TICKETS, open_option, limit_option),
        show_command("show", "One ticket, with its evidence.", "/v1/tickets/{}", NUMBER),
        request_command("ack", "Acknowledge a ticket: others see who deals with it.", "/v1/tickets/{}/ack", NUMBER),
        request_command(
            "close",
            "Close a ticket. Its node stays in manual repair until it is released.",
            "/v1/tickets/{}/close",
            NUMBER,
        ),
    ],
)
