"""`understudy inject`: drills."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import DURATION
from understudy_controlplane.cli.output import date, show
from understudy_controlplane.cli.requests import send
from understudy_controlplane.fleet.plain_text import one_line

if TYPE_CHECKING:
    from understudy_client import Client, Record

END = 0


XID = click.IntRange(1, 1000)


class XidOrEnd(click.ParamType[int]):
    """The word `end` is END."""

    name = "xid"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return END if value == "end" else int(XID(value, param, ctx))


@click.command()
@click.argument("node")
@click.argument("xid", metavar="{XID|end}", type=XidOrEnd())
@click.argument("reason")
@click.option("--really", is_flag=True, help="Inject it: the node is drained, its gang moves, people are notified.")
@click.option("--for", "for_seconds", type=DURATION, help="With --really: end the drill after this time, not 1h.")
@connected
def inject(client: Client, /, as_json: bool, node: str, xid: int, reason: str, **options: Any) -> None:
    """Print what would follow if the driver of NODE logged this Xid now; nothing is recorded or changed.

    With --really it is injected, marked as a drill. The drill ends after an hour, or by `understudy inject NODE end
    REASON`; then the node returns, unless more than the drill speaks against it.
    """
    if xid == END:
        send(client, as_json, [f"/v1/nodes/{node}/end-drill"], reason=reason)
        return
    if options["for_seconds"] is not None and not options["really"]:
        raise click.UsageError("--for needs --really: without it nothing is injected")
    drill = client.post("/v1/drills", reason, node=node, xid=xid, **options)
    show(drill, as_json, lambda _: map(one_line, lines(drill)))


def lines(drill: Record) -> list[str]:
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
            f"injected (request {drill.request}), until {date(drill.until)} UTC: "
            f"`understudy explain node {drill.node}` shows what follows",
        ]
    observes = "; in mode observe nothing of it would be carried out" if drill.mode == "observe" else ""
    return [*shown, f"nothing was injected{observes}; with --really it is"]
