"""`understudy maintenance`: nodes out of service for planned work, and back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import FUTURE
from understudy_controlplane.cli.listing import Listing, show_command
from understudy_controlplane.cli.output import Exit, date, fail, show, table_lines
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import NUMBER, names_of

if TYPE_CHECKING:
    from understudy_client import Client, Record


@click.command("start")
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
    named = [name for target in targets for name in _names(target)]
    body = {"targets": named, "until": until, "at_once": at_once}
    if dry_run or not yes:
        (plan,) = client.post("/v1/maintenance", reason, dry_run=True, **body).maintenance
        if dry_run or not as_json:
            show(plan, as_json, _lines)
        if dry_run:
            return
        if not click.confirm("start it?", err=True):
            fail("nothing is started", Exit.FAILED)
    (started,) = client.post("/v1/maintenance", reason, **body).maintenance
    name = f"maintenance {started.id}"
    show(started, as_json, lambda _: [f"{name} is started: `understudy maintenance show {started.id}`"])


def _names(target: str) -> tuple[str, ...]:
    return (target,) if " " in target else names_of(target)


@click.command("show")
@NUMBER.argument
@connected
def show_one(client: Client, as_json: bool, subject: int) -> None:
    """The stage of each node, and what happens to it next."""
    found = next((one for one in client.get("/v1/maintenance").maintenance if one.id == subject), None)
    if found is None:
        fail(f"no maintenance {subject} is under way: `understudy maintenance list`", Exit.FAILED)
    show(found, as_json, _lines)


def _counts(one: Record) -> str:
    stages = [node.stage for node in one.nodes]
    return ", ".join(f"{stages.count(stage)} {stage}" for stage in dict.fromkeys(stages))


def _lines(one: Record) -> list[str]:
    hours = max(one.until - time.time(), 0) / 3600
    rows = ((each.node, each.stage, " ".join(map(str, each.jobs)), each.words) for each in one.nodes)
    return [
        f"{one.status}: {' '.join(one.targets)}, {one.at_once} of {len(one.nodes)} nodes at once",
        f"until {date(one.until)} ({hours:.1f} h): {one.reason}",
        f"{one.spares}\n",
        *table_lines(("node", "stage", "jobs", ""), rows),
    ]


UNDER_WAY = Listing(
    "/v1/maintenance",
    {
        "maintenance": "id",
        "status": "status",
        "targets": "targets",
        "until": "until",
        "nodes": _counts,
        "by": "by",
        "reason": "reason",
    },
)


def _request(verb: str, words: str) -> click.Command:
    return request_command(verb, words, f"/v1/maintenance/{{}}/{verb}", NUMBER)


maintenance = click.Group(
    "maintenance",
    help="Planned work on nodes: drained at a checkpoint, back by their validation.",
    commands=[
        start,
        show_command(
            "list", "What is under way.", UNDER_WAY.path, lines=lambda found: UNDER_WAY.lines(found.maintenance)
        ),
        show_one,
        _request("pause", "Take no further node, and move no further gang."),
        _request("resume", "Go on after a pause."),
        _request("end", "End it before its time: its nodes return by their validation."),
    ],
)
