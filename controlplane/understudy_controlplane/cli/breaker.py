"""`understudy breaker`: the circuit breaker, which stops quarantines after too many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import print_json
from understudy_controlplane.cli.requests import print_switched, reason_argument

if TYPE_CHECKING:
    from understudy_client import Client


@click.group()
def breaker() -> None:
    """The circuit breaker, which stops the control plane after too many quarantines at once."""


@breaker.command("show")
@connected
def show(client: Client, as_json: bool) -> None:
    """Whether it is open, and why."""
    from understudy_client import Status

    _print(client.get("/v1/status", Status).breaker, as_json)


@breaker.command("reset")
@reason_argument
@connected
def reset(client: Client, as_json: bool, reason: str) -> None:
    """Close it, after you have found out why it opened."""
    from understudy_client import Accepted

    print_switched(client.post("/v1/breaker/reset", Accepted, reason), as_json)


def _print(breaker: str, as_json: bool) -> None:
    if as_json:
        print_json({"breaker": breaker})
    else:
        click.echo(f"open: {breaker}" if breaker else "closed")
