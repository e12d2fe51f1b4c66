"""Requests that change something: their options, what comes of them, and the exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Required, TypedDict, TypeVar

import click

from understudy_controlplane.cli.connection import exit_code, in_words, with_commands
from understudy_controlplane.cli.output import Exit, note, print_json

if TYPE_CHECKING:
    from understudy_client import Accepted, Client, RequestState

FIRST_LOOK_SECONDS = 0.05
LOOK_SECONDS_MAX = 2.0

EXITS = {
    "will_act": Exit.DONE,
    "held_by_guard": Exit.REFUSED,
    "awaits_approval": Exit.RECORDED,
    "observe_only": Exit.RECORDED,
}
"""Exit codes by the outcome that the control plane answers."""

PARTS = ("for_seconds", "now", "mode", "off", "at_checkpoint", "size")
"""Parts of the body besides reason and dry_run: left out if a command does not set them."""

Command = TypeVar("Command", bound=Callable[..., object])

reason_argument = click.argument("reason")


def request_options(command: Command) -> Command:
    """The reason, --dry-run and --wait."""
    dry_run = click.option("--dry-run", is_flag=True, help="Print what would come of it; request nothing.")
    wait = click.option("--wait", is_flag=True, help="Wait until it is carried out.")
    return reason_argument(dry_run(wait(command)))


class Options(TypedDict, total=False):
    """Options of one command."""

    reason: Required[str]
    dry_run: bool
    wait: bool
    for_seconds: float | None
    now: bool | None
    at_checkpoint: bool | None


@dataclass(frozen=True, slots=True)
class Requests:
    """One request for each path, for the same reason."""

    paths: Sequence[str]
    reason: str
    dry_run: bool = False
    wait: bool = False
    for_seconds: float | None = None
    now: bool | None = None
    mode: str | None = None
    off: Sequence[str] | None = None
    at_checkpoint: bool | None = None
    size: int | None = None


def send(client: Client, as_json: bool, requests: Requests) -> None:
    """A request that is refused does not stop the others. Exits with the first code that is not 0."""
    from understudy_client import Accepted, RefusedError, RequestState

    codes: list[Exit] = []
    answers: list[Accepted] = []
    for path in requests.paths:
        more = {name: getattr(requests, name) for name in PARTS}
        more["dry_run"] = requests.dry_run or None
        try:
            answers.append(client.post(path, Accepted, requests.reason, **more))
        except RefusedError as error:
            note(in_words(error))
            codes.append(exit_code(error))
        else:
            if not as_json:
                click.echo(_spoken(answers[-1]))
    results: list[Accepted | RequestState] = []
    for answer in answers:
        result, code = _result(client, answer, requests.wait)
        results.append(result)
        codes.append(code)
        if isinstance(result, RequestState) and not as_json:
            click.echo(f"{answer.subject}: {answer.verb} is {result.status.replace('_', ' ')}: {result.why}")
    if as_json:
        print_json(results)
    raise SystemExit(next((code for code in codes if code is not Exit.DONE), Exit.DONE))


def _result(client: Client, answer: Accepted, wait: bool) -> tuple[Accepted | RequestState, Exit]:
    """What is only recorded is never carried out by itself; what a guard holds may be."""
    code = EXITS.get(answer.outcome, Exit.FAILED)
    if not wait or answer.request is None or code is Exit.RECORDED:
        return answer, code
    state = _ended(client, answer.request)
    return state, Exit.DONE if state.status == "done" else Exit.FAILED


def _spoken(answer: Accepted) -> str:
    outcome = {
        "will_act": "would be carried out" if answer.request is None else "will be carried out",
        "held_by_guard": "waits for a guard",
        "awaits_approval": "awaits approval",
        "observe_only": "recorded only: the control plane observes and changes nothing",
    }.get(answer.outcome, answer.outcome)
    number = "" if answer.request is None else f" (request {answer.request})"
    return ": ".join(filter(None, (answer.subject, answer.verb, f"{outcome}{number}", with_commands(answer.why))))


def _ended(client: Client, number: int) -> RequestState:
    from understudy_client import RequestState

    seconds = FIRST_LOOK_SECONDS
    while (state := client.get(f"/v1/requests/{number}", RequestState)).status == "waiting":
        time.sleep(seconds)
        seconds = min(seconds * 2, LOOK_SECONDS_MAX)
    return state
