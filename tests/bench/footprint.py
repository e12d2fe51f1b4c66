"""What the agent costs its node: processor and memory of the agent and its NVML process, at one report a second.

The real agent with the fake driver's eight GPUs, eight InfiniBand ports in a folder of /sys's form, this machine's own
/proc, and a control plane that only listens. Memory is the proportional set size, so that what both share counts once.
Other Python programs on the machine share in it too, so both resident sets, which count everything in full, are shown
as well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import PYTHON_PATH
from tests.agent.fake_control_plane import TOKEN, FakeControlPlane
from tests.bench.result import Result, Size, result
from tests.testbed.fake_fabric import FakeFabric
from tests.testbed.fake_nvml import FakeGpus, build, h100_node

ROUNDS = 5
ROUND_SECONDS = 8.0
WARM_UP_SECONDS = 5.0
CPU_PERCENT_MAX = 1.0
MEBIBYTES_MAX = 80.0


def processes(agent: int) -> list[int]:
    """The agent and its children."""
    children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
    return [agent, *map(int, children)]


def cpu_seconds(pid: int) -> float:
    """Processor time of all its threads, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def mebibytes(pid: int, what: str) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


def kernel_log(folder: Path) -> Path:
    """The kernel's own, which wakes the agent; a file, where that must not be read, is looked at 20 times a second."""
    try:
        Path("/dev/kmsg").open("rb").close()
    except OSError as error:
        print(f"the kernel's log cannot be read ({error}): a file in its place, which costs more")
        (folder / "kmsg").touch()
        return folder / "kmsg"
    return Path("/dev/kmsg")


def start(folder: Path, plane: FakeControlPlane) -> subprocess.Popen[bytes]:
    library = build(folder / "lib")
    FakeGpus(folder / "gpus").write(h100_node("n1"))
    FakeFabric(folder / "sys").lay_out(8)
    (folder / "token").write_text(TOKEN)
    (folder / "agent.toml").write_text(
        f"""
cluster = "bench"
node = "n1"
control_plane_urls = ["{plane.url}"]
token_file = "{folder}/token"
kernel_log = "{kernel_log(folder)}"
socket = "{folder}/agent.sock"
run_directory = "{folder}/run"
[host]
sys = "{folder}/sys"
"""
    )
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML_STATE": str(folder / "gpus"),
        "PYTHONPATH": PYTHON_PATH,
    }
    command = [sys.executable, "-m", "understudy_agent", "--config", str(folder / "agent.toml")]
    return subprocess.Popen(command, env=environment)


def measure(size: Size) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as name, FakeControlPlane() as plane:
        with start(Path(name), plane) as agent:
            plane.wait_for(lambda plane: plane.reports and plane.reports[-1].gpus, timeout_seconds=30)
            time.sleep(size.of(WARM_UP_SECONDS, 1.0))
            pids = processes(agent.pid)
            assert len(pids) == 2, "the agent has one child"
            shares: dict[int, list[float]] = {pid: [] for pid in pids}
            reports_before = len(plane.reports)
            begun = time.monotonic()
            for _ in range(size.of(ROUNDS, 1)):
                before = {pid: (time.monotonic(), cpu_seconds(pid)) for pid in pids}
                time.sleep(size.of(ROUND_SECONDS, 1.5))
                for pid, (at, spent) in before.items():
                    shares[pid].append(100 * (cpu_seconds(pid) - spent) / (time.monotonic() - at))
            seconds = time.monotonic() - begun
            reports = len(plane.reports) - reports_before
            memory = {pid: mebibytes(pid, "Pss") for pid in pids}
            resident = [mebibytes(pid, "Rss") for pid in pids]
            agent.terminate()
        report = plane.reports[-1]
    assert len(report.gpus) == 8 and len(report.ports) == 8 and report.host is not None, (
        "a part of the report is missing"
    )
    assert reports >= 0.9 * seconds - 1, f"{reports} reports in {seconds:.0f} s"
    both = [sum(parts) for parts in zip(*shares.values(), strict=True)]
    results = [
        result("agent_cpu", "% of a core", both, {}, more_is_better=False),
        result("agent_cpu_of_nvml_process", "% of a core", shares[pids[1]], {}, more_is_better=False),
        result("agent_memory", "MiB", [sum(memory.values())], {}, more_is_better=False),
        result("agent_memory_resident", "MiB", [sum(resident)], {}, more_is_better=False),
        result("agent_memory_of_nvml_process", "MiB", [memory[pids[1]]], {}, more_is_better=False),
    ]
    if size is Size.FULL and (results[0].median > CPU_PERCENT_MAX or results[2].worst > MEBIBYTES_MAX):
        raise SystemExit(f"more than {CPU_PERCENT_MAX:g} % of a core or {MEBIBYTES_MAX:g} MiB: {results}")
    return results
