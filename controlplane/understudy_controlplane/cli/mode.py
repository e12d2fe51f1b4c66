"""`understudy mode`: whether the control plane acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from understudy_controlplane.cli.connection import connected, with_commands
from understudy_controlplane.cli.output import date, note, show
from understudy_controlplane.cli.requests import for_option, request_options, send
from understudy_controlplane.cli.status import mode_line

if TYPE_CHECKING:
    from understudy_client import Client


@click.command("show")
@connected
def show_mode(client: Client, as_json: bool) -> None:
    """The mode, and who limits it."""
    found = client.get("/v1/status")
    limit, until = found.mode_limit, found.mode_limit_until
    shown = {"mode": found.mode, "configured": found.mode_configured, "limit": limit, "until": until}
    show(shown, as_json, lambda _: [mode_line(found)])


def _show_open_incidents(client: Client) -> None:
    """What is known against nodes and gangs before the control plane acts."""
    found = client.items("/v1/incidents", open=True)
    if found:
        click.echo(
            "Incidents from before mode act. What follows from each waits for you: `understudy recovery list "
            "--status awaits_approval`, then `recovery approve NUMBER REASON`, or `incident dismiss NUMBER REASON`:"
        )
    for one in found:
        click.echo(f"  incident {one.id}, since {date(one.opened_at)}: {one.subject}: {one.summary}")


@click.command("set")
@click.argument("mode", type=click.Choice(["observe", "approve", "act"]))
@request_options
@click.option("--yes", is_flag=True, help="Do not ask: for scripts.")
@for_option("Return to the configured mode after this time, such as 2h.")
@connected
def set_mode(client: Client, /, as_json: bool, mode: str, yes: bool, dry_run: bool, **options: Any) -> None:
    """Set a mode below the configured one, or the configured one again. It holds over a restart. Before approve and act
    it lists what would be done at once, and asks.
    """
    if mode == "act" and not as_json:
        _show_open_incidents(client)
    if mode != "observe" and not yes and not dry_run:
        note(with_commands(client.post("/v1/mode", options["reason"], dry_run=True, mode=mode).why))
        click.confirm(f"Set mode {mode}?", abort=True, err=True)
    options["dry_run"] = dry_run
    send(client, as_json, ["/v1/mode"], mode=mode, **options)


mode = click.Group(
    "mode",
    help="The mode: observe (changes nothing), approve (recoveries wait for an operator) or act.",
    commands=[show_mode, set_mode],
)
