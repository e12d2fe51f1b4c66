"""What other users of a host see of a program, its arguments in /proc, has no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_agent.credentials import sign
from understudy_controlplane.access.munge import CredentialRefused, Munge

pytestmark = pytest.mark.integration

SECRET = "MUNGE:a-credential-or-a-challenge"


def test_munge_and_unmunge_get_what_is_secret_by_their_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("munge", "unmunge"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "$0 $*" >>{tmp_path}/arguments\ncat >>{tmp_path}/inputs\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    sign(SECRET.encode(), tmp_path / "socket")
    with pytest.raises(CredentialRefused):
        Munge(tmp_path / "socket").decode(SECRET)
    arguments, inputs = (tmp_path / "arguments").read_text(), (tmp_path / "inputs").read_text()
    assert len(arguments.splitlines()) == inputs.count(SECRET) == 2
    assert SECRET not in arguments


def test_no_command_takes_a_token_as_an_argument() -> None:
    """They take the name of its file."""
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert "--token-file" in text
    assert "--token " not in text
    assert "--password" not in text
