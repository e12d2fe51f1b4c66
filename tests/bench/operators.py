"""What an operator waits for: `make bench-operators` writes `build/bench/operators.json`.

The control plane knows 12,500 nodes with 100,000 GPUs, all heard, 2,000 jobs and 300,000 decisions.
`cli_help_milliseconds` and `cli_status_milliseconds_12500` are whole commands, from the start of Python to its end;
their rival is `python -c pass`. The others are answers of the API. The median of the rounds counts.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import structlog

from tests import PYTHON_PATH
from tests.bench.access import fill, serving
from tests.bench.result import Result, result, write
from tests.bench.tick import Fleet
from tests.tokens import add_tokens, bearer, secret
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.serve import tune_interpreter

ROUNDS = 15
UNDERSTUDY = ("-m", "understudy_agent.entry")


def main() -> int:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    tune_interpreter()
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name:
        directory = Path(name)
        fleet = Fleet(directory)
        fleet.tick()
        fleet.hear(0)
        fleet.tick()
        fill(fleet.control_plane.engine)
        add_tokens(fleet.control_plane.engine)
        (directory / "token").write_text(secret(Role.VIEWER))
        with serving(fleet.control_plane) as url:
            results = [*measure_commands(url, directory / "token"), *measure_answers(url)]
    for one in results:
        print(f"{one.name}: median {one.median:.1f} {one.unit}, worst {one.worst:.1f}; {dict(one.rivals)}")
    print(write("operators", results))
    return 0


def measure_commands(url: str, token_file: Path) -> list[Result]:
    given = {"UNDERSTUDY_URL": url, "UNDERSTUDY_TOKEN_FILE": str(token_file), "PYTHONPATH": PYTHON_PATH}
    environment = os.environ | given

    def run(*arguments: str) -> float:
        return milliseconds(
            lambda: subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
        )

    python, shown, status = [], [], []
    for _ in range(ROUNDS):
        python.append(run("-c", "pass"))
        shown.append(run(*UNDERSTUDY, "--help"))
        status.append(run(*UNDERSTUDY, "status"))
    rivals = {"python_start": python}
    return [
        result("cli_help_milliseconds", "ms", shown, rivals, more_is_better=False),
        result("cli_status_milliseconds_12500", "ms", status, rivals, more_is_better=False),
    ]


def measure_answers(url: str) -> list[Result]:
    with httpx.Client(base_url=url, headers=bearer(Role.VIEWER), timeout=60, trust_env=False) as client:

        def read(path: str) -> int:
            answer = client.get(path)
            assert answer.status_code == 200, answer.text
            return len(answer.content)

        pages = [milliseconds(lambda: read("/v1/nodes?limit=1000")) for _ in range(ROUNDS)]
        scrapes = [milliseconds(lambda: read("/metrics")) for _ in range(ROUNDS)]
        size = read("/metrics")
    return [
        result("api_nodes_page_milliseconds_12500", "ms", pages, {}, more_is_better=False),
        result("metrics_scrape_milliseconds_12500", "ms", scrapes, {}, more_is_better=False),
        result("metrics_bytes_12500", "bytes", [size], {}, more_is_better=False),
    ]


def milliseconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1000


if __name__ == "__main__":
    sys.exit(main())
