"""Processor and memory of the agent and its NVML process with this machine's own driver, at one report a second."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import PYTHON_PATH
from tests.agent.fake_control_plane import TOKEN, FakeControlPlane
from tests.bench.footprint import cpu_seconds, kernel_log, mebibytes, processes

WARM_UP_SECONDS = 10.0
SECONDS = 30.0


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="understudy-hardware-") as name, FakeControlPlane() as plane:
        folder = Path(name)
        (folder / "token").write_text(TOKEN)
        (folder / "agent.toml").write_text(
            f'cluster = "bench"\nnode = "n1"\ncontrol_plane_urls = ["{plane.url}"]\ntoken_file = "{folder}/token"\n'
            f'kernel_log = "{kernel_log(folder)}"\nsocket = "{folder}/agent.sock"\nrun_directory = "{folder}/run"\n'
        )
        command = [sys.executable, "-m", "understudy_agent", "--config", str(folder / "agent.toml")]
        with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": PYTHON_PATH}) as agent:
            plane.wait_for(lambda plane: plane.reports and plane.reports[-1].gpus, timeout_seconds=60)
            time.sleep(WARM_UP_SECONDS)
            pids = processes(agent.pid)
            before, begun = sum(map(cpu_seconds, pids)), time.monotonic()
            time.sleep(SECONDS)
            cpu = 100 * (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - begun)
            memory = sum(mebibytes(pid, "Pss") for pid in pids)
            agent.terminate()
        gpus = len(plane.reports[-1].gpus)
    sys.stdout.write(json.dumps({"cpu_percent": cpu, "memory_mebibytes": memory, "gpus": gpus}) + "\n")


if __name__ == "__main__":
    main()
