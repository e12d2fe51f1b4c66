"""Requests that change something: what comes of them, and the exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.output import Exit, note, print_json

if TYPE_CHECKING:
    from understudy_client import Accepted, Client

reason_argument = click.argument("reason")


def send(client: Client, subject: str, path: str, reason: str, as_json: bool, **more: object) -> None:
    """One request. Exits with what came of it."""
    answer = client.post(path, dict, reason, **more)
    if as_json:
        print_json(answer)
    raise SystemExit(report(subject, observes(client), quiet=as_json))


def print_switched(answer: Accepted, as_json: bool) -> None:
    """The answer to a request that takes effect at once."""
    if as_json:
        print_json(answer)
    else:
        click.echo(answer.why)


def observes(client: Client) -> bool:
    from understudy_client import Status

    return client.get("/v1/status", Status).mode == "observe"


def report(subject: str, observed: bool, *, quiet: bool) -> Exit:
    if observed:
        note(f"{subject}: recorded only: the control plane is in mode observe and changes nothing in Slurm")
        return Exit.OBSERVED
    if not quiet:
        click.echo(f"{subject}: requested")
    return Exit.DONE
