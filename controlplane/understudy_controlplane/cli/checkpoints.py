"""`understudy checkpoints`: what jobs announced."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.job import JOB, job_id_of
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, print_items
from understudy_controlplane.cli.output import date

if TYPE_CHECKING:
    from understudy_client import Checkpoint, Client


@click.command()
@click.option("--job", type=JOB, help="Only checkpoints of this job.")
@limit_option
@connected
def checkpoints(client: Client, /, as_json: bool, limit: int, job: int | str | None, **chosen: Chosen) -> None:
    """The newest checkpoints, complete or not."""
    if job is not None:
        chosen["job"] = job_id_of(client, job)
    print_items(client, listing(), as_json, limit, chosen)


def listing() -> Listing[Checkpoint]:
    from understudy_client import Checkpoint

    columns: dict[str, Callable[[Checkpoint], object]] = {
        "job": lambda one: one.job_id,
        "step": lambda one: one.step,
        "at": lambda one: date(one.at),
        "shards": lambda one: f"{one.shards}/{one.world_size}",
        "path": lambda one: one.path,
        "suspect": lambda one: one.suspect,
    }
    return Listing("/v1/checkpoints", Checkpoint, columns)
