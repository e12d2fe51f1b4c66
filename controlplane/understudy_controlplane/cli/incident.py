"""`understudy incident`: what the control plane found wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import Listing, limit_option, list_command
from understudy_controlplane.cli.output import date, record_lines, show
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import NUMBER, Subject
from understudy_controlplane.cli.ticket import open_option

if TYPE_CHECKING:
    from understudy_client import Client, Record

INCIDENTS = Listing(
    "/v1/incidents",
    {
        "incident": "id",
        "opened": "opened_at",
        "closed": "closed_at",
        "subject": "subject",
        "rule": "rule",
        "summary": "summary",
    },
)


def _node_of(client: Client, number: int) -> Iterable[object]:
    found = client.get(f"/v1/incidents/{number}")
    if found.closed_at is not None:
        raise click.UsageError(f"incident {number} is over: {found.outcome}")
    if found.subject_kind != "node":
        raise click.UsageError(f"incident {number} is about a {found.subject_kind}: it ends with its cause")
    return (found.subject,)


def evidence_lines(found: Record) -> Iterator[str]:
    """What ranks showed before they were ended."""
    for one in found["items"]:
        yield f"### job {one.job_id}, launch {one.launch}, {one.kind}, {date(one.at)}: {one.summary}\n\n{one.text}\n"
    if not found["items"]:
        yield "nothing was kept: no gang was ended because it hung, and no rank failed, or its launcher had no agent"


incident = click.Group(
    "incident",
    help="Incidents: what the control plane found wrong.",
    commands=[
        list_command(
            "list",
            "The newest incidents.",
            INCIDENTS,
            open_option,
            click.option("--subject", help="Only incidents of this node, gang or domain."),
            limit_option,
        ),
        request_command(
            "dismiss",
            "End an incident about a node as a false alarm. You answer for the node: what was known against it counts "
            "no more, and one that is out of service returns. What is received from now on, or is still read on the "
            "node, counts.",
            "/v1/nodes/{}/release",
            Subject(NUMBER.argument, _node_of),
        ),
    ],
)


@incident.command("show")
@NUMBER.argument
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
def show_incident(client: Client, as_json: bool, subject: Any, post_mortem: bool, evidence: bool) -> None:
    """One incident, with its evidence."""
    path = f"/v1/incidents/{subject}"
    if evidence and post_mortem:
        raise click.UsageError("--evidence and --post-mortem: choose one of them")
    if post_mortem and as_json:
        raise click.UsageError("--post-mortem is Markdown: leave --json out")
    if post_mortem:
        click.echo(client.text(f"{path}/post-mortem", format="text").rstrip("\n"))
    elif evidence:
        show(client.get(f"{path}/evidence"), as_json, evidence_lines)
    else:
        show(client.get(path), as_json, record_lines)
