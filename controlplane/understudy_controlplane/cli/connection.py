"""The options of commands that send requests, and the exit codes for what goes wrong with these."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

import click

from understudy_controlplane.cli.options import json_option
from understudy_controlplane.cli.output import Exit, fail
from understudy_controlplane.cli.subjects import Parameter

if TYPE_CHECKING:
    from understudy_client import Client, ClientError

DEFAULT_URL = "http://127.0.0.1:7117"
TOKEN_FILES = (Path("~/.config/understudy/token"), Path("/etc/understudy/operator.token"))
"""The first one that this user can read counts."""

UNAUTHORIZED = 401
OWN_FILE = "name the file of your own token with --token-file or UNDERSTUDY_TOKEN_FILE"

_path = click.Path(path_type=Path, readable=False)  # the message of the command names a remedy
_OPTIONS = (
    click.option(
        "--url",
        envvar="UNDERSTUDY_URL",
        default=DEFAULT_URL,
        show_default=True,
        help='The control plane\'s; "URL,URL" where a second one stands by.',
    ),
    click.option(
        "--token-file",
        envvar="UNDERSTUDY_TOKEN_FILE",
        type=_path,
        help=f"File with your token; without it {' or '.join(map(str, TOKEN_FILES))}.",
    ),
    click.option(
        "--ca-file",
        envvar="UNDERSTUDY_CA_FILE",
        type=_path,
        help="Certificates (PEM) that may sign the control plane's; without it the system's.",
    ),
    click.option(
        "--certificate",
        envvar="UNDERSTUDY_CERTIFICATE",
        type=_path,
        help="Your certificate (PEM), for a control plane that asks for one.",
    ),
    click.option("--key", envvar="UNDERSTUDY_KEY", type=_path, help="Its key; without it in the certificate's file."),
    json_option,
)
P = ParamSpec("P")
NOUNS = {
    "nodes": "node",
    "jobs": "job",
    "recoveries": "recovery",
    "incidents": "incident",
    "decisions": "decision",
    "tickets": "ticket",
}
OTHERS = {
    "requests": "node requests",
    "status": "status",
    "observed": "observed",
    "signals": "signal list",
    "maintenance": "maintenance list",
    "notifications": "notify list",
}
SHOWN = re.compile(rf"GET /v1/(?P<what>{'|'.join((*NOUNS, *OTHERS))})(?:/(?P<one>\d+|[\w.-]+))?(?![\w/])")
"""What the control plane's hints name."""


def connected(command: Callable[Concatenate[Client, P], None]) -> Callable[..., None]:
    """Gives the command a client, and the options with which it is made."""

    @functools.wraps(command)
    def run(
        url: str,
        token_file: Path | None,
        ca_file: Path | None,
        certificate: Path | None,
        key: Path | None,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        without_own_command_line()
        from understudy_client import ClientError

        for one in url.split(","):
            if not one.strip().startswith(("http://", "https://")):
                raise click.UsageError(f"{one} is no URL of a control plane: it has to begin with http:// or https://")
        named = {"url": url, "token_file": token_file, "ca_file": ca_file, "certificate": certificate, "key": key}
        try:
            with client_of(named) as client:
                command(client, *args, **kwargs)
        except ClientError as error:
            fail(in_words(error), exit_code(error))

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


def without_own_command_line() -> None:
    """httpx would import its own command line, and with it rich: half of its time."""
    sys.modules.setdefault("httpx._main", cast(ModuleType, None))


def client_of(options: Mapping[str, Any], timeout_seconds: float = 10.0) -> Client:
    """`options`: as the command line names them."""
    from understudy_client import Client

    own = (options["certificate"], options["key"]) if options["certificate"] else None
    token = _token(options["token_file"])
    return Client(options["url"], token, options["ca_file"], certificate=own, timeout_seconds=timeout_seconds)


def command(name: str, words: str, run: Callable[..., None], *parameters: Parameter) -> click.Command:
    """A command that gives `run` a client, `as_json`, and what its parameters say."""
    made = connected(run)
    for one in reversed(parameters):
        made = one(made)
    return click.command(name, help=words)(made)


def in_words(error: ClientError) -> str:
    """Message for people at a terminal: no address of a route, and commands for what routes show."""
    from understudy_client import RefusedError

    message = with_commands(str(error))
    if not isinstance(error, RefusedError):
        return message
    answered = message.partition(": ")[2]
    return f"{answered}; {OWN_FILE}" if error.status == UNAUTHORIZED else answered


def with_commands(text: str) -> str:
    return SHOWN.sub(lambda found: _command(found["what"], found["one"]), text)


def _command(what: str, one: str | None) -> str:
    if what in NOUNS:
        return f"`understudy {NOUNS[what]} {f'show {one}' if one else 'list'}`"
    return f"`understudy {OTHERS[what]}`"


def exit_code(error: ClientError) -> Exit:
    from understudy_client import CertificatesUnusable, RefusedError, UnreachableError

    match error:
        case UnreachableError():
            return Exit.UNREACHABLE
        case CertificatesUnusable() | RefusedError(status=400 | 422):
            return Exit.USAGE
        case RefusedError(status=409):
            return Exit.REFUSED
        case _:
            return Exit.FAILED


def _token(file: Path | None) -> str:
    """Empty where no file is named and none of the usual ones can be read: a site may have open reads."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            fail(f"{file}: cannot be read: {error}; {OWN_FILE}", Exit.USAGE)
        return token or fail(f"{file}: is empty; `understudy token create --file FILE` writes a token", Exit.USAGE)
    for usual in TOKEN_FILES:
        with suppress(OSError, UnicodeDecodeError, RuntimeError):  # RuntimeError: this user has no home
            return usual.expanduser().read_text(encoding="utf-8-sig").strip()
    return ""
