"""`understudy recovery`: what the control plane did after faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, number_argument, print_item, print_items
from understudy_controlplane.cli.output import date
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client, Recovery


@click.group()
def recovery() -> None:
    """Recoveries: what the control plane did after faults."""


@recovery.command("list")
@click.option("--status", help="Only recoveries with this status, such as running.")
@click.option("--kind", help="Only recoveries of this kind.")
@click.option("--job", type=int, help="Only recoveries of this job.")
@click.option("--node", help="Only recoveries of this node.")
@limit_option
@connected
def list_recoveries(client: Client, /, as_json: bool, limit: int, **chosen: Chosen) -> None:
    """The newest recoveries."""
    print_items(client, listing(), as_json, limit, chosen)


def listing() -> Listing[Recovery]:
    from understudy_client import Recovery

    columns: dict[str, Callable[[Recovery], object]] = {
        "recovery": lambda one: one.id,
        "kind": lambda one: one.kind,
        "status": lambda one: one.status,
        "detected": lambda one: date(one.detected_at),
        "nodes": lambda one: " ".join(one.nodes),
        "spares": lambda one: " ".join(one.spares),
        "job": lambda one: one.job.job_id if one.job else "",
        "steps lost": lambda one: one.steps_lost,
        "took": lambda one: "" if one.milliseconds is None else f"{one.milliseconds / 1000:.1f} s",
    }
    return Listing("/v1/recoveries", Recovery, columns)


@recovery.command("show")
@number_argument
@connected
def show(client: Client, as_json: bool, number: int) -> None:
    """One recovery: plan, steps, and the time of each phase."""
    print_item(client, f"/v1/recoveries/{number}", as_json)


@recovery.command("cancel")
@number_argument
@request_options
@connected
def cancel(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Cancel a recovery: what it began is undone, or named in its outcome.

    A quarantined node stays drained, and the move is not repeated for this attempt. A recovery that waits for approval
    is rejected.
    """
    send(client, as_json, Requests([f"/v1/recoveries/{number}/cancel"], **options))


@recovery.command("approve")
@number_argument
@request_options
@connected
def approve(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Approve a recovery that waits for it in mode approve. It is planned again from the newest facts, and what has
    changed since is proposed again.
    """
    send(client, as_json, Requests([f"/v1/recoveries/{number}/approve"], **options))
