"""How a node without MUNGE gets its token."""

from __future__ import annotations

import http.server
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from understudy_agent.config import Config, ConfigError
from understudy_agent.enrolment import enroll


class Plane(http.server.BaseHTTPRequestHandler):
    codes: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        code = self.headers["Authorization"].removeprefix("Bearer ")
        self.codes.append(code)
        status, value = (200, {"token": "own", "seconds": 9.0}) if code == "good" else (401, {"error": "no"})
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    Plane.codes.clear()
    with http.server.HTTPServer(("127.0.0.1", 0), Plane) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def config(url: str, file: Path | None) -> Config:
    return Config(cluster="c", control_plane_urls=("http://127.0.0.1:1", url), node="n1", token_file=file)


def test_the_code_becomes_a_file_for_its_owner_alone(url: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.token"
    enroll(config(url, file), "good")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("own\n", 0o600)
    assert list(tmp_path.iterdir()) == [file]


def test_a_refused_code_leaves_the_token_that_is_there(url: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.token"
    file.write_text("before")
    with pytest.raises(ConfigError, match="HTTP 401"):
        enroll(config(url, file), "bad")
    assert (file.read_text(), list(tmp_path.iterdir())) == ("before", [file])


def test_a_code_is_not_used_up_where_its_token_could_not_be_kept(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        enroll(config(url, tmp_path / "none" / "agent.token"), "good")
    with pytest.raises(ConfigError, match="not set"):
        enroll(config(url, None), "good")
    with pytest.raises(ConfigError, match="no code"):
        enroll(config(url, tmp_path / "agent.token"), "")
    assert Plane.codes == []


def test_a_control_plane_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no control plane answers: http://127\.0\.0\.1:1: ConnectError"):
        enroll(config("http://127.0.0.1:1", tmp_path / "agent.token"), "good")
