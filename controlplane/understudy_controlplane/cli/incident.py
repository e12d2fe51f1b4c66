"""`understudy incident`: what the control plane found wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.evidence import print_evidence
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, number_argument, print_item, print_items
from understudy_controlplane.cli.output import date
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client, Incident


@click.group()
def incident() -> None:
    """Incidents: what the control plane found wrong."""


@incident.command("list")
@click.option("--open/--closed", "open", default=None, help="Only those that are open, or closed.")
@click.option("--subject", help="Only incidents of this node, gang or domain.")
@limit_option
@connected
def list_incidents(client: Client, /, as_json: bool, limit: int, **chosen: Chosen) -> None:
    """The newest incidents."""
    print_items(client, listing(), as_json, limit, chosen)


def listing() -> Listing[Incident]:
    from understudy_client import Incident

    columns: dict[str, Callable[[Incident], object]] = {
        "incident": lambda one: one.id,
        "opened": lambda one: date(one.opened_at),
        "closed": lambda one: date(one.closed_at),
        "subject": lambda one: one.subject,
        "rule": lambda one: one.rule,
        "summary": lambda one: one.summary,
    }
    return Listing("/v1/incidents", Incident, columns)


@incident.command("dismiss")
@number_argument
@request_options
@connected
def dismiss(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """End an incident about a node as a false alarm. You answer for the node: what was known against it counts no more,
    and one that is out of service returns. What is received from now on, or is still read on the node, counts.
    """
    from understudy_client import Incident

    found = client.get(f"/v1/incidents/{number}", Incident)
    if found.closed_at is not None:
        raise click.UsageError(f"incident {number} is over: {found.outcome}")
    if found.subject_kind != "node":
        raise click.UsageError(f"incident {number} is about a {found.subject_kind}: it ends with its cause")
    send(client, as_json, Requests([f"/v1/nodes/{found.subject}/release"], **options))


@incident.command("show")
@number_argument
@click.option(
    "--post-mortem",
    is_flag=True,
    help="As Markdown: cost, timeline, evidence, decisions with reasons, what would have shortened it.",
)
@click.option(
    "--evidence",
    is_flag=True,
    help="What ranks showed before they were ended: stacks, collectives, last lines. For operators and owners of jobs.",
)
@connected
def show(client: Client, as_json: bool, number: int, post_mortem: bool, evidence: bool) -> None:
    """One incident, with its evidence."""
    if evidence and post_mortem:
        raise click.UsageError("--evidence and --post-mortem: choose one of them")
    if evidence:
        print_evidence(client, f"/v1/incidents/{number}/evidence", as_json)
        return
    if post_mortem and as_json:
        raise click.UsageError("--post-mortem is Markdown: leave --json out")
    if post_mortem:
        click.echo(client.text(f"/v1/incidents/{number}/post-mortem", format="text").rstrip("\n"))
    else:
        print_item(client, f"/v1/incidents/{number}", as_json)
