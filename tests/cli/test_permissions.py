"""Each permission missing once: the message names cause and remedy, the exit code is right, and nothing is changed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.conftest import Served, run
from tests.tokens import secret
from understudy_controlplane.cli.main import root
from understudy_controlplane.fleet.identity import Role


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


@pytest.mark.parametrize(
    "command",
    [("check-config",), ("serve",), ("doctor",), ("token", "list"), ("audit", "export"), ("db", "check")],
    ids=" ".join,
)
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


REQUESTS = [
    ("node", "hold", "n1", "x"),
    ("node", "quarantine", "n1", "x"),
    ("node", "release", "n1", "x"),
    ("node", "validate", "n1", "x"),
    ("node", "burn-in", "n1", "x"),
    ("node", "retire", "n1", "x"),
    ("pause", "x"),
    ("resume", "x"),
    ("recovery", "cancel", "1", "x"),
    ("recovery", "approve", "1", "x"),
    ("ticket", "ack", "1", "x"),
    ("ticket", "close", "1", "x"),
    ("decision", "agree", "1", "x"),
    ("decision", "disagree", "1", "x"),
    ("job", "trust-checkpoints", "1", "x"),
    ("job", "pause", "1", "x"),
    ("job", "resume", "1", "x"),
    ("job", "move", "1", "x"),
    ("spare", "size", "3", "x"),
    ("spare", "size-as-configured", "x"),
    ("breaker", "reset", "x"),
    ("mode", "set", "observe", "x"),
]


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
