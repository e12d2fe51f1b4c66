"""The launcher with gangs of many nodes, whose seats are simulated: build/bench/launcher.json.

`python -m tests.bench.launcher [NODES ...]`, with `--no-rivals` without torchrun and NVRx, whose rendezvous does the
same with 64 agents, twice as many, and so on, until it needs more than a minute.

For each size: from the first seat's connection until the last one was ordered to start its ranks, and the launcher's
processor time until then, with the start of Python; a pass of the loop, also without the time in which it waits for a
processor, and the share of a core while the gang runs; from the loss of a node until the last seat of the next launch
is ordered to start; memory. The simulated seats take a core of their own.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import PYTHON_PATH
from tests.bench.processor import spent
from tests.bench.recovery.environment import make_nvrx
from tests.bench.result import result, write

SIZES = (64, 512, 2048, 12_500)
SECONDS_MAX = 180
SPARES = 2
RUNS = 3
STEADY_SECONDS = 5.0
RIVALS = Path(__file__).with_name("rivals.py")
RIVAL_SECONDS = 60
RIVAL_FIGURES = ("start_seconds", "one_lost_to_new_go_seconds")


class Gang:
    def __init__(self, home: Path, nodes: int) -> None:
        self.home, self.nodes = home, nodes
        for name in ("srun", "scancel", "scontrol"):
            command = home / name
            command.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.bench.launcher.seats {name} "$@"\n')
            command.chmod(0o755)
        environment = {
            "PATH": f"{home}:{os.environ['PATH']}",
            "HOME": str(home),
            "BENCH_HOME": str(home),
            "PYTHONPATH": PYTHON_PATH,
            "SLURM_JOB_ID": "1",
            "SLURM_JOB_NODELIST": f"c[1-{nodes + SPARES}]",
            "UNDERSTUDY_SOCKET": str(home / "agent.sock"),
        }
        options = ["--nodes", str(nodes), "--procs-per-node", "8", "--slurm-poll-seconds", "0", "--rearm-seconds", "1"]
        words = [*options, "--events", str(home / "events"), "--", "true"]
        self.output = (home / "output").open("wb")
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.launcher.launcher", *words],
            env=environment,
            stdout=self.output,
            stderr=subprocess.STDOUT,
        )

    def notes(self, event: str) -> list[dict[str, Any]]:
        path = self.home / "seats.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [one for one in map(json.loads, lines) if one["event"] == event]

    def wait_for(self, predicate: Callable[[], object], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not predicate():
            if time.monotonic() > deadline or self.launcher.poll() is not None:
                raise RuntimeError(f"not reached: {what}\n{(self.home / 'output').read_text()[-2000:]}")
            time.sleep(0.05)

    def turns(self) -> dict[str, Any]:
        path = self.home / "turns.json"
        path.unlink(missing_ok=True)
        os.kill(int((self.home / "launcher.pid").read_text()), signal.SIGUSR2)
        self.wait_for(path.exists, 20, "the launcher reports its passes")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def has_standbys(self) -> bool:
        """True if every node has them, or as many as the limit of open files permits."""
        events: list[dict[str, Any]] = [json.loads(line) for line in (self.home / "events").read_text().splitlines()]
        if any(one["event"] == "no_standbys" for one in events):
            return True
        there = [one for one in events if one["event"] == "seat" and one["generation"] == 1]
        return len(there) == self.nodes + SPARES

    def close(self) -> None:
        for which in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            if self.launcher.poll() is None:
                self.launcher.send_signal(which)
                try:
                    self.launcher.wait(5)
                except subprocess.TimeoutExpired:
                    continue
        for path in self.home.glob("step.*"):
            try:
                os.kill(int(path.read_text()), signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.output.close()


def measure(nodes: int, steady_seconds: float = STEADY_SECONDS) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        gang = Gang(Path(folder), nodes)
        try:
            gang.wait_for(lambda: gang.notes("go"), SECONDS_MAX, "every seat is ordered to start its ranks")
            computed = spent(int((Path(folder) / "launcher.pid").read_text()))
            began = gang.notes("go")[0]
            gang.wait_for(gang.has_standbys, SECONDS_MAX, "every node has a standby")
            starting = gang.turns()
            time.sleep(steady_seconds)
            steady = gang.turns()
            os.kill(int((Path(folder) / "step.0").read_text()), signal.SIGUSR1)
            gang.wait_for(lambda: len(gang.notes("go")) > 1, SECONDS_MAX, "the next launch begins")
            swap = gang.turns()
            again, lost = gang.notes("go")[1], gang.notes("lost")[0]
        finally:
            gang.close()
    return {
        "start_seconds": began["at"] - began["first_at"],
        "start_processor_seconds": computed,
        "turn_milliseconds": 1000 * steady["p99"],
        "turn_computing_milliseconds": 1000 * steady["computed_p99"],
        "slowest_turn_milliseconds": 1000 * max(*starting["slowest"], *swap["slowest"]),
        "launcher_cpu_share": steady["cpu_share"],
        "one_lost_to_new_go_seconds": again["at"] - lost["at"],
        "launcher_rss_mebibytes": swap["rss_mebibytes"],
    }


def measure_rival(python: Path, rival: str, most: int) -> dict[int, dict[str, float]]:
    """Agents → its figures, as far as it gets."""
    found: dict[int, dict[str, float]] = {}
    count = SIZES[0]
    while count <= most:
        command = [str(python), str(RIVALS), rival, str(count), str(RIVAL_SECONDS)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=3 * RIVAL_SECONDS, check=False)
            found[count] = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, ValueError):
            break
        print(f"{count:6} agents  {rival:10} {found[count]}", flush=True)
        count *= 2
    print(f"{rival}: not with {count} agents within {RIVAL_SECONDS} s" if count <= most else rival, flush=True)
    return found


def measure_rivals(most: int) -> dict[str, dict[int, dict[str, float]]]:
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as folder:
        nvrx = make_nvrx(Path(folder) / "nvrx", Path(sys.executable))
        pythons = {"torchrun": Path(sys.executable), "nvrx": nvrx}
        return {rival: measure_rival(python, rival, most) for rival, python in pythons.items()}


def main(sizes: list[int], with_rivals: bool) -> int:
    results = []
    rivals = measure_rivals(max(sizes)) if with_rivals else {}
    for nodes in sizes:
        runs = [measure(nodes) for _ in range(RUNS)]
        for name in runs[0]:
            values = [run[name] for run in runs]
            listed = ", ".join(f"{one:.3f}" for one in values)
            print(f"{nodes:6} nodes  {name:30} {statistics.median(values):10.3f}  of {listed}", flush=True)
            unit = next((one for one in ("milliseconds", "seconds", "mebibytes") if one in name), "share")
            of_rivals = {
                rival: [found[nodes][name]] if nodes in found else []
                for rival, found in rivals.items()
                if name in RIVAL_FIGURES
            }
            results.append(result(f"{name}_{nodes}", unit, values, of_rivals, more_is_better=False))
    write("launcher", results)
    return 0


if __name__ == "__main__":
    words = [one for one in sys.argv[1:] if one != "--no-rivals"]
    sys.exit(main([int(one) for one in words] or list(SIZES), with_rivals=words == sys.argv[1:]))
