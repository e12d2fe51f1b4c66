"""`understudy job`: jobs as Slurm showed them last."""

from __future__ import annotations

import click

from understudy_controlplane.cli.incident import evidence_lines
from understudy_controlplane.cli.listing import Listing, limit_option, list_command, show_command
from understudy_controlplane.cli.requests import for_option, request_command
from understudy_controlplane.cli.subjects import JOB, names_of

JOBS = Listing(
    "/v1/jobs",
    {
        "job": lambda one: f"{one.job_id} ({one.task})" if one.task else one.job_id,
        "state": "state",
        "user": "user",
        "name": "name",
        "managed": lambda one: "paused" if one.paused else "yes" if one.managed else "no",
        "restarts": "restart_count",
        "ETTR": lambda one: f"{one.ettr.ratio:.1%}" if one.ettr else "",
    },
)


def _off(_ctx: click.Context, _param: click.Parameter, hosts: str | None) -> tuple[str, ...] | None:
    return None if hosts is None else names_of(hosts, "--off")


job = click.Group(
    "job",
    help="Jobs, with their attempts.",
    commands=[
        list_command(
            "list",
            "The newest jobs.",
            JOBS,
            click.option("--state", help="Only jobs in this state of Slurm, such as RUNNING."),
            click.option("--user", help="Only jobs of this user."),
            click.option("--managed", is_flag=True, default=None, help="Only jobs that asked for Understudy."),
            limit_option,
        ),
        show_command("show", "One job, with its attempts and launches.", "/v1/jobs/{}", JOB),
        show_command(
            "evidence",
            "What its ranks showed before they were ended: who did not enter which collective, stacks, last lines.",
            "/v1/jobs/{}/evidence",
            JOB,
            lines=evidence_lines,
        ),
        request_command(
            "pause",
            "Leave a job alone: nothing begins for it, neither a move nor a restart. A gang that has left its nodes is "
            "still started again.",
            "/v1/jobs/{}/pause",
            JOB,
            for_option("Resume it after this time, such as 2h."),
        ),
        request_command("resume", "End the pause of a job.", "/v1/jobs/{}/resume", JOB),
        request_command(
            "move",
            "Move a job's gang off nodes, onto spares. The nodes stay in service. The answer names the steps that are "
            "lost.",
            "/v1/jobs/{}/move",
            JOB,
            click.option(
                "--off",
                callback=_off,
                help="Nodes to leave, such as c[1-2]. Without it: those that are suspect, held or drained.",
            ),
            click.option(
                "--at-checkpoint", is_flag=True, default=None, help="Wait for the job's next complete checkpoint."
            ),
        ),
        request_command(
            "trust-checkpoints",
            "Declare a job's checkpoints good that are suspect because of NaN or jumps. Its next attempt may restore "
            "them.",
            "/v1/jobs/{}/trust-checkpoints",
            JOB,
        ),
    ],
)
