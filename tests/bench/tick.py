"""How long a tick takes over 12,500 nodes, 2,000 jobs and 100,000 ranks, all heard, and with 2,000 nodes silent.

The real control plane with its database; Slurm is what `tests.bench.slurm_text` prints, read once, and every slurmd
answers. The first tick with silent nodes writes down a decision for each of them: it is shown by itself.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import msgspec

from tests import builders as b
from tests.bench.ingest_server import StillSlurm
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import GANG, JOBS, NODES, jobs_text, nodes_text
from understudy_controlplane.app import Outside, compose
from understudy_controlplane.config import Config, Silence
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode, SlurmReservation
from understudy_controlplane.serve import collect_rarely
from understudy_controlplane.slurm.parse import parse_jobs, parse_nodes
from understudy_wire.messages import Report
from understudy_wire.ranks import RankWindow

ROUNDS = 12
SILENT = 2_000
UNTIL_SILENT = int(Silence().silent_after_seconds) + 2
"""Ticks of a second until those nodes count as silent, and a decision for each is written down."""
GPUS = 8
RANKS = GANG * GPUS
STEPS = 10
SPARES = 100


class LargeSlurm(StillSlurm):
    def __init__(self, nodes: int) -> None:
        self._nodes = parse_nodes(nodes_text(nodes, drained_every=nodes + 1))
        self._jobs = parse_jobs(jobs_text(JOBS * nodes // NODES, nodes))

    def cluster_name(self) -> str:
        return b.CLUSTER

    def nodes(self) -> list[SlurmNode]:
        return self._nodes

    def jobs(self) -> list[SlurmJob]:
        return self._jobs

    def reservations(self) -> list[SlurmReservation]:
        spares = tuple(node.name for node in self._nodes[-SPARES:])
        return [SlurmReservation("understudy_spares", spares, ("root",), frozenset({"IGNORE_JOBS"}))]


class SetClock:
    def __init__(self) -> None:
        self.at = b.NOW

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class Fleet:
    """A control plane, and agents that report to it once a second."""

    def __init__(self, directory: Path, nodes: int = NODES) -> None:
        self._nodes = nodes
        server = {"database": f"sqlite:///{directory}/tick.db"}
        config = Config.model_validate({"cluster": b.CLUSTER, "server": server, "spares": {"count": SPARES}})
        self._clock = SetClock()
        self.control_plane = compose(config, Outside(LargeSlurm(nodes), lambda _node: True, self._clock))
        self._reports = [
            b.report(f"c{number}", gpus=[b.gpu(i, uuid=f"GPU-{number}-{i}") for i in range(GPUS)])
            for number in range(1, nodes + 1)
        ]
        self._round = 0

    def hear(self, silent: int) -> None:
        """All but the first so many nodes, with ten steps of every rank."""
        for number, report in enumerate(self._reports):
            if number >= silent:
                self.control_plane.telemetry.receive(self._with_ranks(report, number), self._clock.at)
        self._round += 1

    def tick(self) -> float:
        self._clock.at += 1.0
        begun = time.perf_counter()
        self.control_plane.loop.tick()
        return time.perf_counter() - begun

    def _with_ranks(self, report: Report, number: int) -> Report:
        job, seat = number // GANG + 1, number % GANG
        if job * GANG > self._nodes:
            return report
        ranks = [
            RankWindow(job, 0, seat * GPUS + i, RANKS, i, 65534, "", self._round * STEPS, [0.1 + i / 1e3] * STEPS, [])
            for i in range(GPUS)
        ]
        return msgspec.structs.replace(report, ranks=ranks)


def measure(size: Size) -> list[Result]:
    collect_rarely()
    rounds, silent_nodes = size.of(ROUNDS, 2), size.of(SILENT, 200)
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as directory:
        fleet = Fleet(Path(directory), size.of(NODES, 400))
        first = fleet.tick()
        fleet.hear(0)
        fleet.tick()
        heard, falling, silent = list[float](), list[float](), list[float]()
        for _ in range(rounds):
            fleet.hear(0)
            heard.append(fleet.tick())
        for number in range(UNTIL_SILENT + 1 + rounds):
            fleet.hear(silent_nodes)
            (silent if number > UNTIL_SILENT else falling).append(fleet.tick())
    return [
        result("tick_first", "s", [first], {}, more_is_better=False),
        result("tick_all_heard", "s", heard, {}, more_is_better=False),
        result("tick_fall_silent", "s", [max(falling)], {}, more_is_better=False),
        result("tick_silent", "s", silent, {}, more_is_better=False),
    ]
