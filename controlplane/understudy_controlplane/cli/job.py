"""`understudy job`: jobs as Slurm showed them last."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

import click

from understudy_controlplane.cli.connection import connected
from understudy_controlplane.cli.durations import DURATION
from understudy_controlplane.cli.evidence import print_evidence
from understudy_controlplane.cli.listing import Chosen, Listing, limit_option, print_item, print_items
from understudy_controlplane.cli.node import names_of
from understudy_controlplane.cli.requests import Options, Requests, request_options, send

if TYPE_CHECKING:
    from understudy_client import Client, Job

_TASK = re.compile(r"[0-9]{1,18}_[0-9]{1,18}")


class JobNumber(click.ParamType[int | str]):
    """A job id, or a task of a job array as squeue shows it."""

    name = "job"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        if _TASK.fullmatch(text):
            return text
        if not text.isdecimal():
            self.fail(f"'{text}' is no job; write its id, or 4711_3 for a task of a job array", param, ctx)
        return int(text)


JOB = JobNumber()
job_argument = click.argument("number", metavar="JOB", type=JOB)


def job_id_of(client: Client, job: int | str) -> int:
    """Raises RefusedError for a task that Slurm does not show."""
    from understudy_client import Job, RefusedError

    if isinstance(job, int):
        return job
    found = client.items("/v1/jobs", Job, 1, task=job)
    if not found:
        raise RefusedError(f"/v1/jobs: Slurm shows no task {job} of a job array; GET /v1/jobs lists the jobs", 404)
    return found[0].job_id


@click.group()
def job() -> None:
    """Jobs, with their attempts."""


@job.command("list")
@click.option("--state", help="Only jobs in this state of Slurm, such as RUNNING.")
@click.option("--user", help="Only jobs of this user.")
@click.option("--managed", is_flag=True, default=None, help="Only jobs that asked for Understudy.")
@limit_option
@connected
def list_jobs(client: Client, /, as_json: bool, limit: int, **chosen: Chosen) -> None:
    """The newest jobs."""
    print_items(client, listing(), as_json, limit, chosen)


def listing() -> Listing[Job]:
    from understudy_client import Job

    columns: dict[str, Callable[[Job], object]] = {
        "job": lambda one: f"{one.job_id} ({one.task})" if one.task else one.job_id,
        "state": lambda one: one.state,
        "user": lambda one: one.user,
        "name": lambda one: one.name,
        "managed": lambda one: "paused" if one.paused else "yes" if one.managed else "no",
        "restarts": lambda one: one.restart_count,
        "ETTR": lambda one: f"{one.ettr.ratio:.3f}" if one.ettr else "",
    }
    return Listing("/v1/jobs", Job, columns)


@job.command("show")
@job_argument
@connected
def show(client: Client, as_json: bool, number: int | str) -> None:
    """One job, with its attempts and launches."""
    print_item(client, f"/v1/jobs/{job_id_of(client, number)}", as_json)


@job.command("evidence")
@job_argument
@connected
def evidence(client: Client, as_json: bool, number: int | str) -> None:
    """What its ranks showed before they were ended: who did not enter which collective, stacks, last lines."""
    print_evidence(client, f"/v1/jobs/{job_id_of(client, number)}/evidence", as_json)


@job.command("pause")
@job_argument
@request_options
@click.option("--for", "for_seconds", type=DURATION, help="Resume it after this time, such as 2h.")
@connected
def pause(client: Client, as_json: bool, number: int | str, **options: Unpack[Options]) -> None:
    """Leave a job alone: nothing begins for it, neither a move nor a restart. A gang that has left its nodes is still
    started again.
    """
    send(client, as_json, Requests([f"/v1/jobs/{job_id_of(client, number)}/pause"], **options))


@job.command("resume")
@job_argument
@request_options
@connected
def resume(client: Client, as_json: bool, number: int | str, **options: Unpack[Options]) -> None:
    """End the pause of a job."""
    send(client, as_json, Requests([f"/v1/jobs/{job_id_of(client, number)}/resume"], **options))


@job.command("move")
@job_argument
@request_options
@click.option("--off", help="Nodes to leave, such as c[1-2]. Without it: those that are suspect, held or drained.")
@click.option("--at-checkpoint", is_flag=True, default=None, help="Wait for the job's next complete checkpoint.")
@connected
def move(client: Client, as_json: bool, number: int | str, off: str | None, **options: Unpack[Options]) -> None:
    """Move a job's gang off nodes, onto spares. The nodes stay in service. The answer names the steps that are lost."""
    names = names_of(off, "--off") if off is not None else None
    send(client, as_json, Requests([f"/v1/jobs/{job_id_of(client, number)}/move"], off=names, **options))


@job.command("trust-checkpoints")
@job_argument
@request_options
@connected
def trust_checkpoints(client: Client, as_json: bool, number: int | str, **options: Unpack[Options]) -> None:
    """Declare a job's checkpoints good that are suspect because of NaN or jumps. Its next attempt may restore them."""
    send(client, as_json, Requests([f"/v1/jobs/{job_id_of(client, number)}/trust-checkpoints"], **options))
