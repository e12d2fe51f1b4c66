"""`understudy report`: what happened in a span of time, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import PAST

if TYPE_CHECKING:
    from understudy_client import Client


@click.command()
@click.option("--since", type=PAST, help="From then on: 30d for a month ago, or a time in UTC; else 7 days.")
@click.option("--until", type=PAST, help="Up to then; else now.")
@click.option(
    "--gpu-hour-price",
    type=click.FloatRange(min=0, min_open=True),
    help="Of one GPU for an hour, in any currency; else checkpoints.gpu_hour_price of the control plane.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "html", "csv"]),
    help="Text is Markdown and the default; HTML is one file with plots.",
)
@connected
def report(
    client: Client,
    as_json: bool,
    since: float | None,
    until: float | None,
    gpu_hour_price: float | None,
    form: str | None,
) -> None:
    """Print what happened and what it cost: interruptions by cause, hours lost by job and owner, spares, lemons, false
    alarms, incidents, recoveries, quarantines, what guards held back.
    """
    asked = form or ("json" if as_json else "text")
    text = client.text("/v1/report", since=since, until=until, gpu_hour_price=gpu_hour_price, format=asked)
    if asked == "json":
        import msgspec

        text = msgspec.json.format(text, indent=2)
    click.echo(text.rstrip("\n"))
