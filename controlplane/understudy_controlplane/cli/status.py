"""`understudy status`: counts, and what needs a person. It reads no list, so it is as fast on a large fleet."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import in_words
from understudy_controlplane.cli.output import Exit, date
from understudy_controlplane.cli.output import show as show_it

if TYPE_CHECKING:
    from understudy_client import Client, Record

NEEDS_MAX = 10
MODES = {
    "observe": ": decides and records, changes nothing",
    "approve": ": each recovery waits for an operator",
}


@click.command()
@click.option("--check", is_flag=True, help="Exit with 6 where something needs a person.")
@connected
def status(client: Client, as_json: bool, check: bool) -> None:
    """Counts, and what needs a person, since when, and the command that ends it."""
    if show(client, as_json) and check:
        sys.exit(Exit.PERSON_NEEDED)


def show(client: Client, as_json: bool) -> bool:
    """True if something needs a person."""
    found = client.get("/v1/status")
    show_it(found, as_json, lambda _: lines(found, time.time()))
    return bool(found.problems)


def lines(status: Record, now: float) -> list[str]:
    states = sorted(status.nodes.items(), key=lambda one: -one[1])
    nodes = ", ".join(f"{count:,} {state}" for state, count in states)
    slurm, loop = status.slurm, status.loop
    read = f"read {max(now - slurm.read_at, 0):.0f} s ago" if slurm.read_at else "not read yet"
    shown = [
        f"cluster     {status.cluster}",
        f"mode        {mode_line(status)}",
        f"paused      {status.paused or 'no'}{f', until {date(status.paused_until)}' if status.paused_until else ''}",
        *([f"paused jobs {', '.join(map(str, status.paused_jobs))}"] if status.paused_jobs else []),
        f"breaker     {f'open: {status.breaker}' if status.breaker else 'closed'}",
        f"nodes       {sum(status.nodes.values()):,}{f': {nodes}' if nodes else ''}",
        f"spares      {status.spares.held} of {status.spares.wanted}",
        f"incidents   {status.incidents_open} open",
        f"recoveries  {status.recoveries_running} running",
        f"Slurm       {read}",
        f"loop        ticked {max(now - loop.last_tick_at, 0):.0f} s ago, in {loop.tick_seconds:.3f} s",
    ]
    return shown + _lead(status, now) + _needs(status, now)


def _lead(status: Record, now: float) -> list[str]:
    lead = status.lead
    if lead is None:
        return []
    others = [
        one.name if one.stands_by else f"{one.name} does not, last seen {in_words(max(now - one.seen_at, 0.0))} ago"
        for one in lead.others
    ]
    return [
        f"leads       {lead.url} since {date(lead.since)}, term {lead.term}",
        f"stands by   {'; '.join(others) or 'none'}",
    ]


def mode_line(status: Record) -> str:
    limit = ""
    if status.mode_limit:
        until = f", until {date(status.mode_limit_until)}" if status.mode_limit_until else ""
        limit = f"; configured: {status.mode_configured}; limited by {status.mode_limit}{until}"
    parts = ", ".join(f"{mode} on {count:,} nodes" for mode, count in status.mode_nodes.items())
    return f"{parts or status.mode}{'' if parts else MODES.get(status.mode, '')}{limit}"


def _needs(status: Record, now: float) -> list[str]:
    if status.problems is None:
        return []
    if not status.problems:
        return ["nothing needs a person"]
    texts = [f"{_age(one.since, now)}{one.why}{f': {one.command}' if one.command else ''}" for one in status.needs]
    more = status.needs_count - NEEDS_MAX
    rest = [f"  and {more} more: `understudy status --json`"] if more > 0 else []
    return ["needs a person:", *(f"  {text}" for text in texts[:NEEDS_MAX]), *rest]


def _age(since: float | None, now: float) -> str:
    return f"for {in_words(max(now - since, 0.0))}: " if since is not None else ""
