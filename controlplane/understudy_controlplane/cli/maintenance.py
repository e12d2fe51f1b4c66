"""`understudy maintenance`: nodes out of service for planned work, and back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import FUTURE
from understudy_controlplane.cli.listing import number_argument
from understudy_controlplane.cli.output import Exit, date, fail, print_json, print_table
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client, Maintenance


@click.group()
def maintenance() -> None:
    """Planned work on nodes: drained at a checkpoint, back by their validation."""


@maintenance.command("start")
@click.argument("targets", nargs=-1, required=True)
@click.option("--until", type=FUTURE, required=True, help="When the nodes return: 4h, or 2026-01-31T18:00 in UTC.")
@click.option("--reason", required=True)
@click.option("--at-once", type=click.IntRange(min=1), help="Nodes out of service at the same time. Without it: all.")
@click.option("--dry-run", is_flag=True, help="Print the plan; start nothing.")
@click.option("--yes", is_flag=True, help="Do not ask after the plan is printed.")
@connected
def start(  # noqa: PLR0913, PLR0917 - its options
    client: Client,
    /,
    as_json: bool,
    targets: tuple[str, ...],
    until: float,
    reason: str,
    at_once: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Print the plan, and start it. TARGETS are host lists (c[1-4]) and domains ("rack r1")."""
    from understudy_client import Maintenances

    named = [name for target in targets for name in _names(target)]
    body = {"targets": named, "until": until, "at_once": at_once}
    if dry_run or not yes:
        (plan,) = client.post("/v1/maintenance", Maintenances, reason, dry_run=True, **body).maintenance
        if not as_json:
            _print(plan)
        if dry_run:
            if as_json:
                print_json(plan)
            return
        if not click.confirm("start it?", err=True):
            fail("nothing is started", Exit.FAILED)
    (started,) = client.post("/v1/maintenance", Maintenances, reason, **body).maintenance
    if as_json:
        print_json(started)
    else:
        click.echo(f"maintenance {started.id} is started: `understudy maintenance show {started.id}`")


def _names(target: str) -> tuple[str, ...]:
    from understudy_controlplane.cli.node import names_of

    return (target,) if " " in target else tuple(names_of(target))


@maintenance.command("list")
@connected
def list_maintenance(client: Client, as_json: bool) -> None:
    """What is under way."""
    if as_json:
        print_json(client.get("/v1/maintenance", dict))
        return
    rows = (
        (one.id, one.status, " ".join(one.targets), date(one.until), _counts(one), one.by, one.reason)
        for one in _all(client)
    )
    print_table(("maintenance", "status", "targets", "until", "nodes", "by", "reason"), rows)


@maintenance.command("show")
@number_argument
@connected
def show(client: Client, as_json: bool, number: int) -> None:
    """The stage of each node, and what happens to it next."""
    found = next((one for one in _all(client) if one.id == number), None)
    if found is None:
        fail(f"no maintenance {number} is under way: `understudy maintenance list`", Exit.FAILED)
    if as_json:
        print_json(found)
    else:
        _print(found)


@maintenance.command("pause")
@number_argument
@request_options
@connected
def pause(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Take no further node, and move no further gang."""
    send(client, as_json, Requests([f"/v1/maintenance/{number}/pause"], **options))


@maintenance.command("resume")
@number_argument
@request_options
@connected
def resume(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """Go on after a pause."""
    send(client, as_json, Requests([f"/v1/maintenance/{number}/resume"], **options))


@maintenance.command("end")
@number_argument
@request_options
@connected
def end(client: Client, as_json: bool, number: int, **options: Unpack[Options]) -> None:
    """End it before its time: its nodes return by their validation."""
    send(client, as_json, Requests([f"/v1/maintenance/{number}/end"], **options))


def _all(client: Client) -> tuple[Maintenance, ...]:
    from understudy_client import Maintenances

    return client.get("/v1/maintenance", Maintenances).maintenance


def _counts(one: Maintenance) -> str:
    stages = [node.stage for node in one.nodes]
    return ", ".join(f"{stages.count(stage)} {stage}" for stage in dict.fromkeys(stages))


def _print(one: Maintenance) -> None:
    hours = max(one.until - time.time(), 0) / 3600
    click.echo(f"{one.status}: {' '.join(one.targets)}, {one.at_once} of {len(one.nodes)} nodes at once")
    click.echo(f"until {date(one.until)} ({hours:.1f} h): {one.reason}")
    click.echo(f"{one.spares}\n")
    print_table(
        ("node", "stage", "jobs", ""), ((n.node, n.stage, " ".join(map(str, n.jobs)), n.words) for n in one.nodes)
    )
