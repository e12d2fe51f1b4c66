"""How many full reports a second one core takes, beside an empty endpoint of the same server.

Server and load generator have a core each. Detection runs all the while over the step times that arrive.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests import PYTHON_PATH
from tests.bench.ingest_load import CLUSTER, GPUS, NODES, node_name, write_script
from tests.bench.result import Result, Size, result
from tests.testbed.configuration import free_ports
from tests.testbed.serve import PARAMETERS_FILE
from tests.tokens import with_tokens

ROUNDS = 5
ROUND_SECONDS = 4
CONNECTIONS = 32
SERVER_CORE, LOAD_CORE = 0, 1


def measure(size: Size) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        directory = Path(name)
        url, config = _configure(directory)
        server = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "tests.bench.ingest_server", str(config)],
            env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        )
        try:
            _wait_for(url, server)
            reports, empty = _rounds(directory, url, size.of(ROUNDS, 1), size.of(ROUND_SECONDS, 1))
            body = httpx.get(f"{url}/v1/status", timeout=10).json()
        finally:
            server.terminate()
            server.wait(20)
    return [
        result("ingest_full_reports", "1/s", reports, {"empty_endpoint": empty}, more_is_better=True),
        result(f"tick_{NODES * GPUS}_ranks", "s", [body["loop"]["tick_seconds"]], {}, more_is_better=False),
    ]


def _configure(directory: Path) -> tuple[str, Path]:
    port = free_ports(1)[0]
    config = directory / "controlplane.toml"
    config.write_text(
        f'cluster = "{CLUSTER}"\n[server]\nport = {port}\n'
        f'database = "sqlite:///{directory}/bench.db"\nwithout_token = "reads"\n'
    )
    limits = dict.fromkeys(
        ("writes_per_second_per_token", "reports_per_second_per_node", "connections_per_second_per_address"), 1e6
    )
    # Nodes are silent between two rounds of reports; that they are is not what is measured.
    silence = {"silent_after_seconds": 6}
    config.with_name(PARAMETERS_FILE).write_text(json.dumps({"limits": limits, "silence": silence}))
    with_tokens(f"sqlite:///{directory}/bench.db", map(node_name, range(NODES)))
    write_script(directory / "empty.lua", full=False)
    print(f"a report has {write_script(directory / 'full.lua', full=True)} bytes; {CONNECTIONS} connections")
    return f"http://127.0.0.1:{port}", config


def _wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(200):
        if server.poll() is not None:
            raise SystemExit(f"the server ended at once with {server.returncode}")
        try:
            if httpx.get(f"{url}/healthz", timeout=1).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not become healthy within 20 s")


def _rounds(directory: Path, url: str, rounds: int, seconds: int) -> tuple[list[float], list[float]]:
    reports: list[float] = []
    empty: list[float] = []
    for _ in range(rounds):
        empty.append(_wrk(url, directory / "empty.lua", seconds))
        reports.append(_wrk(url, directory / "full.lua", seconds))
        print(f"a round: {reports[-1]:,.0f} reports/s, {empty[-1]:,.0f} empty/s", flush=True)
    return reports, empty


def _wrk(url: str, script: Path, seconds: int) -> float:
    """Requests a second. A refused request or a socket error fails the benchmark."""
    done = subprocess.run(
        ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", script, url],
        capture_output=True,
        text=True,
        check=True,
    )
    if "Non-2xx" in done.stdout or "Socket errors" in done.stdout:
        raise SystemExit(f"requests failed:\n{done.stdout}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)
    if found is None:
        raise SystemExit(f"wrk's output is not understood:\n{done.stdout}")
    return float(found.group(1))
