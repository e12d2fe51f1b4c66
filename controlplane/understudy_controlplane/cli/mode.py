"""`understudy mode`: whether the control plane acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import DURATION
from understudy_controlplane.cli.output import date, print_json
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client


@click.group()
def mode() -> None:
    """The mode: observe (changes nothing), approve (recoveries wait for an operator) or act."""


@mode.command("show")
@connected
def show(client: Client, as_json: bool) -> None:
    """The mode, and who limits it."""
    from understudy_client import Status
    from understudy_controlplane.cli.status import mode_line

    found = client.get("/v1/status", Status)
    if as_json:
        limit, until = found.mode_limit, found.mode_limit_until
        print_json({"mode": found.mode, "configured": found.mode_configured, "limit": limit, "until": until})
    else:
        click.echo(mode_line(found))


@mode.command("set")
@click.argument("mode", type=click.Choice(["observe", "approve", "act"]))
@request_options
@click.option("--for", "for_seconds", type=DURATION, help="Return to the configured mode after this time, such as 2h.")
@connected
def set_mode(client: Client, as_json: bool, mode: str, **options: Unpack[Options]) -> None:
    """Set a mode below the configured one, or the configured one again. It holds over a restart."""
    if mode == "act" and not as_json:
        _show_open_incidents(client)
    send(client, as_json, Requests(["/v1/mode"], mode=mode, **options))


def _show_open_incidents(client: Client) -> None:
    """What is known against nodes and gangs before the control plane acts."""
    from understudy_client import Incident

    found = client.items("/v1/incidents", Incident, open=True)
    if found:
        click.echo(
            "Incidents from before mode act. What follows from each waits for you: `understudy recovery list "
            "--status awaits_approval`, then `recovery approve NUMBER REASON`, or `incident dismiss NUMBER REASON`:"
        )
    for one in found:
        click.echo(f"  incident {one.id}, since {date(one.opened_at)}: {one.subject}: {one.summary}")
