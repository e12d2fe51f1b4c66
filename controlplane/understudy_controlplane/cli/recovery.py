"""`understudy recovery`: what the control plane did after faults."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.listing import Listing, limit_option, list_command, show_command
from understudy_controlplane.cli.requests import request_command
from understudy_controlplane.cli.subjects import NUMBER, among, recovery_statuses

if TYPE_CHECKING:
    from understudy_client import Record


def took(recovery: Record) -> str:
    """Seconds from the fault until the job ran again; empty if the recovery has not come so far."""
    phases = recovery.phases_ms
    milliseconds = phases.get("first_step", phases.get("running"))
    return "" if milliseconds is None else f"{milliseconds / 1000:.1f} s"


RECOVERIES = Listing(
    "/v1/recoveries",
    {
        "recovery": "id",
        "kind": "kind",
        "status": "status",
        "detected": "detected_at",
        "nodes": "nodes",
        "spares": "spares",
        "job": lambda one: one.job.job_id if one.job else "",
        "steps lost": lambda one: one.get("steps_lost"),
        "took": took,
        "cause": "reason",
    },
)

recovery = click.Group(
    "recovery",
    help="Recoveries: what the control plane did after faults.",
    commands=[
        list_command(
            "list",
            "The newest recoveries.",
            RECOVERIES,
            click.option(
                "--status",
                shell_complete=among(recovery_statuses),
                help="Only recoveries with this status, such as running.",
            ),
            click.option("--kind", help="Only recoveries of this kind."),
            click.option("--job", type=int, help="Only recoveries of this job."),
            click.option("--node", help="Only recoveries of this node."),
            limit_option,
        ),
        show_command("show", "One recovery: plan, steps, and the time of each phase.", "/v1/recoveries/{}", NUMBER),
        request_command(
            "cancel",
            """Cancel a recovery: what it began is undone, or named in its outcome.

            A quarantined node stays drained, and the move is not repeated for this attempt, unless another rule finds
            something there later. A recovery that waits for approval is rejected.
            """,
            "/v1/recoveries/{}/cancel",
            NUMBER,
        ),
        request_command(
            "approve",
            "Approve a recovery that waits for it in mode approve. It is planned again from the newest facts, and what "
            "has changed since is proposed again.",
            "/v1/recoveries/{}/approve",
            NUMBER,
        ),
    ],
)
