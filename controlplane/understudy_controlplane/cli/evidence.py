"""What ranks showed before they were ended, for `understudy incident show --evidence` and `understudy job evidence`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.output import date, print_json

if TYPE_CHECKING:
    from understudy_client import Client

NONE = "nothing was kept: no gang was ended because it hung, and no rank failed, or its launcher had no agent"


def print_evidence(client: Client, path: str, as_json: bool) -> None:
    from understudy_client import EvidenceList

    if as_json:
        print_json(client.get(path, dict))
        return
    found = client.get(path, EvidenceList).items
    for one in found:
        click.echo(
            f"### job {one.job_id}, launch {one.launch}, {one.kind}, {date(one.at)}: {one.summary}\n\n{one.text}\n"
        )
    if not found:
        click.echo(NONE)
