"""`understudy audit`: what people and programs changed, from the database on the control plane's host."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import msgspec
import typer

from understudy_controlplane.cli.database import opened
from understudy_controlplane.cli.offline import DEFAULT_CONFIG, ConfigOption

audit_app = typer.Typer(
    no_args_is_help=True, help="Who changed what. Run it on the control plane's host, as its user or root."
)


@audit_app.command("export")
def export(
    since: Annotated[datetime | None, typer.Option(help="From this time on, in UTC.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Print each entry as a line of JSON, oldest first."""
    from understudy_controlplane.store.audit import entries

    begin = since.replace(tzinfo=UTC).timestamp() if since else 0.0
    with opened(config) as engine:
        for entry in entries(engine, begin):
            typer.echo(msgspec.json.encode(entry).decode())
