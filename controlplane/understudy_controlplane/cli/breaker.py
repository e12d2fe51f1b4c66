"""`understudy breaker`: the circuit breaker, which stops quarantines after too many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import show
from understudy_controlplane.cli.requests import request_command

if TYPE_CHECKING:
    from understudy_client import Client


@click.command("show")
@connected
def show_breaker(client: Client, as_json: bool) -> None:
    """Shows whether it is open, and why."""
    why: str = client.get("/v1/status").breaker
    show({"breaker": why}, as_json, lambda _: [f"open: {why}" if why else "closed"])


breaker = click.Group(
    "breaker",
    help="The circuit breaker, which stops the control plane after too many quarantines at once.",
    commands=[
        show_breaker,
        request_command("reset", "Close it, after you have found out why it opened.", "/v1/breaker/reset"),
    ],
)
