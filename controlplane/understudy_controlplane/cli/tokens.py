"""`understudy token`: tokens are made, listed and revoked in the database, on the host of the control plane.

The right to do so is the right to read the control plane's configuration and to write its database.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.table import Table

from understudy_controlplane.cli.database import opened
from understudy_controlplane.cli.offline import (
    DEFAULT_CONFIG,
    ConfigOption,
    JsonOption,
    console,
    errors,
    fail,
    print_json,
)
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import Role, Token

if TYPE_CHECKING:
    from understudy_controlplane.store.tokens import TokenStore

DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600

tokens_app = typer.Typer(
    no_args_is_help=True, help="Tokens: who may send requests. Run it on the control plane's host, as its user or root."
)

NodeOption = Annotated[str, typer.Option("--node", help="The node for which the token speaks (role node).")]


@tokens_app.command("create")
def create(
    role: Annotated[Role, typer.Option(help="What the token may do.")],
    label: Annotated[str, typer.Option(help="Who gets it: a person or a program.")] = "",
    node: NodeOption = "",
    days: Annotated[float, typer.Option(min=0.01, max=3650, help="Days until it expires.")] = 365,
    file: Annotated[Path | None, typer.Option(help="New file for the token, for its owner alone.")] = None,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Make a token and print it. It is shown once: the database keeps only its digest."""
    from understudy_controlplane.access.secret import new_token

    if not label and not node:
        fail("--label is missing: name the person or program that gets the token", 2)
    try:
        secret, token = new_token(role, label or node, _user(), time.time(), days * DAY_SECONDS, node)
    except ValueError as error:
        fail(f"{error}: use --role node together with --node", 2)
        raise
    if file is not None:
        _write(file, secret)
    with _store(config) as store:
        store.add([token], _entry("token create", token.label, {"role": role.value, "expires_at": token.expires_at}))
    if file is None:
        typer.echo(secret)
    errors.print(f"role {role.value}, {token.label}, until {_date(token.expires_at)}; it is not shown again")


@tokens_app.command("enroll")
def enroll(
    node: Annotated[str, typer.Argument(help="The node.")],
    hours: Annotated[float, typer.Option(min=0.01, max=168, help="Hours until the code expires.")] = 24,
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Print a one-time code with which a node without MUNGE gets its token: `understudy agent --enroll` asks for it."""
    from understudy_controlplane.access.secret import new_token

    code, token = new_token(Role.ENROLMENT, node, _user(), time.time(), hours * HOUR_SECONDS, node)
    with _store(config) as store:
        store.add([token], _entry("token enroll", f"node {node}", {"expires_at": token.expires_at}))
    typer.echo(code)


@tokens_app.command("list")
def show(config: ConfigOption = DEFAULT_CONFIG, as_json: JsonOption = False) -> None:
    """List all tokens, without their secrets."""
    with _store(config) as store:
        tokens = store.all()
    if as_json:
        print_json(msgspec.to_builtins(tokens))
        return
    now = time.time()
    table = Table("id", "role", "label", "made", "by", "last used", "state", box=None, header_style="bold")
    for one in tokens:
        used = _date(one.last_used_at) if one.last_used_at else ""
        table.add_row(str(one.id), one.role.value, one.label, _date(one.made_at), one.made_by, used, _state(one, now))
    console.print(table, markup=False)


@tokens_app.command("revoke")
def revoke(
    token: Annotated[int | None, typer.Argument(help="Its id, as `understudy token list` shows it.")] = None,
    node: Annotated[str, typer.Option("--node", help="Revoke all tokens of this node.")] = "",
    label: Annotated[str, typer.Option("--label", help="Revoke all tokens with this label.")] = "",
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Revoke tokens. Every control plane of the site refuses them within two seconds.

    With --node the node gets no new token either, until `understudy token allow NODE`.
    """
    if sum((token is not None, bool(node), bool(label))) != 1:
        fail("name the tokens to revoke: an id, --node or --label", 2)
    now = time.time()
    with _store(config) as store:
        chosen = [
            one
            for one in store.all()
            if one.is_valid_at(now)
            and (one.id == token or (node and one.node == node) or (label and one.label == label))
        ]
        if node:
            store.bar(node, _user(), now)
        else:
            ids: list[Json] = [one.id for one in chosen]
            subject = label or f"token {token}"
            store.revoke([one.id for one in chosen], _user(), now, _entry("token revoke", subject, {"ids": ids}))
    if node:
        typer.echo(f"{node} gets no token until `understudy token allow {node}`")
    elif not chosen:
        fail("no valid token is so named: `understudy token list` shows all", 1)
    for one in chosen:
        typer.echo(f"revoked: token {one.id}, role {one.role.value}, {one.label}")


@tokens_app.command("allow")
def allow(
    node: Annotated[str, typer.Argument(help="The node.")],
    config: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Let a node whose tokens were revoked have new ones."""
    with _store(config) as store:
        was_barred = store.allow(node, _user(), time.time())
    typer.echo(f"{node} can get a token again" if was_barred else f"{node} was not barred")


@contextmanager
def _store(config: Path) -> Iterator[TokenStore]:
    from understudy_controlplane.store.tokens import TokenStore

    with opened(config) as engine:
        yield TokenStore(engine)


def _write(path: Path, secret: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        fail(f"{path}: cannot be made: {error.strerror}; name a file that does not exist yet", 2)
        raise
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{secret}\n")


def _entry(action: str, subject: str, after: Mapping[str, Json]) -> AuditEntry:
    return replace(AuditEntry.on_host(_user(), time.time(), action, subject), after=after)


def _user() -> str:
    return os.environ.get("SUDO_USER") or getpass.getuser()


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _state(token: Token, now: float) -> str:
    if token.revoked_at is not None:
        return f"revoked {_date(token.revoked_at)} by {token.revoked_by}"
    return f"expires {_date(token.expires_at)}" if now < token.expires_at else f"expired {_date(token.expires_at)}"
