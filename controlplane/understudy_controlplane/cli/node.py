"""`understudy node`: the nodes, and requests about them."""

from __future__ import annotations

import click

from understudy_controlplane.cli.listing import Listing, limit_option, list_command, show_command
from understudy_controlplane.cli.requests import for_option, request_command
from understudy_controlplane.cli.subjects import (
    HOSTS,
    HOSTS_HELP,
    NODE,
    NODES_KNOWN,
    Parameter,
    among,
    node_states,
    one_of,
)

NODES = Listing(
    "/v1/nodes",
    {
        "node": "name",
        "state": lambda one: "spare" if one.spare and one.state == "in_service" else one.state,
        "since": "since",
        "slurm": lambda one: one.slurm or "unknown",
        "GPUs": lambda one: f"{one.gpus_ok}/{one.gpus}",
        "jobs": "jobs",
        "reason": "reason",
    },
)
REQUESTS = Listing(
    "/v1/requests",
    {"request": "id", "at": "at", "subject": "subject", "verb": "verb", "by": "by", "status": "status", "why": "why"},
)
PARTS = Listing(
    "/v1/parts",
    {
        "part": "kind",
        "serial or GUID": "identity",
        "model": "model",
        "node": "node",
        "place": "place",
        "from": "first_seen_at",
        "to": "last_seen_at",
    },
)
STAGES = Listing(
    "/v1/stages",
    {
        "at": "at",
        "node": "node",
        "stage": "stage",
        "": lambda one: one.status.replace("_", " "),
        "measured": lambda one: f"{one.value:g} {one.unit}" if one.value is not None else "",
        "why": "why",
        "recovery": "recovery",
    },
)
of_node = click.argument("node", metavar="[NODE]", required=False)


def _request(verb: str, words: str, *options: Parameter) -> click.Command:
    return request_command(verb, f"{words} {HOSTS_HELP}", f"/v1/nodes/{{}}/{verb}", HOSTS, *options)


node = click.Group(
    "node",
    help="Nodes: show them, and take them out of service or return them.",
    commands=[
        list_command(
            "list",
            f"All nodes, or those of HOSTS. {HOSTS_HELP}",
            NODES,
            click.argument("names", metavar="[HOSTS]", required=False, shell_complete=NODES_KNOWN),
            click.option(
                "--state",
                callback=one_of(node_states),
                shell_complete=among(node_states),
                help="Only nodes in this state, such as quarantined.",
            ),
            click.option("--spare", is_flag=True, default=None, help="Only spares."),
            click.option("--job", type=int, help="Only nodes of this job."),
        ),
        show_command("show", "All that the control plane knows of a node.", "/v1/nodes/{}", NODE),
        _request(
            "hold",
            "Take nodes out of service until they are released; their jobs end first.",
            for_option("Release them after this time, such as 4h."),
        ),
        _request(
            "quarantine",
            "Report faulty nodes: they are drained, their gangs move to spares now, and they are repaired and "
            "validated, as far as the budgets for faults allow. `hold` lets jobs end and leaves the node to you.",
        ),
        _request(
            "release",
            "Return nodes to service that are held, retired, quarantined or repaired. Of nodes in service it dismisses "
            "what is known against them. At a terminal it asks where a fault is still seen.",
            click.option("--yes", is_flag=True, help="Do not ask."),
        ),
        _request("validate", "Validate nodes in service as soon as no job uses them."),
        _request("burn-in", "Repeat the validation of nodes for hours, as soon as no job uses them."),
        _request("retire", "Take nodes out of service for good."),
        list_command(
            "requests",
            "The newest requests of operators, and what became of each.",
            REQUESTS,
            of_node,
            limit_option,
        ),
        list_command(
            "parts",
            "Places where each board, network card, cable and module was seen, newest first. GPUs: `GET /v1/gpus`.",
            PARTS,
            of_node,
            click.option(
                "--identity", metavar="SERIAL", help="Only this part, by serial number or GUID: wherever it was."
            ),
            limit_option,
        ),
        list_command(
            "tests",
            "What the stages of validations measured, newest first.",
            STAGES,
            of_node,
            click.option("--stage", help="Only this stage, such as disk_write."),
            limit_option,
        ),
    ],
)
