"""Commands that send requests: which token they use, and what they print where they cannot."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from understudy_controlplane.cli.main import root

NO_ONE_LISTENS = "http://127.0.0.1:1"


class Plane(http.server.BaseHTTPRequestHandler):
    """Answers each request with `answer`."""

    asked: ClassVar[list[tuple[str, str | None, object]]] = []
    status: ClassVar[int] = 200
    answer: ClassVar[bytes] = json.dumps(
        {"request": 7, "subject": "fleet", "verb": "reset-breaker", "outcome": "will_act", "why": "it is closed"}
    ).encode()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], body))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

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


def run(*arguments: str | Path, home: Path, status: int = 0, **environment: str) -> str:
    usual = {"HOME": str(home), "COLUMNS": "200", "UNDERSTUDY_TOKEN_FILE": "", "UNDERSTUDY_CA_FILE": ""}
    done = CliRunner().invoke(root, list(map(str, arguments)), env=usual | environment)
    assert done.exit_code == status, done.output
    return done.output


def test_the_token_of_the_named_file_goes_along_and_the_reason_alone_in_the_body(url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("mine\r\n", "utf-8-sig")  # as an editor of Windows saves it
    printed = run("breaker", "reset", "cables", "--url", url, "--token-file", tmp_path / "token", home=tmp_path)
    assert "closed" in printed
    assert Plane.asked == [("/v1/breaker/reset", "Bearer mine", {"reason": "cables"})]


def test_without_a_named_file_the_users_own_counts(url: str, tmp_path: Path) -> None:
    (tmp_path / ".config" / "understudy").mkdir(parents=True)
    (tmp_path / ".config" / "understudy" / "token").write_text("own", "utf-8-sig")
    run("breaker", "reset", "cables", "--url", url, home=tmp_path)
    assert Plane.asked[0][1] == "Bearer own"


def test_no_proxy_of_the_environment_is_used(url: str, tmp_path: Path) -> None:
    run("breaker", "reset", "cables", "--url", url, home=tmp_path, http_proxy=NO_ONE_LISTENS, all_proxy=NO_ONE_LISTENS)
    assert len(Plane.asked) == 1


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none"
    printed = run("status", "--url", NO_ONE_LISTENS, "--token-file", missing, home=tmp_path, status=2)
    assert "none: cannot be read" in printed
    printed = run("status", "--url", NO_ONE_LISTENS, "--ca-file", missing, home=tmp_path, status=2)
    assert "none: cannot be used" in printed


def test_a_named_file_without_a_token_is_refused_and_no_other_identity_counts(url: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    printed = run("breaker", "reset", "x", "--url", url, "--token-file", empty, home=tmp_path, status=2)
    assert "empty: is empty" in printed
    assert not Plane.asked


@pytest.mark.parametrize("address", [NO_ONE_LISTENS, "http://[", "http://no..name:7117"])
def test_a_control_plane_that_does_not_answer_is_named(address: str, tmp_path: Path) -> None:
    assert f"{address}: no answer" in run("status", "--url", address, home=tmp_path, status=4)


def test_an_address_without_a_scheme_is_a_usage_error(tmp_path: Path) -> None:
    printed = run("status", "--url", "head1:7117", home=tmp_path, status=2)
    assert "head1:7117 is no URL of a control plane: it has to begin with http:// or https://" in printed


def test_a_control_plane_without_tls_is_named_as_such(url: str, tmp_path: Path) -> None:
    assert "it speaks no TLS" in run("status", "--url", f"https{url.removeprefix('http')}", home=tmp_path, status=4)


@pytest.mark.parametrize(
    ("status", "answer", "code", "printed"),
    [
        (200, b"<html>", 4, "cannot be read"),
        (200, b'{"paused": ""}', 4, "cannot be read"),
        (
            401,
            b'{"detail": "no valid token", "hint": "send one"}',
            1,
            "; name the file of your own token with --token-file",
        ),
        (404, b"not found", 1, "HTTP 404 not found; check the URL"),
        (404, b"\n<!doctype html>", 1, "HTTP 404, and a page for browsers; the URL of the control plane has no path"),
        (409, b'{"detail": "n1 is retired", "hint": "release it"}', 3, "n1 is retired; release it"),
        (422, b'{"detail": "reason must not be empty"}', 2, "reason must not be empty"),
        (503, b'{"detail": "the database does not answer"}', 4, "the database does not answer"),
    ],
)
def test_each_refusal_has_its_exit_code(  # noqa: PLR0917 - one row of the table
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, answer: bytes, code: int, printed: str
) -> None:
    monkeypatch.setattr(Plane, "status", status)
    monkeypatch.setattr(Plane, "answer", answer)
    assert printed in run("breaker", "reset", "x", "--url", url, home=tmp_path, status=code)
