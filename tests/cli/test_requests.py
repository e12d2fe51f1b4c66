"""Commands that send requests: which token they use, and what they print where they cannot."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from typer.testing import CliRunner

from understudy_controlplane.cli.main import app

NO_ONE_LISTENS = "http://127.0.0.1:1"


class Plane(http.server.BaseHTTPRequestHandler):
    asked: ClassVar[list[tuple[str, str | None, object]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        answer = json.dumps({"node": "n1", "asked": "hold", "state": "in_service"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Plane.asked.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Plane) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(*arguments: str | Path, home: Path, status: int = 0) -> str:
    environment = {"HOME": str(home), "COLUMNS": "200", "UNDERSTUDY_TOKEN_FILE": "", "UNDERSTUDY_CA_FILE": ""}
    done = CliRunner().invoke(app, list(map(str, arguments)), env=environment)
    assert done.exit_code == status, done.output
    return done.output


def test_the_token_of_the_named_file_goes_along_and_the_reason_alone_in_the_body(url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("mine\n")
    printed = run("hold", "n1", "cables", "--url", url, "--token-file", tmp_path / "token", home=tmp_path)
    assert "n1 is in_service: hold requested" in printed
    assert Plane.asked == [("/v1/nodes/n1/hold", "Bearer mine", {"reason": "cables"})]


def test_without_a_named_file_the_users_own_counts(url: str, tmp_path: Path) -> None:
    (tmp_path / ".config" / "understudy").mkdir(parents=True)
    (tmp_path / ".config" / "understudy" / "token").write_text("own")
    run("hold", "n1", "cables", "--url", url, home=tmp_path)
    assert Plane.asked[0][1] == "Bearer own"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    printed = run("hold", "n1", "x", "--url", NO_ONE_LISTENS, "--token-file", missing, home=tmp_path, status=2)
    assert "none: cannot be read" in printed
    printed = run("--ca-file", missing, "status", "--url", NO_ONE_LISTENS, home=tmp_path, status=2)
    assert "none: cannot be used" in printed


def test_a_control_plane_that_does_not_answer_is_named(tmp_path: Path) -> None:
    assert "http://127.0.0.1:1: no answer" in run("status", "--url", NO_ONE_LISTENS, home=tmp_path, status=1)
