"""Prometheus and Alertmanager of Debian's packages, beside which Understudy is measured. One server is all nodes."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import which

import httpx

from tests.testbed.configuration import free_ports

PROMETHEUS, ALERTMANAGER = which("prometheus"), which("prometheus-alertmanager")

RULE = """
groups:
- name: nodes
  interval: 1s
  rules:
  - {alert: Xid, expr: xid > 0}
"""
ROUTE = """
route: {receiver: script, group_by: [instance], group_wait: 0s, group_interval: 1s}
receivers:
- name: script
  webhook_configs: [{url: 'http://127.0.0.1:%d/', send_resolved: false}]
"""


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            raise SystemExit(f"{server.args!r} ended at once with {server.returncode}")
        try:
            if httpx.get(url, timeout=1).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{url} did not answer within 60 s")


@contextmanager
def running(command: Sequence[str], url: str) -> Iterator[int]:
    """Process id of a server that answers."""
    server = subprocess.Popen(command)
    try:
        wait_for(url, server)
        yield server.pid
    finally:
        server.terminate()
        server.wait(30)


@contextmanager
def prometheus(directory: Path, nodes: Sequence[str], targets: int, alertmanager: int | None = None) -> Iterator[int]:
    """Scrapes every node each second from this port. With the port of an Alertmanager it reports each Xid there."""
    assert PROMETHEUS is not None
    (port,) = free_ports(1)
    jobs = "".join(
        f"  - targets: ['127.0.0.1:{targets}']\n    labels: {{__metrics_path__: /{node}, instance: {node}}}\n"
        for node in nodes
    )
    text = "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
    if alertmanager is not None:
        (directory / "rules.yml").write_text(RULE)
        managers = f"[{{static_configs: [{{targets: ['127.0.0.1:{alertmanager}']}}]}}]"
        text += f"rule_files: [rules.yml]\nalerting: {{alertmanagers: {managers}}}\n"
    config = directory / "prometheus.yml"
    config.write_text(f"{text}scrape_configs:\n- job_name: nodes\n  static_configs:\n{jobs}")
    options = (f"--config.file={config}", f"--storage.tsdb.path={directory}/tsdb", "--log.level=error")
    address = f"127.0.0.1:{port}"
    with running([PROMETHEUS, *options, f"--web.listen-address={address}"], f"http://{address}/-/ready") as pid:
        time.sleep(2)  # every node has been scraped
        yield pid


@contextmanager
def alertmanager(directory: Path, receiver: int) -> Iterator[tuple[int, int]]:
    """Process id and port. It posts each alert to this port at once."""
    assert ALERTMANAGER is not None
    (port,) = free_ports(1)
    config = directory / "alertmanager.yml"
    config.write_text(ROUTE % receiver)
    options = (f"--config.file={config}", f"--storage.path={directory}/alerts", "--cluster.listen-address=")
    address = f"127.0.0.1:{port}"
    command = [ALERTMANAGER, *options, f"--web.listen-address={address}", "--log.level=error"]
    with running(command, f"http://{address}/-/ready") as pid:
        yield pid, port


class Targets(ThreadingHTTPServer):
    """Answers scrapes with `body(node)`; `alerted(node)` is called for each alert."""

    daemon_threads = True

    def __init__(self, body: Callable[[str], bytes], alerted: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.body, self.alerted = body, alerted
        self.scraped = 0

    def handle_error(self, *_: object) -> None:
        """Prometheus has ended while it was answered."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Targets

    def do_GET(self) -> None:
        self.server.scraped += 1
        self._answer(self.server.body(self.path.strip("/")))

    def do_POST(self) -> None:
        for one in json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"]:
            self.server.alerted(one["labels"]["instance"])
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A line for each scrape says nothing."""


@contextmanager
def serving(targets: Targets) -> Iterator[int]:
    """Port."""
    thread = threading.Thread(target=targets.serve_forever)
    thread.start()
    try:
        yield targets.server_port
    finally:
        targets.shutdown()
        thread.join()
        targets.server_close()
