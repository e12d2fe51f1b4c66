"""`understudy audit`: what people and programs changed, from the database on the control plane's host."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from understudy_controlplane.cli.database import opened
from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.options import config_option


@click.group()
def audit() -> None:
    """Who changed what. Run it on the control plane's host, as its user or root."""


@audit.command("export")
@click.option("--since", type=PAST, default=0.0, help="From then on: 2h for two hours ago, or a time in UTC.")
@config_option
def export(since: float, config: Path) -> None:
    """Print each entry as a line of JSON, oldest first."""
    from understudy_controlplane.store.audit import entries

    with opened(config) as engine:
        for entry in entries(engine, since):
            click.echo(msgspec.json.encode(entry))
