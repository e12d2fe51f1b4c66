"""`understudy node`: the nodes, and requests about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected, exit_code
from understudy_controlplane.cli.listing import Chosen, Listing, print_item, print_items
from understudy_controlplane.cli.output import Exit, date, note, print_json
from understudy_controlplane.cli.requests import observes, reason_argument, report

if TYPE_CHECKING:
    from understudy_client import Client, Node, Record

HOSTS_HELP = "HOSTS is a host list, such as c7 or c[1-4,7]."
hosts_argument = click.argument("hosts")


@click.group()
def node() -> None:
    """Nodes: show them, and take them out of service or return them."""


@node.command("list", help=f"All nodes, or those of HOSTS. {HOSTS_HELP}")
@click.argument("names", metavar="[HOSTS]", required=False)
@click.option("--state", help="Only nodes in this state, such as quarantined.")
@click.option("--spare", is_flag=True, default=None, help="Only spares.")
@click.option("--job", type=int, help="Only nodes of this job.")
@connected
def list_nodes(client: Client, /, as_json: bool, **chosen: Chosen) -> None:
    print_items(client, node_listing(), as_json, None, chosen)


def node_listing() -> Listing[Node]:
    from understudy_client import Node

    columns: dict[str, Callable[[Node], object]] = {
        "node": lambda one: one.name,
        "state": lambda one: "spare" if one.spare and one.state == "in_service" else one.state,
        "since": lambda one: date(one.since),
        "slurm": lambda one: one.slurm or "unknown",
        "GPUs": lambda one: f"{one.gpus_ok}/{one.gpus}",
        "jobs": lambda one: " ".join(map(str, one.jobs)),
        "reason": lambda one: one.reason,
    }
    return Listing("/v1/nodes", Node, columns)


@node.command("show")
@click.argument("name")
@connected
def show(client: Client, as_json: bool, name: str) -> None:
    """All that the control plane knows of a node."""
    print_item(client, f"/v1/nodes/{name}", as_json)


@node.command("hold", help=f"Take nodes out of service until they are released; their jobs end first. {HOSTS_HELP}")
@hosts_argument
@reason_argument
@connected
def hold(client: Client, as_json: bool, hosts: str, reason: str) -> None:
    _request(client, as_json, hosts, "hold", reason)


@node.command("release", help=f"Return nodes to service that are held, retired, quarantined or repaired. {HOSTS_HELP}")
@hosts_argument
@reason_argument
@connected
def release(client: Client, as_json: bool, hosts: str, reason: str) -> None:
    _request(client, as_json, hosts, "release", reason)


@node.command("validate", help=f"Validate nodes in service as soon as no job uses them. {HOSTS_HELP}")
@hosts_argument
@reason_argument
@connected
def validate(client: Client, as_json: bool, hosts: str, reason: str) -> None:
    _request(client, as_json, hosts, "validate", reason)


@node.command("burn-in", help=f"Repeat the validation of nodes for hours, as soon as no job uses them. {HOSTS_HELP}")
@hosts_argument
@reason_argument
@connected
def burn_in(client: Client, as_json: bool, hosts: str, reason: str) -> None:
    _request(client, as_json, hosts, "burn-in", reason)


@node.command("retire", help=f"Take nodes out of service for good. {HOSTS_HELP}")
@hosts_argument
@reason_argument
@connected
def retire(client: Client, as_json: bool, hosts: str, reason: str) -> None:
    _request(client, as_json, hosts, "retire", reason)


def _request(client: Client, as_json: bool, hosts: str, verb: str, reason: str) -> None:
    """One request for each node. A refused one does not stop the others; the exit code is that of the first refusal."""
    from understudy_client import RefusedError

    answers: list[Record] = []
    refused = Exit.DONE
    observed = observes(client)
    for name in names_of(hosts):
        try:
            answers.append(client.post(f"/v1/nodes/{name}/{verb}", dict, reason))
        except RefusedError as error:
            note(str(error))
            refused = refused or exit_code(error)
        else:
            outcome = report(name, observed, quiet=as_json)
    if as_json:
        print_json(answers)
    raise SystemExit(refused or (outcome if answers else Exit.DONE))


def names_of(hosts: str) -> tuple[str, ...]:
    from understudy_controlplane.slurm.hostlist import HostListError, expand

    try:
        names = expand(hosts)
    except HostListError as error:
        raise click.BadParameter(f"{error}; write c7 or c[1-4,7]", param_hint="HOSTS") from error
    if not names:
        raise click.BadParameter("names no node; write c7 or c[1-4,7]", param_hint="HOSTS")
    return names
