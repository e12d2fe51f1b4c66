"""What strangers and users cost the control plane: `make bench-access` writes `build/bench/access.json`.

`loop_wait_under_readers_p99_milliseconds`: how long the loop waits for one small query while 100 viewers read as fast
as they get answers: the largest pages, and no pause between two requests. The real control plane with its database,
12,500 nodes and 300,000 decisions; the main thread takes the part of the loop. `quiet` is the same without readers, and
`tick_under_readers` a whole round of the loop. `rank_hello_under_flood_milliseconds`: `tests/bench/rank_flood.py`.
Ten thousand connections: `tests/bench/connection_flood.py`.
`authenticated_report_cost_ratio`: `tests/bench/report_cost.py`.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from sqlalchemy import Engine, insert

from tests import builders as b
from tests.bench.connection_flood import measure_connections
from tests.bench.rank_flood import measure_hellos
from tests.bench.report_cost import NODES, measure_report_cost
from tests.bench.report_load import node_name
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import NODES as FLEET_NODES
from tests.bench.tick import Fleet
from tests.testbed.configuration import free_ports
from tests.tokens import FOREVER, add_tokens
from understudy_controlplane.access.secret import digest_of
from understudy_controlplane.api.connections import Connections
from understudy_controlplane.api.server import Server
from understudy_controlplane.app import ControlPlane
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.serve import tune_interpreter
from understudy_controlplane.store import tables
from understudy_controlplane.store.tokens import NewToken, TokenStore

VIEWERS = 100
DECISIONS = 300_000
ROUNDS = 5
LOOKS_A_ROUND = 150
READS = (
    "/v1/status",
    "/v1/nodes?limit=1000",
    "/v1/decisions?limit=1000",
    "/v1/jobs?limit=1000",
    "/v1/gpus?limit=1000",
    "/v1/incidents",
    "/v1/recoveries",
    "/metrics",
)


def measure(size: Size) -> list[Result]:
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        directory = Path(name)
        fleet = Fleet(directory, size.of(FLEET_NODES, 400))
        fleet.tick()
        fleet.hear(0)
        fleet.tick()
        fill(fleet.control_plane.engine, size)
        add_tokens(fleet.control_plane.engine, map(node_name, range(NODES)))
        add_viewers(fleet.control_plane.engine)
        cost = measure_report_cost(fleet.control_plane, size)
        fleet.control_plane.telemetry.know(fleet.control_plane.stores.fleet.nodes())
        return [*measure_readers(fleet, directory, size), measure_hellos(size), *measure_connections(size), cost]


def fill(engine: Engine, size: Size) -> None:
    row = {
        "key": "k",
        "table_row": 251,
        "rule": "agent.silent",
        "action": "nothing",
        "because": "fleet_budget",
        "reason": "the limit of nodes quarantined at once is reached: 12 of 12",
        "evidence": {
            "silent_seconds": 31.5,
            "kernel_log": "Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
        },
    }
    rows = [row | {"at": b.NOW + number, "subject": f"c{number % 12_500}"} for number in range(size.of(DECISIONS, 300))]
    with engine.begin() as connection:
        connection.execute(insert(tables.decision), rows)


def viewer(number: object) -> str:
    return f"understudy_viewer-in-bench-{number}"


def add_viewers(engine: Engine) -> None:
    names = (viewer(number) for number in range(VIEWERS))
    tokens = [NewToken(digest_of(one), Role.VIEWER, one, "", b.NOW, "a benchmark", FOREVER) for one in names]
    TokenStore(engine).add(tokens)


def measure_readers(fleet: Fleet, directory: Path, size: Size) -> list[Result]:
    waits: dict[str, list[float]] = {"quiet": [], "readers": []}
    ticks: dict[str, list[float]] = {"quiet": [], "readers": []}
    with serving(fleet.control_plane) as url:
        for _ in range(size.of(ROUNDS, 1)):
            waits["quiet"].append(wait_p99(fleet))
            ticks["quiet"].append(tick(fleet))
            with reading(url, directory / "reads.lua"):
                waits["readers"].append(wait_p99(fleet))
                ticks["readers"].append(tick(fleet))
    return [
        result(
            "loop_wait_under_readers_p99_milliseconds",
            "ms",
            waits["readers"],
            {"quiet": waits["quiet"]},
            more_is_better=False,
        ),
        result("tick_under_readers", "s", ticks["readers"], {"quiet": ticks["quiet"]}, more_is_better=False),
    ]


def tick(fleet: Fleet) -> float:
    fleet.hear(0)
    begun = time.perf_counter()
    fleet.tick()
    return time.perf_counter() - begun


def wait_p99(fleet: Fleet) -> float:
    """Milliseconds for one query as the loop makes it, of `LOOKS_A_ROUND` queries."""
    seconds = []
    for _ in range(LOOKS_A_ROUND):
        begun = time.perf_counter()
        fleet.control_plane.stores.requests.stored()
        seconds.append(time.perf_counter() - begun)
        time.sleep(0.01)
    return sorted(seconds)[int(len(seconds) * 0.99)] * 1000


@contextmanager
def serving(control_plane: ControlPlane) -> Iterator[str]:
    """Its routes, without its loop."""
    (port,) = free_ports(1)
    config = uvicorn.Config(control_plane.app, port=port, log_level="warning", lifespan="off")
    server = Server(config, Connections(control_plane.reads.current.config.limits), control_plane.end_waits)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
        control_plane.close()


@contextmanager
def reading(url: str, script: Path) -> Iterator[None]:
    """Runs as many viewers as there are, each with its own connection and token."""
    paths = ", ".join(f'"{path}"' for path in READS)
    script.write_text(
        f"local paths = {{{paths}}}\nlocal next = 0\n"
        "request = function()\n  next = next + 1\n"
        f"  local headers = {{Authorization = 'Bearer {viewer('')}' .. next % {VIEWERS}}}\n"
        "  return wrk.format('GET', paths[next % #paths + 1], headers)\nend\n"
    )
    viewers = subprocess.Popen(
        ["wrk", "-t1", f"-c{VIEWERS}", "-d600s", "--timeout", "60s", "-s", script, url], stdout=subprocess.DEVNULL
    )
    try:
        time.sleep(1)
        yield
        assert viewers.poll() is None, "the readers have ended"
    finally:
        viewers.kill()
        viewers.wait()
