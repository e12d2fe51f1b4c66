"""`understudy inject`: drills."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import one_line, print_json

if TYPE_CHECKING:
    from understudy_client import Client, Drill


@click.command()
@click.argument("node")
@click.argument("xid", metavar="XID", type=click.IntRange(1, 1000))
@click.argument("reason")
@click.option("--really", is_flag=True, help="Inject it: the node is drained, its gang moves, people are notified.")
@connected
def inject(client: Client, as_json: bool, node: str, xid: int, reason: str, really: bool) -> None:
    """Print what would follow if the driver of NODE logged this Xid now; nothing is recorded or changed.

    With --really it is injected, marked as a drill, and the node then returns as after any fault: by its validation, or
    by `understudy node release`.
    """
    from understudy_client import Drill

    drill = client.post("/v1/drills", Drill, reason, node=node, xid=xid, really=really)
    if as_json:
        print_json(drill)
        return
    for line in lines(drill):
        click.echo(one_line(line))


def lines(drill: Drill) -> list[str]:
    shown = [f"{drill.node} logs: {drill.line}"]
    for one in drill.decisions:
        because = "" if one.because == "rule" else f", because of {one.because}"
        shown.append(f"{one.action} {one.subject}{because} (row {one.row}): {one.reason}")
        if one.steps:
            shown.append(f"  steps: {', '.join(one.steps)}")
    if not drill.decisions:
        shown.append("no decision follows from it")
    if drill.request is not None:
        return [
            *shown,
            f"injected (request {drill.request}): `understudy explain node {drill.node}` shows what follows",
        ]
    observes = "; in mode observe nothing of it would be carried out" if drill.mode == "observe" else ""
    return [*shown, f"nothing was injected{observes}"]
