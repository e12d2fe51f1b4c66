"""`understudy spare`: the pool of hot spares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import print_item, print_items
from understudy_controlplane.cli.node import node_listing
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client


@click.group()
def spare() -> None:
    """The pool of hot spares."""


@spare.command("list")
@connected
def list_spares(client: Client, as_json: bool) -> None:
    """The nodes that the pool holds."""
    print_items(client, node_listing(), as_json, None, {"spare": True})


@spare.command("show")
@connected
def show(client: Client, as_json: bool) -> None:
    """How many spares are wanted, by whom, and who holds which reservation of the control plane."""
    print_item(client, "/v1/spares", as_json)


@spare.command("size")
@click.argument("size", type=click.IntRange(min=0))
@request_options
@connected
def size(client: Client, as_json: bool, size: int, **options: Unpack[Options]) -> None:
    """Set how many spares the pool is to hold, also over a restart. No node leaves the pool for a smaller number."""
    send(client, as_json, Requests(["/v1/spares/size"], size=size, **options))


@spare.command("size-as-configured")
@request_options
@connected
def size_as_configured(client: Client, as_json: bool, **options: Unpack[Options]) -> None:
    """Hold as many spares as the configuration asks for again."""
    send(client, as_json, Requests(["/v1/spares/size"], **options))
