"""What an operator waits for: `make bench-operators` writes `build/bench/operators.json`.

The control plane knows 12,500 nodes with 100,000 GPUs, all heard, 2,000 jobs and 300,000 decisions.
`cli_help_milliseconds` and `cli_status_milliseconds_12500` are whole commands, from the start of Python to its end;
their rival is `python -c pass`. The others are answers of the API. The median of the rounds counts. Of
`commands_milliseconds_12500` and `routes_milliseconds_12500` the worst counts: the slowest of all commands that show
something, and of all routes to read, each by the median of three.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import httpx
from fastapi import FastAPI

from tests import PYTHON_PATH
from tests.bench.access import fill, serving
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import NODES
from tests.bench.tick import Fleet
from tests.tokens import add_tokens, bearer, secret
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.serve import tune_interpreter

ROUNDS = 15
NODE = "c7"
COMMANDS = (
    *("node list", "job list", "spare list", "spare show", "topology show", "incident list", "decision list"),
    *("recovery list", "ticket list", "checkpoints", "report", "mode show", "observed", "breaker show", "status"),
    *(f"node show {NODE}", f"explain node {NODE}", "job show 1", "explain job 1", "node requests"),
)
NOT_READ = ("/v1/events", "/v1/restore-point")
UNDERSTUDY = ("-m", "understudy_agent.entry")


def measure(size: Size) -> list[Result]:
    tune_interpreter()
    rounds = size.of(ROUNDS, 1)
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        directory = Path(name)
        fleet = Fleet(directory, size.of(NODES, 400))
        fleet.tick()
        fleet.hear(0)
        fleet.tick()
        fill(fleet.control_plane.engine, size)
        add_tokens(fleet.control_plane.engine)
        (directory / "token").write_text(secret(Role.VIEWER))
        with serving(fleet.control_plane) as url:
            routes = readable(fleet.control_plane.app)
            return [
                *measure_commands(url, directory / "token", COMMANDS[: size.of(len(COMMANDS), 2)], rounds),
                *measure_answers(url, rounds),
                measure_routes(url, routes),
            ]


def measure_commands(url: str, token_file: Path, commands: Sequence[str], rounds: int) -> list[Result]:
    given = {"UNDERSTUDY_URL": url, "UNDERSTUDY_TOKEN_FILE": str(token_file), "PYTHONPATH": PYTHON_PATH}
    environment = os.environ | given

    def run(*arguments: str) -> float:
        return milliseconds(
            lambda: subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
        )

    each = {command: median(run(*UNDERSTUDY, *command.split()) for _ in range(3)) for command in commands}
    print("slowest command:", max(each, key=lambda command: each[command]))
    python, shown, status = [], [], []
    for _ in range(rounds):
        python.append(run("-c", "pass"))
        shown.append(run(*UNDERSTUDY, "--help"))
        status.append(run(*UNDERSTUDY, "status"))
    rivals = {"python_start": python}
    return [
        result("cli_help_milliseconds", "ms", shown, rivals, more_is_better=False),
        result("cli_status_milliseconds_12500", "ms", status, rivals, more_is_better=False),
        result("commands_milliseconds_12500", "ms", [*each.values()], {}, more_is_better=False, rounds=False),
    ]


def measure_answers(url: str, rounds: int) -> list[Result]:
    with httpx.Client(base_url=url, headers=bearer(Role.VIEWER), timeout=60, trust_env=False) as client:

        def read(path: str) -> int:
            answer = client.get(path)
            assert answer.status_code == 200, answer.text
            return len(answer.content)

        pages = [milliseconds(lambda: read("/v1/nodes?limit=1000")) for _ in range(rounds)]
        scrapes = [milliseconds(lambda: read("/metrics")) for _ in range(rounds)]
        size = read("/metrics")
    return [
        result("api_nodes_page_milliseconds_12500", "ms", pages, {}, more_is_better=False),
        result("metrics_scrape_milliseconds_12500", "ms", scrapes, {}, more_is_better=False),
        result("metrics_bytes_12500", "bytes", [size], {}, more_is_better=False),
    ]


def readable(app: FastAPI) -> list[str]:
    """All routes to read but the stream of events and those for agents, each with an address that there is."""
    some = {"node": NODE, "job_id": 1, "decision": 1}
    paths = [path for path, methods in app.openapi()["paths"].items() if "get" in methods and path not in NOT_READ]
    return [path.format_map(some) for path in paths if set(re.findall(r"{(\w+)}", path)) <= some.keys()]


def measure_routes(url: str, routes: Sequence[str]) -> Result:
    each = {}
    with httpx.Client(base_url=url, headers=bearer(Role.OPERATOR), timeout=60, trust_env=False) as client:
        for path in routes:
            answer = client.get(path)
            assert answer.status_code == 200, answer.text
            each[path] = median(milliseconds(partial(client.get, path)) for _ in range(3))
    slowest = max(each, key=lambda path: each[path])
    print(f"slowest of {len(each)} routes: {slowest}")
    return result("routes_milliseconds_12500", "ms", [*each.values()], {}, more_is_better=False, rounds=False)


def milliseconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1000
