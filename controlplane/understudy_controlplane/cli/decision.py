"""`understudy decision`: what the control plane decided, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, number_argument, print_item, print_items
from understudy_controlplane.cli.output import date
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client, Decision


@click.group()
def decision() -> None:
    """Decisions and their reasons; decisions to do nothing too."""


@decision.command("list")
@click.option("--since", type=PAST, help="Only later ones: 2h for two hours ago, or a time in UTC.")
@click.option("--until", type=PAST, help="Only earlier ones.")
@click.option("--subject", help="Only decisions about this node, job or part of the cluster.")
@click.option("--action", help="Only decisions for this action, such as quarantine.")
@limit_option
@connected
def list_decisions(client: Client, /, as_json: bool, limit: int, **chosen: Chosen) -> None:
    """The newest decisions."""
    print_items(client, listing(), as_json, limit, chosen)


def listing() -> Listing[Decision]:
    from understudy_client import Decision

    columns: dict[str, Callable[[Decision], object]] = {
        "decision": lambda one: one.id,
        "at": lambda one: date(one.at),
        "subject": lambda one: one.subject,
        "action": lambda one: one.action,
        "row": lambda one: one.table_row,
        "reason": lambda one: one.reason,
    }
    return Listing("/v1/decisions", Decision, columns)


@decision.command("show")
@number_argument
@connected
def show(client: Client, as_json: bool, number: int) -> None:
    """One decision, with its evidence."""
    print_item(client, f"/v1/decisions/{number}", as_json)


@decision.command("agree")
@number_argument
@request_options
@connected
def agree(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Agree with a decision that was only observed: `understudy observed` counts it for its rule."""
    send(client, as_json, Requests([f"/v1/decisions/{number}/agree"], **options))


@decision.command("disagree")
@number_argument
@request_options
@connected
def disagree(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Disagree with a decision that was only observed."""
    send(client, as_json, Requests([f"/v1/decisions/{number}/disagree"], **options))
