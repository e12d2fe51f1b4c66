"""`understudy mode`: whether the control plane acts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import print_json

if TYPE_CHECKING:
    from understudy_client import Client


@click.command()
@connected
def mode(client: Client, as_json: bool) -> None:
    """Print the mode: observe (changes nothing), approve (recoveries wait for an operator) or act."""
    from understudy_client import Status

    found = client.get("/v1/status", Status).mode
    if as_json:
        print_json({"mode": found})
    else:
        click.echo(found)
