"""`understudy node`: the nodes, and requests about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import DURATION
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, print_item, print_items
from understudy_controlplane.cli.output import date
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client, Node

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
@request_options
@click.option("--for", "for_seconds", type=DURATION, help="Release them after this time, such as 4h.")
@connected
def hold(client: Client, as_json: bool, hosts: str, **options: Unpack[Options]) -> None:
    _send(client, as_json, hosts, "hold", **options)


def _add_verb(verb: str, help_text: str) -> None:
    @node.command(verb, help=f"{help_text} {HOSTS_HELP}")
    @hosts_argument
    @request_options
    @connected
    def request(client: Client, as_json: bool, hosts: str, **options: Unpack[Options]) -> None:
        _send(client, as_json, hosts, verb, **options)


_add_verb(
    "quarantine",
    "Report faulty nodes: they are drained, their gangs move to spares now, and they are repaired and validated, as "
    "far as the budgets for faults allow. `hold` lets jobs end and leaves the node to you.",
)
_add_verb(
    "release",
    "Return nodes to service that are held, retired, quarantined or repaired. Of nodes in service it dismisses what is "
    "known against them.",
)
_add_verb("validate", "Validate nodes in service as soon as no job uses them.")
_add_verb("burn-in", "Repeat the validation of nodes for hours, as soon as no job uses them.")
_add_verb("retire", "Take nodes out of service for good.")


def _send(client: Client, as_json: bool, hosts: str, verb: str, **options: Unpack[Options]) -> None:
    send(client, as_json, Requests([f"/v1/nodes/{name}/{verb}" for name in names_of(hosts)], **options))


@node.command("requests")
@click.argument("name", metavar="[NODE]", required=False)
@limit_option
@connected
def requests(client: Client, as_json: bool, limit: int, name: str | None) -> None:
    """The newest requests of operators, and what became of each."""
    from understudy_client import RequestState

    columns: dict[str, Callable[[RequestState], object]] = {
        "request": lambda one: one.id,
        "at": lambda one: date(one.at),
        "subject": lambda one: one.subject,
        "verb": lambda one: one.verb,
        "by": lambda one: one.by,
        "status": lambda one: one.status,
        "why": lambda one: one.why,
    }
    print_items(client, Listing("/v1/requests", RequestState, columns), as_json, limit, {"node": name})


@node.command("parts")
@click.argument("name", metavar="[NODE]", required=False)
@click.option("--identity", metavar="SERIAL", help="Only this part, by serial number or GUID: wherever it was.")
@limit_option
@connected
def parts(client: Client, as_json: bool, limit: int, name: str | None, identity: str | None) -> None:
    """Places where each board, network card, cable and module was seen, newest first. GPUs: `GET /v1/gpus`."""
    from understudy_client import PartSeen

    columns: dict[str, Callable[[PartSeen], object]] = {
        "part": lambda one: one.kind,
        "serial or GUID": lambda one: one.identity,
        "model": lambda one: one.model,
        "node": lambda one: one.node,
        "place": lambda one: one.place,
        "from": lambda one: date(one.first_seen_at),
        "to": lambda one: date(one.last_seen_at),
    }
    chosen: dict[str, Chosen] = {"node": name, "identity": identity}
    print_items(client, Listing("/v1/parts", PartSeen, columns), as_json, limit, chosen)


@node.command("tests")
@click.argument("name", metavar="[NODE]", required=False)
@click.option("--stage", help="Only this stage, such as disk_write.")
@limit_option
@connected
def tests(client: Client, as_json: bool, limit: int, name: str | None, stage: str | None) -> None:
    """What the stages of validations measured, newest first."""
    from understudy_client import StageMeasured

    columns: dict[str, Callable[[StageMeasured], object]] = {
        "at": lambda one: date(one.at),
        "node": lambda one: one.node,
        "stage": lambda one: one.stage,
        "": lambda one: one.status.replace("_", " "),
        "measured": lambda one: f"{one.value:g} {one.unit}" if one.value is not None else "",
        "why": lambda one: one.why,
        "recovery": lambda one: one.recovery,
    }
    chosen: dict[str, Chosen] = {"node": name, "stage": stage}
    print_items(client, Listing("/v1/stages", StageMeasured, columns), as_json, limit, chosen)


def names_of(hosts: str, hint: str = "HOSTS") -> tuple[str, ...]:
    from understudy_controlplane.fleet.hostlist import HostListError, expand

    try:
        names = expand(hosts)
    except HostListError as error:
        raise click.BadParameter(f"{error}; write c7 or c[1-4,7]", param_hint=hint) from error
    if not names:
        raise click.BadParameter("names no node; write c7 or c[1-4,7]", param_hint=hint)
    return names
