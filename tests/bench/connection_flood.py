"""What ten thousand connections cost that send half a request and then nothing: figures of `make bench-access`.

`answer_beside_10000_connections_milliseconds`: what `/healthz` takes for another client while they are open (`quiet`:
while none is). `memory_kept_by_10000_connections_megabytes`: what the control plane has more after the last flood than
after the first: some megabytes, up or down, also after seven floods. The control plane is the real one, in a process
of its own, with the default limits.
"""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

from tests import REPOSITORY
from tests import builders as b
from tests.bench.result import Result, Size, result
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from tests.testbed.configuration import free_ports
from understudy_controlplane.app import Outside, compose
from understudy_controlplane.serve import listen, server_of, tune_interpreter

CONNECTIONS = 10_000
ADDRESSES = 40
FLOODS = 3
ANSWERS = 60
MEGABYTE = 1_000_000


def measure_connections(size: Size) -> list[Result]:
    connections, count = size.of((CONNECTIONS, ANSWERS), (100, 3))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, CONNECTIONS + 1000), most))
    quiet, beside, bytes_after = list[float](), list[float](), list[int]()
    with control_plane() as (port, process):
        quiet += answers(port, count)
        for _ in range(size.of(FLOODS, 2)):
            with ExitStack() as flood:
                for number in range(connections):
                    one = socket.socket()
                    flood.enter_context(one)
                    one.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
                    one.connect(("127.0.0.1", port))
                    one.sendall(b"GET /v1/st")
                held = connections_of(port)
                beside += answers(port, count)
                assert held > connections * 0.9, f"only {held} connections are open"
            while connections_of(port) > 10:
                time.sleep(0.1)
            answers(port, count)
            bytes_after.append(resident_bytes(process.pid))
    kept = (bytes_after[-1] - bytes_after[0]) / MEGABYTE
    return [
        result("answer_beside_10000_connections_milliseconds", "ms", beside, {"quiet": quiet}, more_is_better=False),
        result("memory_kept_by_10000_connections_megabytes", "MB", [kept], {"quiet": [0.0]}, more_is_better=False),
    ]


def answers(port: int, count: int) -> list[float]:
    """Milliseconds of each, with its connection."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        with closing(HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status in (200, 503)
        found.append((time.perf_counter() - begun) * 1000)
    return found


def connections_of(port: int) -> int:
    """Established ones that this port has, as the kernel counts them."""
    listed = Path("/proc/net/tcp").read_text()
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in listed.splitlines()[1:])


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


@contextmanager
def control_plane() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    [port] = free_ports(1)
    command = (sys.executable, "-m", "tests.bench.connection_flood", str(port))
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL)
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                assert process.poll() is None
                time.sleep(0.1)
            else:
                break
        time.sleep(1)
        yield port, process
    finally:
        process.kill()
        process.wait()


def serve(port: int) -> None:
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        config = b.config(server={"database": new_database(Path(folder) / "fleet.db"), "port": port})
        with closing(compose(config, Outside(VirtualSlurm(["n1"]), lambda _node: True))) as plane:
            server_of(plane, config, None).run(listen(config.server))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
