"""Prometheus and Alertmanager, as Debian packages them, for a test: on ports of their own, with files in a folder."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx

from tests.testbed.configuration import free_ports

START_SECONDS_MAX = 30.0
END_SECONDS_MAX = 10.0

CLIENT = httpx.Client(trust_env=False)
"""One for all: making a client takes 40 ms of processor time."""


def wait_for(happened: Callable[[], bool], what: str, seconds: float = START_SECONDS_MAX) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, f"not within {seconds:.0f} s: {what}"
        time.sleep(0.2)


@contextmanager
def running(command: Sequence[str | Path], log: Path, url: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        wait_for(lambda: process.poll() is not None or _is_ready(url), f"{command[0]} starts")
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        return CLIENT.get(f"{url}/-/ready").is_success
    except httpx.TransportError:
        return False


@dataclass(frozen=True)
class Prometheus:
    url: str

    def query(self, expression: str) -> list[Any]:
        """Raises AssertionError for a query that Prometheus does not understand."""
        return list(self._get("query", query=expression)["result"])

    def names(self) -> set[str]:
        """Names of all metrics that it has."""
        return set(self._get("label/__name__/values"))

    def rules(self) -> list[Any]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        answer = CLIENT.get(f"{self.url}/api/v1/{path}", params=parameters).json()
        assert answer["status"] == "success", (parameters, answer)
        return answer["data"]


@contextmanager
def prometheus(folder: Path, configuration: str) -> Iterator[Prometheus]:
    (port,) = free_ports(1)
    file = folder / "prometheus.yml"
    file.write_text(configuration)
    arguments = (
        f"--config.file={file}",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--rules.alert.resend-delay=1s",  # those that fired before it had found Alertmanager
    )
    url = f"http://127.0.0.1:{port}"
    with running(["prometheus", *arguments], folder / "prometheus.log", url):
        yield Prometheus(url)


@dataclass
class Receiver:
    """A webhook's receiver: alerts that fire, by name."""

    fired: dict[str, dict[str, str]] = field(default_factory=dict)
    port: int = 0


@contextmanager
def alertmanager(folder: Path) -> Iterator[tuple[str, Receiver]]:
    """Its address, for Prometheus, and what it has sent."""
    receiver = Receiver()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for alert in body["alerts"]:
                if alert["status"] == "firing":
                    receiver.fired[alert["labels"]["alertname"]] = alert["annotations"]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    (port,) = free_ports(1)
    file = folder / "alertmanager.yml"
    hook = f"http://127.0.0.1:{server.server_address[1]}"
    file.write_text(
        "route: {receiver: test, group_by: ['...'], group_wait: 0s, group_interval: 1s, repeat_interval: 1h}\n"
        f"receivers: [{{name: test, webhook_configs: [{{url: '{hook}'}}]}}]\n"
    )
    arguments = (
        f"--config.file={file}",
        f"--storage.path={folder}/alertmanager",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    )
    address = f"127.0.0.1:{port}"
    try:
        with running(["prometheus-alertmanager", *arguments], folder / "alertmanager.log", f"http://{address}"):
            yield address, receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
