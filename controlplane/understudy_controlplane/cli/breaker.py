"""`understudy breaker`: the circuit breaker, which stops quarantines after too many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import print_json
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client


@click.group()
def breaker() -> None:
    """The circuit breaker, which stops the control plane after too many quarantines at once."""


@breaker.command("show")
@connected
def show(client: Client, as_json: bool) -> None:
    """Shows whether it is open, and why."""
    from understudy_client import Status

    why = client.get("/v1/status", Status).breaker
    if as_json:
        print_json({"breaker": why})
    else:
        click.echo(f"open: {why}" if why else "closed")


@breaker.command("reset")
@request_options
@connected
def reset(client: Client, as_json: bool, **options: Unpack[Options]) -> None:
    """Close it, after you have found out why it opened."""
    send(client, as_json, Requests(["/v1/breaker/reset"], **options))
