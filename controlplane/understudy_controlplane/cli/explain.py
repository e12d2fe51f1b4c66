"""`understudy explain`: why something was done, or was not; and what a code means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.job import job_argument, job_id_of
from understudy_controlplane.cli.options import config_option, config_or_defaults, driver_option, json_option
from understudy_controlplane.cli.output import console, print_json
from understudy_controlplane.fleet.plain_text import one_line

if TYPE_CHECKING:
    from understudy_client import Client, Explanation

code_argument = click.argument("code", type=int)


@click.group()
def explain() -> None:
    """Explain what the control plane did about a node or job, and why; or what a code means and what follows."""


@explain.command("node")
@click.argument("name", metavar="NODE")
@connected
def explain_one_node(client: Client, as_json: bool, name: str) -> None:
    """What a node is now, and why: incidents, recoveries, requests, and decisions, with what guards held back."""
    from understudy_client import Explanation

    _print_explained(client.get(f"/v1/explain/nodes/{name}", Explanation), as_json)


@explain.command("job")
@job_argument
@connected
def explain_one_job(client: Client, as_json: bool, number: int | str) -> None:
    """The same of a job."""
    from understudy_client import Explanation

    _print_explained(client.get(f"/v1/explain/jobs/{job_id_of(client, number)}", Explanation), as_json)


def _print_explained(explained: Explanation, as_json: bool) -> None:
    from understudy_controlplane.cli.explained_subject import lines

    if as_json:
        print_json(explained)
    else:
        for line in lines(explained):
            click.echo(one_line(line))


@explain.command("xid")
@code_argument
@config_option
@driver_option
@json_option
def explain_xid(code: int, config: Path, driver: str, as_json: bool) -> None:
    """Explain an Xid of the driver: class, repair, exceptions, and source."""
    _print("xid", code, config, driver, as_json)


@explain.command("sxid")
@code_argument
@config_option
@json_option
def explain_sxid(code: int, config: Path, as_json: bool) -> None:
    """Explain an SXid of an NVSwitch."""
    _print("sxid", code, config, "", as_json)


def _print(kind: str, code: int, config: Path, driver: str, as_json: bool) -> None:
    from understudy_controlplane.cli.explained_code import draw, explain_code

    explanation = explain_code(kind, code, config_or_defaults(config).xid, driver)
    if as_json:
        print_json(explanation.record)
    else:
        draw(explanation, console())
