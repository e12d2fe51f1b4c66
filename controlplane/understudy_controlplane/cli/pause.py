"""`understudy pause` and `resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import DURATION
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client


@click.command()
@request_options
@click.option("--now", is_flag=True, default=None, help="Halt what is under way, also between two attempts.")
@click.option("--for", "for_seconds", type=DURATION, help="Resume after this time, such as 2h.")
@connected
def pause(client: Client, as_json: bool, **options: Unpack[Options]) -> None:
    """Pause the control plane: it begins nothing, and stops recoveries before their next effect.

    A gang that has left its nodes is still started again, unless --now is given.
    """
    send(client, as_json, Requests(["/v1/pause"], **options))


@click.command()
@request_options
@connected
def resume(client: Client, as_json: bool, **options: Unpack[Options]) -> None:
    """End a pause."""
    send(client, as_json, Requests(["/v1/resume"], **options))
