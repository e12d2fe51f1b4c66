"""Each permission missing once: the message names cause and remedy, the exit code is right, and nothing is changed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.cli.conftest import Served, run
from tests.tokens import secret
from understudy_controlplane.cli.durations import Moment
from understudy_controlplane.cli.main import root
from understudy_controlplane.fleet.identity import Role

pytestmark = pytest.mark.integration


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files this user may not read or make. (Where root runs the tests, modes would not prevent it.)"""
    read_text, open_file = Path.read_text, os.open

    def refuse(path: object) -> None:
        if str(path).startswith(str(tmp_path)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def read(path: Path, *arguments: Any, **options: Any) -> str:
        refuse(path)
        return read_text(path, *arguments, **options)

    def opened(path: Any, *arguments: Any, **options: Any) -> int:
        refuse(path)
        return open_file(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(os, "open", opened)
    return tmp_path


def commands(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif command is not None:
            yield (*path, name), command


NEEDS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("token", "create"): ("--label", "x"),
    ("token", "revoke"): ("1",),
    **{("plan", one): ("--from-history",) for one in ("interval", "spares", "what-if")},
}
"""Arguments which the options alone do not show."""


def value_of(kind: click.ParamType[object]) -> str:
    if isinstance(kind, click.Choice):
        return str(kind.choices[0])
    return "2h" if isinstance(kind, Moment) else "1"


def with_values(path: tuple[str, ...], command: click.Command) -> tuple[str, ...]:
    """Command with a value for all that it requires."""
    given = list(path)
    for one in command.params:
        if one.required:
            options = [one.opts[0]] if isinstance(one, click.Option) else []
            given += [*options, value_of(one.type)]
    return (*given, *NEEDS.get(path, ()))


def has(command: click.Command, parameter: str) -> bool:
    return any(one.name == parameter for one in command.params)


CONFIGURED = [with_values(path, one) for path, one in commands() if has(one, "config") and not has(one, "url")]


@pytest.mark.parametrize("command", CONFIGURED, ids=" ".join)
def test_a_configuration_of_another_user(command: tuple[str, ...], closed: Path) -> None:
    done = CliRunner().invoke(root, [*command, "--config", str(closed / "site.toml")])
    assert done.exit_code == 2
    assert "site.toml: cannot be read: " in done.output
    assert "Permission denied" in done.output
    assert "; run this as the control plane's user, who may read it" in done.output


def test_a_token_of_another_user(closed: Path) -> None:
    done = CliRunner().invoke(root, ["status", "--token-file", str(closed / "a.token")])
    assert done.exit_code == 2
    assert "a.token: cannot be read: " in done.output
    assert "; name the file of your own token with --token-file" in done.output


def test_a_folder_of_another_user_gets_no_token(closed: Path) -> None:
    arguments = ["token", "create", "--role", "viewer", "--label", "x", "--file", str(closed / "new.token")]
    done = CliRunner().invoke(root, arguments)
    assert done.exit_code == 2
    remedy = "name a file in a folder that this user may write"
    assert f"new.token: cannot be made: Permission denied; {remedy}" in done.output


# `incident dismiss` reads the incident first: tests/cli/test_dismiss.py.
REQUESTS = [with_values(path, one) for path, one in commands() if has(one, "reason") and path[-1:] != ("dismiss",)]


@pytest.mark.parametrize("command", REQUESTS, ids=" ".join)
def test_a_viewer_requests_nothing(command: tuple[str, ...], acting: Served) -> None:
    printed = acting.run(*command, role=Role.VIEWER, status=1)
    assert "viewer" in printed
    assert "; " in printed


def test_without_a_valid_token_nothing_is_shown_or_requested(acting: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # without MUNGE, by which a user of the cluster needs no token
    for token in ("", secret(Role.VIEWER, "other")):
        for command in (("status",), ("node", "hold", "n1", "x")):
            assert "understudy token create" in run(*command, url=acting.url, token=token, status=1).output
