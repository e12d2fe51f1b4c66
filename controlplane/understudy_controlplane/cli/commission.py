"""`understudy commission`: racks and clusters that are accepted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import print_json
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import Subject, names_of

if TYPE_CHECKING:
    from understudy_client import Client

TARGET_HELP = 'TARGET is a host list (c[1-4]) or a domain ("rack r1")'


def _nodes_of(client: Client, target: str) -> Iterable[object]:
    if " " in target:  # the name of a domain
        return [one.node for one in client.get("/v1/commissioning", target=target).nodes]
    return names_of(target, "TARGET")


@click.command("report", help=f"Print which nodes are accepted, and why others are not. {TARGET_HELP}.")
@click.argument("target", required=False)
@click.option("--html", "as_html", is_flag=True, help="HTML instead of Markdown.")
@connected
def report(client: Client, as_json: bool, target: str | None, as_html: bool) -> None:
    if as_json:
        print_json(client.get("/v1/commissioning", target=target))
    else:
        form = "html" if as_html else "text"
        click.echo(client.text("/v1/commissioning", target=target, format=form).rstrip("\n"))


commission = click.Group(
    "commission",
    help="Racks and clusters that are accepted: burn-ins side by side, and the report.",
    commands=[
        request_command(
            "start",
            f"Burn in all nodes of TARGET side by side, as soon as no job uses them. {TARGET_HELP}.",
            "/v1/nodes/{}/burn-in",
            Subject(click.argument("subject", metavar="TARGET"), _nodes_of),
        ),
        report,
    ],
)
