"""`understudy audit`: what people and programs changed, from the database on the control plane's host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from understudy_controlplane.cli.database import opened
from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.options import config_option
from understudy_controlplane.cli.output import note

if TYPE_CHECKING:
    from understudy_controlplane.store.database import Engine

FOLLOW_SECONDS = 2.0
OVERLAP = 100
"""Entries that are looked for again: on PostgreSQL one with a lower id may be committed later."""


@click.group()
def audit() -> None:
    """Who changed what. Run it on the control plane's host, as its user or root."""


@audit.command("export")
@click.option("--since", type=PAST, default=0.0, help="From then on: 2h for two hours ago, or a time in UTC.")
@click.option("--follow", is_flag=True, help="Go on: print each entry when it is written, for syslog or the journal.")
@config_option
def export(since: float, follow: bool, config: Path) -> None:
    """Print each entry as a line of JSON, oldest first."""
    with opened(config) as engine:
        for entry in exported(engine, since, (lambda: time.sleep(FOLLOW_SECONDS)) if follow else None):
            click.echo(msgspec.json.encode(entry))


def exported(engine: Engine, since: float, wait: Callable[[], None] | None) -> Iterator[dict[str, Any]]:
    """With `wait` without end. Raises StoreError only before the first entry: later the database may be away."""
    from understudy_controlplane.store.audit import entries
    from understudy_controlplane.store.database import StoreError

    printed: set[int] = set()
    while True:
        last = max(printed, default=0)
        printed = {number for number in printed if number > last - OVERLAP}
        try:
            for entry in entries(engine, since, last - OVERLAP):
                if entry["id"] not in printed:
                    printed.add(entry["id"])
                    yield entry
        except StoreError as error:
            if not last:
                raise
            note(f"the database does not answer: {type(error).__name__}; it is asked again")
        if wait is None:
            return
        wait()
