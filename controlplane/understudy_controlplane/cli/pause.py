"""`understudy pause` and `resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import print_json
from understudy_controlplane.cli.requests import reason_argument

if TYPE_CHECKING:
    from understudy_client import Client


@click.command()
@reason_argument
@click.option("--now", is_flag=True, help="Halt what is under way, also between two attempts.")
@connected
def pause(client: Client, as_json: bool, reason: str, now: bool) -> None:
    """Pause the control plane: it begins nothing. A gang that has left its nodes is still started again."""
    _switch(client, "pause", reason, as_json, now or None)


@click.command()
@reason_argument
@connected
def resume(client: Client, as_json: bool, reason: str) -> None:
    """End a pause."""
    _switch(client, "resume", reason, as_json)


def _switch(client: Client, verb: str, reason: str, as_json: bool, now: bool | None = None) -> None:
    from understudy_client import PauseState

    paused = client.post(f"/v1/{verb}", PauseState, reason, now=now).paused
    if as_json:
        print_json({"paused": paused})
    else:
        click.echo(f"paused: {paused}" if paused else "not paused")
