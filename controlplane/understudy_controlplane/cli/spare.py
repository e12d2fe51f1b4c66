"""`understudy spare`: the pool of hot spares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.listing import show_command
from understudy_controlplane.cli.node import NODES
from understudy_controlplane.cli.output import show
from understudy_controlplane.cli.requests import for_option, request_command
from understudy_controlplane.cli.subjects import HOSTS, HOSTS_HELP, JOB, Parameter, of_fleet

if TYPE_CHECKING:
    from understudy_client import Client

a_while = for_option("For this time, such as 4h; then the control plane chooses again.")
SIZE = of_fleet(click.argument("size", type=click.IntRange(min=0)))


@click.command("list")
@connected
def list_spares(client: Client, as_json: bool) -> None:
    """The nodes that the pool holds."""
    show(client.items(NODES.path, spare=True), as_json, NODES.lines)


def _choice(verb: str, words: str, *options: Parameter) -> click.Command:
    return request_command(verb, f"{words} {HOSTS_HELP}", f"/v1/spares/{{}}/{verb}", HOSTS, *options)


spare = click.Group(
    "spare",
    help="The pool of hot spares.",
    commands=[
        list_spares,
        show_command(
            "show",
            "How many spares are wanted, by whom, and who holds which reservation of the control plane.",
            "/v1/spares",
        ),
        show_command(
            "explain",
            "What if: the spare that the job's gang would get if it lost a node now, and why not the others.",
            "/v1/spares/explain/{}",
            JOB,
            click.option("--node", help="That fails; without it the first of the job."),
        ),
        request_command(
            "size",
            "Set how many spares the pool is to hold, also over a restart. Spares beyond a smaller number leave it at "
            "once.",
            "/v1/spares/size",
            SIZE,
        ),
        request_command(
            "size-as-configured", "Hold as many spares as the configuration asks for again.", "/v1/spares/size"
        ),
        _choice(
            "add",
            "Have nodes in the pool whenever no job uses them, besides those that the control plane chooses.",
            a_while,
        ),
        _choice("remove", "Take nodes out of the pool, and keep them out.", a_while),
        _choice("forget", "Let the control plane choose again whether these nodes are in the pool."),
    ],
)
