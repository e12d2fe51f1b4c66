"""`understudy pause` and `resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.requests import print_switched, reason_argument

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
    from understudy_client import Accepted

    print_switched(client.post(f"/v1/{verb}", Accepted, reason, now=now), as_json)
