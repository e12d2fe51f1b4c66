"""What commands are about: nodes, jobs, and numbers of records."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from understudy_client import Client

HOSTS_HELP = "HOSTS is a host list, such as c7 or c[1-4,7]."
_TASK = re.compile(r"[0-9]{1,18}_[0-9]{1,18}")

Parameter = Callable[[Any], Any]
"""An argument or option of click."""


class Subject(NamedTuple):
    """The argument of a command, and what stands for it in the address of a route."""

    argument: Parameter
    named: Callable[[Client, Any], Iterable[object]]


def of_fleet(argument: Parameter = lambda command: command) -> Subject:
    """Nothing in particular. `argument` is then part of the body of a request."""
    return Subject(argument, lambda _client, _subject: ("",))


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


def job_id_of(client: Client, job: int | str) -> int:
    """Raises RefusedError for a task that Slurm does not show."""
    from understudy_client import RefusedError

    if isinstance(job, int):
        return job
    found = client.items("/v1/jobs", 1, task=job)
    if not found:
        raise RefusedError(f"/v1/jobs: Slurm shows no task {job} of a job array; GET /v1/jobs lists the jobs", 404)
    number: int = found[0].job_id
    return number


def names_of(hosts: str, hint: str = "HOSTS") -> tuple[str, ...]:
    from understudy_controlplane.hostlist import HostListError, expand

    try:
        names = expand(hosts)
    except HostListError as error:
        raise click.BadParameter(f"{error}; write c7 or c[1-4,7]", param_hint=hint) from error
    if not names:
        raise click.BadParameter("names no node; write c7 or c[1-4,7]", param_hint=hint)
    return names


COMPLETED_MAX = 5000
COMPLETION_SECONDS_MAX = 2.0

Completion = Callable[[click.Context, click.Parameter, str], list[str]]


def known(path: str, field: str, **only: object) -> Completion:
    """Completes with what the control plane lists; with nothing where it cannot be asked."""

    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
        from understudy_controlplane.cli.connection import client_of, without_own_command_line

        without_own_command_line()
        from understudy_client import ClientError

        try:
            with client_of(ctx.params, COMPLETION_SECONDS_MAX) as client:
                found = [str(one[field]) for one in client.items(path, COMPLETED_MAX, **only)]
        except (ClientError, SystemExit):
            return []
        return [one for one in found if one.startswith(incomplete)]

    return complete


def among(values: Callable[[], Iterable[str]]) -> Completion:
    return lambda _ctx, _param, incomplete: [one for one in values() if one.startswith(incomplete)]


def one_of(values: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Refuses what is none of them before the control plane is asked."""

    def check(ctx: click.Context, param: click.Parameter, given: str | None) -> str | None:
        known = list(values()) if given is not None else []
        if given is None or given in known:
            return given
        near = difflib.get_close_matches(given, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(known)}"
        raise click.BadParameter(f"'{given}' is no {param.name}; {hint}", ctx, param)

    return check


def node_states() -> list[str]:
    from understudy_controlplane.fleet.node import NodeState

    return [one.value for one in NodeState]


def recovery_statuses() -> list[str]:
    from understudy_controlplane.fleet.recovery import RecoveryStatus

    return [one.value for one in RecoveryStatus]


NODES_KNOWN = known("/v1/nodes", "name")
JOBS_KNOWN = known("/v1/jobs", "job_id")


def _argument(metavar: str, kind: Any = None, complete: Completion | None = None) -> Parameter:
    return click.argument("subject", metavar=metavar, type=kind, shell_complete=complete)


JOB_TYPE = JobNumber()
FLEET = of_fleet()
NODE = Subject(_argument("NODE", complete=NODES_KNOWN), lambda _client, name: (name,))
HOSTS = Subject(_argument("HOSTS", complete=NODES_KNOWN), lambda _client, hosts: names_of(hosts))
JOB = Subject(_argument("JOB", JOB_TYPE, JOBS_KNOWN), lambda client, job: (job_id_of(client, job),))
NUMBER = Subject(_argument("NUMBER", click.IntRange(min=1)), lambda _client, number: (number,))
