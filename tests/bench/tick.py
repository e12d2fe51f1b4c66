"""What a tick costs over 12,500 nodes, 1,562 gangs and 100,000 ranks: `tick_milliseconds`, all heard, each rank with
ten new steps; `tick_usual_milliseconds`, all heard, and each gang finishes a step every five seconds;
`tick_silence_milliseconds`, the dearest one as 2,000 nodes fall silent. Processor time of the loop's thread, beside a
piece of work that is always the same (`tests.stopwatch.reference`).

The real control plane with its database; Slurm is what `tests.bench.slurm_text` prints, read once, and every slurmd
answers. The first tick with silent nodes writes down a decision for each of them: it is shown by itself.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import msgspec

from tests import builders as b
from tests.bench.processor import seconds_of
from tests.bench.report_server import StillSlurm
from tests.bench.result import Result, Size, result
from tests.bench.slurm_text import GANG, JOBS, NODES, jobs_text, nodes_text
from tests.stopwatch import reference
from understudy_controlplane.app import Outside, compose
from understudy_controlplane.config import Config, Silence
from understudy_controlplane.fleet.slurm import SlurmJob, SlurmNode, SlurmReservation
from understudy_controlplane.observe import inventory, slurmd_probe
from understudy_controlplane.serve import collect_rarely
from understudy_controlplane.slurm.parse import parse_jobs, parse_nodes
from understudy_controlplane.slurm.protocol import Slurm
from understudy_wire.messages import Report
from understudy_wire.ranks import RankWindow

ROUNDS = 9
SILENT = 2_000
UNTIL_SILENT = int(Silence().silent_after_seconds) + 2
"""Ticks of a second until those nodes count as silent, and a decision for each is written down."""
GPUS = 8
RANKS = GANG * GPUS
STEPS = 10
USUAL_STEP_SECONDS = 5
"""Every so many reports a rank has a step: ten a second, as above, are the most that any training makes."""
SPARES = 100
RECORDED_AT_ONCE = 2_000
"""Nodes of a tick, before the measurement."""


class LargeSlurm(StillSlurm):
    def __init__(self, nodes: int, jobs: int | None = None) -> None:
        """`jobs`: gangs of eight on the first nodes, as long as there are nodes; usually on all."""
        self._nodes = parse_nodes(nodes_text(nodes, drained_every=nodes + 1))
        self._jobs = parse_jobs(jobs_text(JOBS * nodes // NODES if jobs is None else jobs, nodes))

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
    """Stands still until it is set, or goes on with the processor time of this process: agents that report before a
    measurement would fall silent within it by the time of a machine that has other work.
    """

    def __init__(self) -> None:
        self.at = b.NOW
        self._goes_on_since: float | None = None

    def go_on(self) -> None:
        self._goes_on_since = time.process_time()

    def stand_still(self) -> None:
        self.at, self._goes_on_since = self.now(), None

    def now(self) -> float:
        at, since = self.at, self._goes_on_since
        return at if since is None else at + time.process_time() - since

    def monotonic(self) -> float:
        return self.now()


class Fleet:
    """A control plane, and agents that report to it once a second."""

    def __init__(self, directory: Path, nodes: int = NODES, slurm: LargeSlurm | None = None, **sections: Any) -> None:
        """`sections` of the configuration."""
        slurm = slurm or LargeSlurm(nodes)
        self.in_jobs, slurm_jobs = sum(len(job.nodes) for job in slurm.jobs()), len(slurm.jobs())
        server = {"database": f"sqlite:///{directory}/tick.db"}
        config = {"cluster": b.CLUSTER, "server": server, "spares": {"count": SPARES}, **sections}
        self.clock = SetClock()
        self.control_plane = compose(
            Config.model_validate(config), Outside(cast(Slurm, slurm), lambda _node: True, self.clock)
        )
        self._reports = [
            b.report(f"c{number}", gpus=[b.gpu(i, uuid=f"GPU-{number}-{i}") for i in range(GPUS)])
            for number in range(1, nodes + 1)
        ]
        self._round = 0
        self._finished = [0] * (slurm_jobs + 1)
        """Steps by job."""

    def settle(self) -> float:
        """Processor time of the first tick, in seconds. The next ones record what a control plane does bit by bit after
        its start: which GPUs are where, and whose slurmd answers.
        """
        first = self.tick()
        with ExitStack() as patched:
            for module, name in ((inventory, "NODES_AT_ONCE"), (slurmd_probe, "PROBES_AT_ONCE")):
                patched.enter_context(patch.object(module, name, RECORDED_AT_ONCE))
            for _ in range(len(self._reports) // RECORDED_AT_ONCE + 2):
                self.hear(0)
                self.tick()
        return first

    def hear(self, silent: int, usual: bool = False) -> None:
        """All but the first so many nodes, with ten steps of every rank; `usual`: with one of some."""
        steps = [self._steps(job, usual) for job in range(len(self._finished))]
        for number, report in enumerate(self._reports):
            if number >= silent:
                now = self.clock.now()
                sent = msgspec.structs.replace(self.with_ranks(report, number, steps), sent_at=now)
                self.control_plane.telemetry.receive(sent, now)
        self._finished = [done + more for done, more in zip(self._finished, steps, strict=True)]
        self._round += 1

    def _steps(self, job: int, usual: bool) -> int:
        return int((self._round + job) % USUAL_STEP_SECONDS == 0) if usual else STEPS

    def tick(self) -> float:
        """Processor time, in seconds."""
        self.clock.at += 1.0
        return seconds_of(self.control_plane.loop.tick)

    def with_ranks(self, report: Report, number: int, steps: Sequence[int] = ()) -> Report:
        """The report with the next steps of the node's ranks: so many by job, usually ten."""
        job, seat = number // GANG + 1, number % GANG
        if job * GANG > self.in_jobs:
            return report
        done, more = self._finished[job], steps[job] if steps else STEPS
        ranks = [
            RankWindow(job, 0, seat * GPUS + i, RANKS, i, 65534, "", done, [0.1 + i / 1e3] * more, [])
            for i in range(GPUS)
        ]
        return msgspec.structs.replace(report, ranks=ranks)


def measure(size: Size) -> list[Result]:
    collect_rarely()
    rounds, silent_nodes = size.of(ROUNDS, 1), size.of(SILENT, 20)
    with tempfile.TemporaryDirectory(prefix="understudy-bench-") as directory:
        fleet = Fleet(Path(directory), size.of(NODES, 200))
        first = fleet.settle()
        found: dict[str, list[float]] = {name: [] for name in ("heard", "usual", "falling", "silent")}
        beside: dict[str, list[float]] = {name: [] for name in found}

        def tick(kind: str, silent: int) -> None:
            fleet.hear(silent, usual=kind == "usual")
            beside[kind].append(seconds_of(reference) * 1000)
            found[kind].append(fleet.tick() * 1000)

        for _ in range(rounds):
            tick("heard", 0)
        for _ in range(rounds):
            tick("usual", 0)
        for number in range(UNTIL_SILENT + 1 + rounds):
            tick("silent" if number > UNTIL_SILENT else "falling", silent_nodes)
        fleet.control_plane.close()
    dearest = max(range(len(found["falling"])), key=found["falling"].__getitem__)
    found["falling"], beside["falling"] = [found["falling"][dearest]], [beside["falling"][dearest]]
    names = {
        "heard": "tick_milliseconds",
        "usual": "tick_usual_milliseconds",
        "falling": "tick_silence_milliseconds",
        "silent": "tick_silent_milliseconds",
    }
    return [
        result("tick_first_milliseconds", "ms", [first * 1000], {}, more_is_better=False),
        *(
            result(name, "ms", found[kind], {"fixed_work": beside[kind]}, more_is_better=False)
            for kind, name in names.items()
        ),
    ]
