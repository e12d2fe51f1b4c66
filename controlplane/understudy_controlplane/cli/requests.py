"""Requests that change something: their options, what comes of them, and the exit code."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click

from understudy_controlplane.cli.connection import command, exit_code, in_words, with_commands
from understudy_controlplane.cli.durations import DURATION
from understudy_controlplane.cli.output import Exit, note, print_json
from understudy_controlplane.cli.subjects import FLEET, Parameter, Subject

if TYPE_CHECKING:
    from understudy_client import Client, Record

FIRST_LOOK_SECONDS = 0.05
LOOK_SECONDS_MAX = 2.0

EXITS = {
    "will_act": Exit.DONE,
    "held_by_guard": Exit.REFUSED,
    "awaits_approval": Exit.RECORDED,
    "observe_only": Exit.RECORDED,
}
"""Exit codes by the outcome that the control plane answers."""

Command = TypeVar("Command", bound=Callable[..., object])


def request_options(command: Command) -> Command:
    """The reason, --dry-run and --wait."""
    dry_run = click.option("--dry-run", is_flag=True, help="Print what would come of it; request nothing.")
    wait = click.option("--wait", is_flag=True, help="Wait until it is carried out.")
    return click.argument("reason")(dry_run(wait(command)))


def for_option(words: str) -> Parameter:
    return click.option("--for", "for_seconds", type=DURATION, help=words)


def request_command(name: str, words: str, path: str, subject: Subject = FLEET, *options: Parameter) -> click.Command:
    """A command that sends a request for each subject. `path` has `{}` for it; `options` are parts of the body."""

    def request(client: Client, /, as_json: bool, subject: Any = None, **body: Any) -> None:
        paths = [path.format(one) for one in named(client, subject)]
        if not body.pop("yes", True) and not as_json and sys.stdin.isatty():
            confirm_warnings(client, paths, **body)
        send(client, as_json, paths, **body)

    named = subject.named
    return command(name, words, request, subject.argument, request_options, *options)


def send(
    client: Client,
    as_json: bool,
    paths: Iterable[str],
    *,
    reason: str,
    dry_run: bool = False,
    wait: bool = False,
    **body: object,
) -> None:
    """A request that is refused does not stop the others. Exits with the first code that is not 0. Parts of the body
    that are None are left out.
    """
    from understudy_client import RefusedError

    codes: list[Exit] = []
    answers: list[Record] = []
    for path in paths:
        try:
            answers.append(client.post(path, reason, dry_run=dry_run or None, **body))
            if not as_json:
                click.echo(_spoken(answers[-1]))
        except RefusedError as error:
            note(in_words(error))
            codes.append(exit_code(error))
    results: list[Record] = []
    for answer in answers:
        result, code = _result(client, answer, wait)
        results.append(result)
        codes.append(code)
        if result is not answer and not as_json:
            click.echo(f"{answer.subject}: {answer.verb} is {result.status.replace('_', ' ')}: {result.why}")
    if as_json:
        print_json(results)
    raise SystemExit(next((code for code in codes if code is not Exit.DONE), Exit.DONE))


def confirm_warnings(client: Client, paths: Iterable[str], *, reason: str, dry_run: bool = False, **_: object) -> None:
    """Asks a person where something speaks against the requests."""
    from understudy_client import RefusedError

    warned = False
    for path in () if dry_run else paths:
        with suppress(RefusedError):  # the request itself is refused for the same reason, and says it
            answer = client.post(path, reason, dry_run=True)
            if answer.get("warning"):
                warned = True
                note(_spoken(answer))
    if warned:
        click.confirm("Do it all the same?", abort=True, err=True)


def _result(client: Client, answer: Record, wait: bool) -> tuple[Record, Exit]:
    """What is only recorded is never carried out by itself; what a guard holds may be."""
    code = EXITS.get(answer.outcome, Exit.FAILED)
    if not wait or answer.request is None or code is Exit.RECORDED:
        return answer, code
    state = _ended(client, answer.request)
    return state, Exit.DONE if state.status == "done" else Exit.FAILED


def _spoken(answer: Record) -> str:
    outcome = {
        "will_act": "would be carried out" if answer.request is None else "will be carried out",
        "held_by_guard": "waits for a guard",
        "awaits_approval": "awaits approval",
        "observe_only": "recorded only: the control plane observes and changes nothing",
    }.get(answer.outcome, answer.outcome)
    number = "" if answer.request is None else f" (request {answer.request})"
    words = ": ".join(filter(None, (answer.subject, answer.verb, f"{outcome}{number}", with_commands(answer.why))))
    warning = answer.get("warning", "")  # a control plane of an earlier release answers without it
    return f"{words}\n  BUT {warning}" if warning else words


def _ended(client: Client, number: int) -> Record:
    seconds = FIRST_LOOK_SECONDS
    while (state := client.get(f"/v1/requests/{number}")).status == "waiting":
        time.sleep(seconds)
        seconds = min(seconds * 2, LOOK_SECONDS_MAX)
    return state
