"""`understudy audit`: what people and programs changed, from the database on the control plane's host."""

from __future__ import annotations

import time
from pathlib import Path

import click
import msgspec

from understudy_controlplane.cli.database import opened
from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.options import config_option

FOLLOW_SECONDS = 2.0


@click.group()
def audit() -> None:
    """Who changed what. Run it on the control plane's host, as its user or root."""


@audit.command("export")
@click.option("--since", type=PAST, default=0.0, help="From then on: 2h for two hours ago, or a time in UTC.")
@click.option("--follow", is_flag=True, help="Go on: print each entry when it is written, for syslog or the journal.")
@config_option
def export(since: float, follow: bool, config: Path) -> None:
    """Print each entry as a line of JSON, oldest first."""
    from understudy_controlplane.store.audit import followed

    with opened(config) as engine:
        for entry in followed(engine, since, lambda: follow and _wait()):
            click.echo(msgspec.json.encode(entry))


def _wait() -> bool:
    time.sleep(FOLLOW_SECONDS)
    return True
