"""`python -m tests.fuzz.openapi [SENDER ...] --seconds 180`: schemathesis over the whole OpenAPI document, with a token
of each role, with none, and by an administrator's session of a browser. schemathesis has an environment of its own.

Ends with 1 where an answer is an error of the server, or is not what the document describes.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import structlog
import uvicorn

from tests import NOT_POSSIBLE_HERE, REPOSITORY
from tests import builders as b
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.tokens import add_tokens, as_user, bearer
from understudy_controlplane.access.secret import digest_of
from understudy_controlplane.access.sessions import COOKIE
from understudy_controlplane.api.openapi import describe
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.serve import listen
from understudy_controlplane.store.tokens import NewToken, TokenStore

FOLDER = REPOSITORY / "build" / "schemathesis"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
NO_TOKEN, BROWSER = "none", "browser"
SENDERS = (NO_TOKEN, *(role.value for role in Role), BROWSER)
SESSION = "understudy_secret-of-a-session-in-tests"


class Still:
    def now(self) -> float:
        return b.NOW

    def monotonic(self) -> float:
        return b.NOW


@contextmanager
def plane_without_rates(folder: Path) -> Iterator[ControlPlane]:
    """Its streams of events end at once."""
    limits = {
        "requests_per_second_per_address": 1e9,
        "reports_per_second_per_node": 1e9,
        "reads_per_second_per_token": 1e9,
        "writes_per_second_per_token": 1e9,
    }
    server = {"database": new_database(folder / "fleet.db"), "port": 0}
    config = b.config(mode="observe", server=server, limits=limits)
    with closing(compose(config, Outside(VirtualSlurm(["n1", "n2"]), lambda _node: True, Still()))) as plane:
        plane.loop.tick()
        plane.end_waits()
        add_tokens(plane.engine, ["n1"])
        yield plane


@contextmanager
def served(plane: ControlPlane) -> Iterator[str]:
    """Its URL."""
    server = uvicorn.Server(uvicorn.Config(plane.app, lifespan="off", log_level="error", access_log=False, ws="none"))
    (socket,) = listen(plane.current.config.server)
    thread = threading.Thread(target=server.run, args=([socket],))
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


def headers_of(sender: str, plane: ControlPlane, address: str = "127.0.0.1") -> dict[str, str]:
    if sender == NO_TOKEN:
        return {}
    if sender == BROWSER:
        return {"Cookie": f"{COOKIE}={SESSION}", "Sec-Fetch-Site": "same-origin"}
    if sender == Role.USER:
        return as_user(plane.admission, 1000, address=address)
    return bearer(Role(sender), "n1" if sender == Role.NODE else "")


def schemathesis() -> Path | None:
    """The program; None: it cannot be installed here."""
    program = FOLDER / "bin" / "schemathesis"
    if not program.exists():
        install = (FOLDER / "bin" / "python", "-m", "pip", "install", "--quiet", "schemathesis>=4.30")
        try:
            subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
            subprocess.run(install, check=True)
        except subprocess.CalledProcessError:
            return None
    return program


def run(program: Path, plane: ControlPlane, sender: str, seconds: float) -> int:
    with tempfile.TemporaryDirectory() as folder, served(plane) as url:
        document = Path(folder) / "openapi.json"
        document.write_text(json.dumps(describe(plane.app.openapi())))
        command: list[str | Path] = [program, "run", document, "--url", url, "--max-time", f"{seconds:.0f}"]
        command += [
            "--checks",
            ",".join(CHECKS),
            "--phases",
            "examples,coverage,fuzzing",
            "--continue-on-failure",
            "--no-shrink",
            "--warnings=off",
        ]
        for name, value in headers_of(sender, plane).items():
            command += ["--header", f"{name}: {value}"]
        return subprocess.run(command, cwd=folder, check=False, env=os.environ | {"NO_COLOR": "1"}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.openapi", description=__doc__)
    parser.add_argument("senders", nargs="*", choices=[*SENDERS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=180.0, help="for each sender")
    options = parser.parse_args()
    program = schemathesis()
    if program is None:
        print("NOT RUN: schemathesis cannot be installed here")
        return NOT_POSSIBLE_HERE
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    failed = []
    for sender in options.senders or SENDERS:
        print(f"== {sender}", flush=True)
        with tempfile.TemporaryDirectory() as folder, plane_without_rates(Path(folder)) as plane:
            admin = next(one for one in TokenStore(plane.engine).all() if one.role is Role.ADMIN)
            session = NewToken(digest_of(SESSION), Role.ADMIN, "x", "", b.NOW, "login", admin.expires_at, admin.id)
            TokenStore(plane.engine).add([session])
            if run(program, plane, sender, options.seconds):
                failed.append(sender)
    print(f"{', '.join(failed)}: not as the document says" if failed else "all as the document says")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
