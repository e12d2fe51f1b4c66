"""What a report costs the control plane: `report_processor_microseconds`, processor time of its event loop for a report
of 8 GPUs and 8 ranks with ten steps each, while detection runs over what arrives.

Beside it, in rounds that take turns: the same requests to an empty application on the same server (uvicorn), and
Prometheus, where it is installed, that scrapes the same values of the same nodes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import PYTHON_PATH
from tests.bench.processor import spent
from tests.bench.prometheus import PROMETHEUS, Targets, prometheus, running, serving
from tests.bench.report_load import CLUSTER, NODES, exposition, node_name, write_script
from tests.bench.result import Result, Size, result
from tests.testbed.configuration import free_ports
from tests.testbed.serve import PARAMETERS_FILE
from tests.tokens import with_tokens

ROUNDS = 5
ROUND_SECONDS = 4
CONNECTIONS = 32


def measure(size: Size) -> list[Result]:
    rounds, seconds = size.of(ROUNDS, 1), size.of(ROUND_SECONDS, 1)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="understudy-bench-")))
        port, config = _configure(directory)
        (bare_port,) = free_ports(1)
        plane = stack.enter_context(_server("report_server", str(config), port))
        bare = stack.enter_context(_server("bare_server", str(bare_port), bare_port))
        sides: dict[str, Callable[[], float]] = {
            "report": lambda: _a_request(plane, f"http://127.0.0.1:{port}", directory, seconds),
            "bare_server": lambda: _a_request(bare, f"http://127.0.0.1:{bare_port}", directory, seconds),
        }
        if PROMETHEUS is not None and size is Size.FULL:  # tests.bench.event shows in small that it runs
            scrape = stack.enter_context(_scraping(directory))
            sides["prometheus"] = lambda: scrape(seconds)
        elif PROMETHEUS is None:
            print("prometheus is not installed: its ingestion of the same values is not measured")
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(rounds):
            for name, side in sides.items():
                found[name].append(side())
            print({name: round(values[-1], 1) for name, values in found.items()}, flush=True)
    reports = found.pop("report")
    return [
        result("report_processor_microseconds", "µs", reports, found, more_is_better=False),
        result("reports_for_one_core", "1/s", [1e6 / one for one in reports], {}, more_is_better=True),
    ]


def _configure(directory: Path) -> tuple[int, Path]:
    port = free_ports(1)[0]
    config = directory / "controlplane.toml"
    config.write_text(
        f'cluster = "{CLUSTER}"\n[server]\nport = {port}\n'
        f'database = "sqlite:///{directory}/bench.db"\nwithout_token = "reads"\n'
    )
    limits = dict.fromkeys(
        ("writes_per_second_per_token", "reports_per_second_per_node", "connections_per_second_per_address"), 1e6
    )
    config.with_name(PARAMETERS_FILE).write_text(json.dumps({"limits": limits}))
    with_tokens(f"sqlite:///{directory}/bench.db", map(node_name, range(NODES)))
    print(f"a report has {write_script(directory / 'reports.lua')} bytes; {CONNECTIONS} connections")
    return port, config


@contextmanager
def _server(module: str, argument: str, port: int) -> Iterator[int]:
    os.environ["PYTHONPATH"] = PYTHON_PATH
    command = [sys.executable, "-m", f"tests.bench.{module}", argument]
    with running(command, f"http://127.0.0.1:{port}/healthz") as pid:
        yield pid


def _a_request(server: int, url: str, directory: Path, seconds: int) -> float:
    """Processor time of the server's first thread, its event loop, in microseconds. A request that is refused or fails
    ends the benchmark.
    """
    before = spent(server, thread=server)
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(directory / "reports.lua"), url]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took = spent(server, thread=server) - before
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise SystemExit(f"requests failed:\n{done.stdout}")
    found = re.search(r"(\d+) requests in", done.stdout)
    if found is None:
        raise SystemExit(f"wrk's output is not understood:\n{done.stdout}")
    return took / int(found.group(1)) * 1e6


@contextmanager
def _scraping(directory: Path) -> Iterator[Callable[[int], float]]:
    """What a node's values cost Prometheus within so many seconds, in microseconds of all its threads."""
    targets = Targets(lambda _node: exposition(targets.scraped))
    nodes = [node_name(index) for index in range(NODES)]
    with serving(targets) as port, prometheus(directory, nodes, port) as pid:

        def scrape(seconds: int) -> float:
            before, scraped = spent(pid), targets.scraped
            time.sleep(seconds)
            return (spent(pid) - before) / max(targets.scraped - scraped, 1) * 1e6

        yield scrape
