"""`understudy decision`: what the control plane decided, and why."""

from __future__ import annotations

import click

from understudy_controlplane.cli.durations import PAST
from understudy_controlplane.cli.listing import Listing, limit_option, list_command, show_command
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import NUMBER

DECISIONS = Listing(
    "/v1/decisions",
    {
        "decision": "id",
        "at": "at",
        "subject": "subject",
        "action": "action",
        "row": "table_row",
        "reason": "reason",
    },
)

decision = click.Group(
    "decision",
    help="Decisions and their reasons; decisions to do nothing too.",
    commands=[
        list_command(
            "list",
            "The newest decisions.",
            DECISIONS,
            click.option("--since", type=PAST, help="Only later ones: 2h for two hours ago, or a time in UTC."),
            click.option("--until", type=PAST, help="Only earlier ones."),
            click.option("--subject", help="Only decisions about this node, job or part of the cluster."),
            click.option("--action", help="Only decisions for this action, such as quarantine."),
            limit_option,
        ),
        show_command("show", "One decision, with its evidence.", "/v1/decisions/{}", NUMBER),
        request_command(
            "agree",
            "Agree with a decision that was only observed: `understudy observed` counts it for its rule.",
            "/v1/decisions/{}/agree",
            NUMBER,
        ),
        request_command(
            "disagree", "Disagree with a decision that was only observed.", "/v1/decisions/{}/disagree", NUMBER
        ),
    ],
)
