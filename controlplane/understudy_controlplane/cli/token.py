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
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.database import opened
from understudy_controlplane.cli.options import config_option, json_option
from understudy_controlplane.cli.output import Exit, fail, note, print_json, show, table_lines
from understudy_controlplane.fleet.audit import AuditEntry
from understudy_controlplane.fleet.durations import DAY_SECONDS, HOUR_SECONDS
from understudy_controlplane.fleet.evidence import Json
from understudy_controlplane.fleet.identity import STORED, Role, Token

if TYPE_CHECKING:
    from understudy_controlplane.store.tokens import TokenStore


@click.group()
def token() -> None:
    """Tokens: who may send requests. Run it on the control plane's host, as its user or root."""


@token.command("create")
@click.option("--role", type=click.Choice([role.value for role in STORED]), required=True, help="What it permits.")
@click.option("--label", default="", help="Who gets it: a person or a program.")
@click.option("--node", default="", help="The node for which the token speaks (role node).")
@click.option(
    "--days", type=click.FloatRange(0.01, 3650), default=365, show_default=True, help="Days until it expires."
)
@click.option("--file", type=click.Path(path_type=Path), help="New file for the token, for its owner alone.")
@config_option
@json_option
def create(  # noqa: PLR0913, PLR0917 - one parameter for each option
    role: str, label: str, node: str, days: float, file: Path | None, config: Path, as_json: bool
) -> None:
    """Make a token and print it. It is shown once: the database keeps only its digest."""
    from understudy_controlplane.access.secret import new_token

    if not label and not node:
        fail("--label is missing: name the person or program that gets the token", Exit.USAGE)
    try:
        secret, made = new_token(Role(role), label or node, _user(), time.time(), days * DAY_SECONDS, node)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    if file is not None:
        _write(file, secret)
    with _store(config) as store:
        store.add([made], _entry("token create", made.label, {"role": role, "expires_at": made.expires_at}))
    if as_json:
        shown: dict[str, Json] = {"role": role, "label": made.label, "node": node, "expires_at": made.expires_at}
        print_json(shown | ({"token": secret} if file is None else {"file": str(file)}))
    elif file is None:
        click.echo(secret)
    note(f"role {role}, {made.label}, until {_date(made.expires_at)}; it is not shown again")


@token.command("enroll")
@click.argument("node")
@click.option(
    "--hours", type=click.FloatRange(0.01, 168), default=24, show_default=True, help="Hours until the code expires."
)
@config_option
@json_option
def enroll(node: str, hours: float, config: Path, as_json: bool) -> None:
    """Print a one-time code with which a node without MUNGE gets its token: `understudy agent --enroll` asks for it."""
    from understudy_controlplane.access.secret import new_token

    code, made = new_token(Role.ENROLMENT, node, _user(), time.time(), hours * HOUR_SECONDS, node)
    with _store(config) as store:
        store.add([made], _entry("token enroll", f"node {node}", {"expires_at": made.expires_at}))
    show({"node": node, "code": code, "expires_at": made.expires_at}, as_json, lambda _: [code])


@token.command("list")
@config_option
@json_option
def list_tokens(config: Path, as_json: bool) -> None:
    """List all tokens, and the sessions of browsers made from them, without their secrets."""
    with _store(config) as store:
        tokens = store.all()
    now = time.time()
    columns = ("id", "role", "label", "made", "by", "last used", "state")
    rows = (
        (
            one.id,
            one.role.value if one.session_of is None else f"{one.role.value}, session of {one.session_of}",
            one.label,
            _date(one.made_at),
            one.made_by,
            _date(one.last_used_at) if one.last_used_at else "",
            _state(one, now),
        )
        for one in tokens
    )
    show(tokens, as_json, lambda _: table_lines(columns, rows))


@token.command("revoke")
@click.argument("number", metavar="ID", type=int, required=False)
@click.option("--node", default="", help="Revoke all tokens of this node.")
@click.option("--label", default="", help="Revoke all tokens with this label.")
@config_option
@json_option
def revoke(number: int | None, node: str, label: str, config: Path, as_json: bool) -> None:
    """Revoke tokens: the one of this ID in `understudy token list`, or those of a node or label, with their sessions.

    Every control plane of the site refuses them within two seconds. With --node the node gets no new token either,
    until `understudy token allow NODE`.
    """
    if sum((number is not None, bool(node), bool(label))) != 1:
        fail("name the tokens to revoke: an id, --node or --label", Exit.USAGE)
    now = time.time()
    with _store(config) as store:
        chosen = [
            one
            for one in store.all()
            if one.is_valid_at(now)
            and (one.id == number or (node and one.node == node) or (label and one.label == label))
        ]
        if node:
            store.bar(node, _user(), now)
        else:
            ids: list[Json] = [one.id for one in chosen]
            subject = label or f"token {number}"
            store.revoke([one.id for one in chosen], _user(), now, _entry("token revoke", subject, {"ids": ids}))
    if not node and not chosen:
        fail("no valid token has this id or label: `understudy token list` shows all", Exit.FAILED)
    barred = [f"{node} gets no token until `understudy token allow {node}`"] if node else []
    lines = barred + [f"revoked: token {one.id}, role {one.role.value}, {one.label}" for one in chosen]
    show({"revoked": [one.id for one in chosen], "barred": node or None}, as_json, lambda _: lines)


@token.command("allow")
@click.argument("node")
@config_option
@json_option
def allow(node: str, config: Path, as_json: bool) -> None:
    """Let a node whose tokens were revoked have new ones."""
    with _store(config) as store:
        was_barred = store.allow(node, _user(), time.time())
    words = f"{node} can get a token again" if was_barred else f"{node} was not barred"
    show({"node": node, "was_barred": was_barred}, as_json, lambda _: [words])


@contextmanager
def _store(config: Path) -> Iterator[TokenStore]:
    from understudy_controlplane.store.tokens import TokenStore

    with opened(config) as engine:
        yield TokenStore(engine)


def _write(path: Path, secret: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        remedy = "name a file that does not exist yet"
        if isinstance(error, PermissionError):
            remedy = "name a file in a folder that this user may write"
        fail(f"{path}: cannot be made: {error.strerror}; {remedy}", Exit.USAGE)
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
