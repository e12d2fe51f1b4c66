"""With real MUNGE: what the agent signs is what the control plane reads, once, and from root alone."""

from __future__ import annotations

import pwd
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy_agent.credentials import sign
from understudy_controlplane.access.munge import Credential, CredentialRefused, Munge, MungeUnavailable

pytestmark = pytest.mark.cluster  # needs root and munged, as a cluster does


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="understudy-munge-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / file}" for option, file in files.items()]
        munged = subprocess.Popen(["munged", "--foreground", *options], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not (folder / "socket").is_socket():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield folder / "socket"
        munged.terminate()
        munged.wait(10)


def test_what_root_signed_is_read_once(socket: Path) -> None:
    credential, munge = sign(b"a claim\n\nof n1", socket), Munge(socket)
    assert munge.decode(credential) == Credential(0, b"a claim\n\nof n1")
    with pytest.raises(CredentialRefused, match="used before"):
        munge.decode(credential)


def test_another_users_credential_names_that_user(socket: Path) -> None:
    user = pwd.getpwnam("nobody")
    command = ["munge", f"--socket={socket}", "--string=x"]
    made = subprocess.run(command, user=user.pw_uid, group=user.pw_gid, capture_output=True, text=True, check=True)
    assert Munge(socket).decode(made.stdout).user_id == user.pw_uid


@pytest.mark.parametrize("nonsense", ["", "MUNGE:x:", "MUNGE:" + "A" * 4000 + ":", "\0"])
def test_nonsense_is_refused(socket: Path, nonsense: str) -> None:
    with pytest.raises(CredentialRefused):
        Munge(socket).decode(nonsense)


def test_a_munged_that_is_not_there_is_no_refusal(tmp_path: Path) -> None:
    with pytest.raises(MungeUnavailable):
        Munge(tmp_path / "none").decode("MUNGE:x:")
    with pytest.raises(OSError, match="munge"):
        sign(b"x", tmp_path / "none")
