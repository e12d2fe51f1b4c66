"""A control plane that keeps what it receives: real HTTP on a real port, so that it can stop and start again."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tests.testbed.configuration import free_ports
from tests.waiting import PATIENCE_SECONDS, wait_until
from understudy_wire.addresses import with_port
from understudy_wire.facts import Fact, RestoreReport
from understudy_wire.launcher import LauncherAnswer, LauncherReport
from understudy_wire.leader import LEADER_HEADER
from understudy_wire.messages import REPORT_BYTES_MAX, Refusal, Report
from understudy_wire.ranks import ComputeTestOrder, JobNote, SaveOrder

TOKEN = "correct-horse"


class FakeControlPlane:
    def __init__(self, host: str = "127.0.0.1") -> None:
        self.reports: list[Report] = []
        self.token = TOKEN
        self.leader = ""
        """Installation and term, as it names them with each answer; empty: it names none."""
        self.refuse: Callable[[Report], tuple[int, str] | None] = lambda _: None
        """Called with a report: returns status and body to refuse it with."""
        self.restore_points: dict[tuple[int, int], tuple[int, str]] = {}
        self.restore_files: list[str] = []
        """Files that each rank is to fetch from an object store."""
        self.look_file = ""
        self.look_sizes: list[dict[str, object]] = []
        self.line = ""
        self.looks = False
        """A rank that can is asked to look whether the checkpoint is there."""
        self.restore_unknown = ""
        """Why no restore point can be named."""
        self.restore_requests = 0
        self.authorization: str | None = None
        """Header of the newest request for a restore point."""
        self.launchers: list[LauncherReport] = []
        self.refuse_launcher: tuple[int, str] | None = None
        self._answer_to_launchers = LauncherAnswer()
        self._news = threading.Condition()
        self.unfit = ""
        """Why no new job may start on the node."""
        self.more: dict[str, object] = {}
        """Fields of the acknowledgement that only a newer release has."""
        self.compute_tests: list[ComputeTestOrder] = []
        self.job_notes: list[JobNote] = []
        self.save_orders: Callable[[Report], list[SaveOrder]] = lambda _: []
        """What the ranks in a report are to know."""
        self._host = host
        [self.port] = free_ports(1)  # one that no connection of another test can get while this is stopped
        self._server: _Server | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://{with_port(self._host, self.port)}"

    @property
    def facts(self) -> list[Fact]:
        return [fact for report in list(self.reports) for fact in report.facts]

    def answer_launchers(self, answer: LauncherAnswer) -> None:
        """Every launcher, at once."""
        with self._news:
            self._answer_to_launchers = answer
            self._news.notify_all()

    def wait_for_orders(self, known: str, seconds: float) -> LauncherAnswer:
        with self._news:
            self._news.wait_for(lambda: self._answer_to_launchers.orders_version not in ("", known), min(seconds, 1.0))
            answer = self._answer_to_launchers
            if answer.orders_version != known:
                return answer
            return LauncherAnswer(
                restore_step=answer.restore_step,
                restore_path=answer.restore_path,
                restore_ranks=answer.restore_ranks,
            )

    def start(self) -> None:
        self._server = _Server((self._host, self.port), self)
        # The pause between checks for shutdown, not for requests.
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Stops like a killed process: the port closes, and every connection."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
            server.disconnect()

    def wait_for(
        self, condition: Callable[[FakeControlPlane], object], timeout_seconds: float = PATIENCE_SECONDS
    ) -> None:
        def seen() -> str:
            return f"{len(self.reports)} reports, last: {self.reports[-1] if self.reports else None}"

        wait_until(lambda: condition(self), seen, timeout_seconds)

    def __enter__(self) -> FakeControlPlane:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    def __init__(self, address: tuple[str, int], plane: FakeControlPlane) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)
        self.plane = plane
        self.connections: set[socket.socket] = set()

    def disconnect(self) -> None:
        for connection in list(self.connections):
            with contextlib.suppress(OSError):  # the client closed it first
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that disconnects is no error here."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        plane = self.server.plane
        if len(body) > REPORT_BYTES_MAX:
            self._refuse(413, f"{len(body)} bytes")
            return
        if self.headers["Authorization"] != f"Bearer {plane.token}":
            self._refuse(401, "unknown token")
            return
        if self.path == "/v1/launchers":
            self._follow(plane, msgspec.json.decode(body, type=LauncherReport))
            return
        report = msgspec.json.decode(body, type=Report)
        refusal = plane.refuse(report)
        if refusal is not None:
            self._refuse(*refusal)
            return
        plane.reports.append(report)
        orders = msgspec.to_builtins(plane.save_orders(report))
        more = {"save_orders": orders} if orders else {}
        more |= {"compute_tests": msgspec.to_builtins(plane.compute_tests)} if plane.compute_tests else {}
        more |= {"job_notes": msgspec.to_builtins(plane.job_notes)} if plane.job_notes else {}
        self._answer(200, {"facts": len(report.facts), "unfit": plane.unfit, **more, **plane.more})

    def _follow(self, plane: FakeControlPlane, report: LauncherReport) -> None:
        plane.launchers.append(report)
        if plane.refuse_launcher is not None:
            self._refuse(*plane.refuse_launcher)
            return
        self._answer(200, msgspec.to_builtins(plane.wait_for_orders(report.known, report.wait_seconds)))

    def do_GET(self) -> None:
        plane = self.server.plane
        plane.restore_requests += 1
        plane.authorization = self.headers.get("Authorization")
        query = dict(pair.split("=") for pair in self.path.partition("?")[2].split("&"))
        job_id, restart_count = int(query["job_id"]), int(query["restart_count"])
        if plane.restore_unknown:
            self._refuse(409, plane.restore_unknown)
            return
        point = plane.restore_points.get((job_id, restart_count))
        if point is None:
            self._refuse(404, f"job {job_id} is not known")
            return
        answer = {"job_id": job_id, "restart_count": restart_count, "step": point[0], "path": point[1]}
        answer |= {
            "files": plane.restore_files,
            "look_file": plane.look_file,
            "look_sizes": plane.look_sizes,
            "line": plane.line,
        }
        reports = [fact for fact in plane.facts if isinstance(fact, RestoreReport) and fact.path == point[1]]
        self._answer(200, answer | {"look": plane.looks and not reports and "looks" in query})

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def _refuse(self, status: int, detail: str) -> None:
        self._answer(status, msgspec.to_builtins(Refusal(HTTPStatus(status).phrase, status, "code", detail)))

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if self.server.plane.leader:
            self.send_header(LEADER_HEADER, self.server.plane.leader)
        self.end_headers()
        self.wfile.write(body)
