"""`make bench-checkpoint`: what saving and restoring cost with each tier, beside what trainings use without it.

Four ranks with a state of their own on this machine, over gloo; for the tier live each has the same. One run measures
all sides, one after another, three times: the save, what the training waits for it, and, when the last rank has lost
all it had, the restore until the next step has ended. `fetch` is the lost rank's part alone, while the others wait, as
they would on machines of their own. Files are read from the disk, not from memory. `shared` is a folder of this
machine: no network lies between. `object` is moto's server, a Python program on the same processors. NVRx's local
checkpoints are no rival here: they send tensors by way of CUDA alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import REPOSITORY
from tests.agent.fake_control_plane import FakeControlPlane
from tests.agent.running_agent import agent_config, running_agent
from tests.bench.checkpoint.sides import SIDES
from tests.bench.result import Result, result, write
from tests.keeper.site import Keepers
from tests.object_store import serving
from tests.testbed.configuration import free_ports

RANKS = 4
MEGABYTES = 300
ROUNDS = 3
SECONDS_MAX = 1800
RIVALS_OF = {
    "blocked_seconds": ("torch_save", "dcp", "dcp_async"),
    "restore_seconds": ("torch_save", "dcp", "tcp_copy"),
    "fetch_seconds": ("tcp_copy",),
    "first_step_after_restore_seconds": ("torch_save", "dcp"),
    "steps_lost": (),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of each rank")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--sides", default=",".join(SIDES))
    parser.add_argument("--folder", type=Path, help="on the disk to be measured (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(Path(folder), options.megabytes, options.rounds, options.sides)
    figures = results(found)
    for one in figures:
        rivals = ", ".join(f"{name} {value:.3g}" for name, value in one.rivals.items() if value is not None)
        print(f"{one.name}: {one.median:.3g} {one.unit}, worst {one.worst:.3g}" + (f"; {rivals}" if rivals else ""))
    print(f"written to {write('checkpoint', figures).relative_to(REPOSITORY)}")
    return 0


def measure(folder: Path, megabytes: int, rounds: int, sides: str) -> dict[str, Any]:
    gang = folder / "gang"
    gang.mkdir()
    with FakeControlPlane() as plane:
        config = agent_config(folder, plane.url, interval_seconds=1.0)
        with running_agent(config):
            command = [sys.executable, "-m", "tests.bench.checkpoint.gang", str(gang)]
            command += [f"--megabytes={megabytes}", f"--rounds={rounds}", f"--sides={sides}"]
            port = str(free_ports(1)[0])
            with contextlib.ExitStack() as started:
                keepers = Keepers(folder, memory_bytes=10 * megabytes << 20)
                started.callback(keepers.close)
                nodes = [f"n{rank + 1}" for rank in range(RANKS)]
                keepers.start(*nodes)
                store = started.enter_context(serving(folder)) if "object" in sides.split(",") else None
                of_store = store.environment if store is not None else {}
                ranks = [
                    subprocess.Popen(
                        command,
                        env=_environment(rank, port, config.socket) | keepers.environment(node) | of_store,
                        cwd=REPOSITORY,
                    )
                    for rank, node in enumerate(nodes)
                ]
                for one in ranks:
                    started.callback(one.kill)
                codes = [one.wait(SECONDS_MAX) for one in ranks]
    if any(codes):
        raise SystemExit(f"the gang failed: its ranks ended with {codes}; their errors are above")
    found: dict[str, Any] = json.loads((gang / "result.json").read_text())
    return found


def results(found: Mapping[str, Any]) -> list[Result]:
    """One for each figure and tier, with the same figure of the rivals."""
    figures = []
    sides = {name: one for name, one in found.items() if name in SIDES}
    for name, side in sides.items():
        if not side["tier"]:
            continue
        for figure, rivals in RIVALS_OF.items():
            if None in _of(side, figure):
                continue
            beside = {rival: _of(sides[rival], figure) for rival in rivals if rival in sides}
            unit = "steps" if figure == "steps_lost" else "s"
            full = f"{figure.removesuffix('_seconds')}_seconds_{name}" if unit == "s" else f"{figure}_{name}"
            if figure.startswith("first_step"):
                full = f"first_step_after_restore_seconds_{name}"
            figures.append(result(full, unit, _of(side, figure), beside, more_is_better=False))
    share = found["overhead_share"]
    figures.append(result("catalogue_step_overhead_share", "1", [share], {}, more_is_better=False))
    return figures


def _of(side: Mapping[str, Any], figure: str) -> Sequence[float]:
    return [one[figure] for one in side["rounds"]]


def _environment(rank: int, port: str, socket: Path) -> dict[str, str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    return base | {
        "SLURM_JOB_ID": "7",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(RANKS),
        "RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
        "UNDERSTUDY_SOCKET": str(socket),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "agents"), str(REPOSITORY / "controlplane"), str(REPOSITORY)]),
    }


if __name__ == "__main__":
    sys.exit(main())
