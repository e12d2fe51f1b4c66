"""`understudy events`: what happens, as it happens."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.output import date, note
from understudy_controlplane.fleet.event import EventKind
from understudy_controlplane.fleet.plain_text import one_line

if TYPE_CHECKING:
    from understudy_client import Client, EventStream, Record

RECONNECT_SECONDS = 1.0
kinds_choice = click.Choice([kind.value for kind in EventKind])


@click.command()
@click.option("--kind", "kinds", type=kinds_choice, multiple=True, help="Only events of this kind; can be repeated.")
@click.option("--node", help="Only events that concern this node.")
@click.option("--job", type=click.IntRange(min=0), help="Only events of this job.")
@click.option("--after", default="", metavar="ID", help="Begin behind this event: an `id` that --json printed.")
@connected
def events(
    client: Client, as_json: bool, kinds: tuple[str, ...], node: str | None, job: int | None, after: str
) -> None:
    """Print what happens, as it happens, until you interrupt it.

    A connection that is lost is made again, and no event is left out. With --json each line is an event.
    """
    follow(client.events(after, kinds=list(kinds) or None, node=node, job=job), as_json)


def follow(stream: EventStream, as_json: bool) -> None:
    """Ends with a ClientError only."""
    from understudy_client import UnreachableError

    is_lost = False
    while True:
        try:
            for event in stream:
                is_lost = False
                click.echo(json.dumps({"id": stream.last_id, **event}, ensure_ascii=False) if as_json else _line(event))
        except UnreachableError as error:
            if not stream.has_answered:
                raise
            if not is_lost:
                note(f"{error}; tried again until it answers")
            is_lost = True
        time.sleep(RECONNECT_SECONDS)


def _line(event: Record) -> str:
    job = "" if event.job is None or event.subject == f"job {event.job}" else f" (job {event.job})"
    return one_line(f"{date(event.at)} {event.kind} {event.number} {event.subject}{job}: {event.text}")
