"""`understudy signal`: what other systems of the site report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import number_argument
from understudy_controlplane.cli.output import date, print_json, print_table
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client

COLUMNS = ("signal", "kind", "effect", "targets", "source", "since", "until", "summary")


@click.group()
def signal() -> None:
    """Signals of other systems of the site: leaks, power, fabric, planned outages."""


@signal.command("list")
@connected
def list_signals(client: Client, as_json: bool) -> None:
    """Those that are live."""
    if as_json:
        print_json(client.get("/v1/signals", dict))
        return
    from understudy_client import Signals

    found = client.get("/v1/signals", Signals).signals
    rows = (
        (one.id, one.kind, one.effect, ", ".join(one.targets), one.source, date(one.at), date(one.until), one.summary)
        for one in found
    )
    print_table(COLUMNS, rows)


@signal.command("end")
@number_argument
@request_options
@connected
def end(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """End a signal that is wrong."""
    send(client, as_json, Requests([f"/v1/signals/{number}/end"], **options))
