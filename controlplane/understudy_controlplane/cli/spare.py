"""`understudy spare`: the pool of hot spares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import print_items
from understudy_controlplane.cli.node import node_listing

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
