"""Real MUNGE: what the agent signs is what the control plane reads, once, and from root alone."""

from __future__ import annotations

import pwd
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from tests import builders as b
from tests.access.test_user_tokens import Stream
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_agent.credentials import sign
from understudy_client.munge import MungeAuth
from understudy_controlplane.access.munge import Credential, CredentialRefused, Munge, MungeUnavailable
from understudy_controlplane.api.user_tokens import claim
from understudy_controlplane.app import Outside, compose
from understudy_keeper.proof import decode

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
        wait_until((folder / "socket").is_socket)
        yield folder / "socket"
        munged.terminate()
        munged.wait(PATIENCE_SECONDS)


def test_what_root_signed_is_read_once(socket: Path) -> None:
    credential, munge = sign(b"a claim\n\nof n1", socket), Munge(socket)
    assert munge.decode(credential) == Credential(0, b"a claim\n\nof n1")
    with pytest.raises(CredentialRefused, match="used before"):
        munge.decode(credential)


def test_what_a_keeper_signed_no_service_of_another_user_reads(socket: Path) -> None:
    """A service may take any credential of root as a word of root, whatever it says."""
    user = pwd.getpwnam("nobody")
    command = ["unmunge", f"--socket={socket}"]
    for only_for, read in ((0, False), (None, True)):
        credential = sign(b"a claim", socket, only_for)
        done = subprocess.run(
            command, input=credential.encode(), user=user.pw_uid, group=user.pw_gid, capture_output=True, check=False
        )
        assert (done.returncode == 0) == read
    assert decode(sign(b"a claim", socket, only_for=0), socket) == (0, b"a claim")


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


def test_a_user_of_the_cluster_needs_no_token(socket: Path, tmp_path: Path) -> None:
    """The program munge, a real munged, the routes, and the client of `understudy`; each request once."""
    user = pwd.getpwnam("nobody")
    outside = Outside(VirtualSlurm(["n1"]), lambda _node: True, decode_credential=Munge(socket).decode)
    with closing(compose(b.config(server={"database": new_database(tmp_path / "fleet.db")}), outside)) as plane:
        plane.loop.tick()
        routes = TestClient(plane.app)

        def carry(request: httpx.Request) -> httpx.Response:
            path, headers = request.url.raw_path.decode(), dict(request.headers)
            answer = routes.request(request.method, path, content=request.content, headers=headers)
            return httpx.Response(answer.status_code, content=answer.content, extensions={"network_stream": Stream()})

        with httpx.Client(auth=MungeAuth(socket), transport=httpx.MockTransport(carry)) as root:
            refusal = root.post("http://testserver/v1/pause", json={"reason": "x"})
            assert (refusal.status_code, "user root (0) has role user" in refusal.text) == (403, True)
            assert root.get("http://testserver/v1/jobs").json() == {"items": [], "next": None}

        challenge = routes.get("/v1/challenge").json()["challenge"]
        command, given = ["munge", f"--socket={socket}"], claim("testserver:80", challenge)
        made = subprocess.run(
            command, input=given, user=user.pw_uid, group=user.pw_gid, capture_output=True, check=True
        ).stdout.decode()
        asked = {"challenge": challenge, "server": "testserver:80", "credential": made.strip()}
        headers = {"Authorization": f"Bearer {routes.post('/v1/user-token', json=asked).json()['token']}"}
        assert f"user nobody ({user.pw_uid})" in routes.get("/v1/decisions", headers=headers).json()["detail"]
        again = asked | {"challenge": routes.get("/v1/challenge").json()["challenge"]}
        assert routes.post("/v1/user-token", json=again).status_code == 403
