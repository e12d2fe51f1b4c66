"""`understudy spare`: the pool of hot spares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import DURATION
from understudy_controlplane.cli.listing import print_item, print_items
from understudy_controlplane.cli.node import HOSTS_HELP, hosts_argument, names_of, node_listing
from understudy_controlplane.cli.output import print_fields, print_json
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client


@click.group()
def spare() -> None:
    """The pool of hot spares."""


@spare.command("list")
@connected
def list_spares(client: Client, as_json: bool) -> None:
    """The nodes that the pool holds."""
    print_items(client, node_listing(), as_json, None, {"spare": True})


@spare.command("show")
@connected
def show(client: Client, as_json: bool) -> None:
    """How many spares are wanted, by whom, and who holds which reservation of the control plane."""
    print_item(client, "/v1/spares", as_json)


@spare.command("explain")
@click.argument("job", type=click.IntRange(min=0))
@click.option("--node", help="That fails; without it the first of the job.")
@connected
def explain(client: Client, as_json: bool, job: int, node: str | None) -> None:
    """What if: the spare that the job's gang would get if it lost a node now, and why not the others."""
    found = client.get(f"/v1/spares/explain/{job}", dict, node=node)
    if as_json:
        print_json(found)
    else:
        print_fields(found)


@spare.command("size")
@click.argument("size", type=click.IntRange(min=0))
@request_options
@connected
def size(client: Client, as_json: bool, size: int, **options: Unpack[Options]) -> None:
    """Set how many spares the pool is to hold, also over a restart. Spares beyond a smaller number leave it at once."""
    send(client, as_json, Requests(["/v1/spares/size"], size=size, **options))


@spare.command("size-as-configured")
@request_options
@connected
def size_as_configured(client: Client, as_json: bool, **options: Unpack[Options]) -> None:
    """Hold as many spares as the configuration asks for again."""
    send(client, as_json, Requests(["/v1/spares/size"], **options))


for_option = click.option(
    "--for", "for_seconds", type=DURATION, help="For this time, such as 4h; then the control plane chooses again."
)


@spare.command(
    "add",
    help="Have nodes in the pool whenever no job uses them, besides those that the control plane chooses. "
    + HOSTS_HELP,
)
@hosts_argument
@request_options
@for_option
@connected
def add(client: Client, as_json: bool, hosts: str, **options: Unpack[Options]) -> None:
    _choose(client, as_json, hosts, "add", **options)


@spare.command("remove", help=f"Take nodes out of the pool, and keep them out. {HOSTS_HELP}")
@hosts_argument
@request_options
@for_option
@connected
def remove(client: Client, as_json: bool, hosts: str, **options: Unpack[Options]) -> None:
    _choose(client, as_json, hosts, "remove", **options)


@spare.command("forget", help=f"Let the control plane choose again whether these nodes are in the pool. {HOSTS_HELP}")
@hosts_argument
@request_options
@connected
def forget(client: Client, as_json: bool, hosts: str, **options: Unpack[Options]) -> None:
    _choose(client, as_json, hosts, "forget", **options)


def _choose(client: Client, as_json: bool, hosts: str, verb: str, **options: Unpack[Options]) -> None:
    send(client, as_json, Requests([f"/v1/spares/{name}/{verb}" for name in names_of(hosts)], **options))
