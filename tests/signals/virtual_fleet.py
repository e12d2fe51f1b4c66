"""Virtual nodes, gangs that train on them, and a whole control plane: reports arrive as the wire carries them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tests import builders as b
from tests.new_database import new_database
from tests.signals.virtual_node import VirtualNode
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.app import ControlPlane, Outside, compose
from understudy_controlplane.config import Config
from understudy_controlplane.detect.node_log import with_code
from understudy_controlplane.fleet.job import KnownJob
from understudy_controlplane.fleet.slurm import SlurmNode
from understudy_controlplane.store.facts import Circumstances
from understudy_controlplane.store.queries import Queries
from understudy_wire.facts import CheckpointShard, Fact, KernelEvent, RankStarted
from understudy_wire.messages import Report
from understudy_wire.ranks import Collective, RankWindow, Training, Transfers

BEGIN = 1_700_000_000.0
GPUS = 8
WINDOW_STEPS_MAX = 64

Floats = npt.NDArray[np.float64]


class Clock:
    def __init__(self, slurm: VirtualSlurm) -> None:
        self._slurm = slurm

    def now(self) -> float:
        return self._slurm.now

    def monotonic(self) -> float:
        return self._slurm.now


@dataclass
class Gang:
    """A job with a rank on each GPU of its nodes. Each step takes as long as its slowest rank."""

    job_id: int
    nodes: tuple[str, ...]
    begun_at: float
    rng: np.random.Generator
    user_id: int
    step_seconds: float = 2.0
    restart_count: int = 0
    ranks_per_node: int = GPUS
    marks_collectives: bool = True
    pace: dict[int, float] = field(default_factory=dict)  # rank → how much longer its own time is
    data_wait: dict[int, float] = field(default_factory=dict)  # rank → seconds that it waits for data in each step
    hung_rank: int | None = None  # that does not enter the next collective
    stopped: bool = False
    waits: bool = False  # all ranks are inside a collective
    section: str = ""
    step: int = 0  # finished
    progress_at: float = 0.0
    paused_until: float = 0.0
    variation: float = 0.03  # of each rank by itself
    work_variation: float = 0.0  # of all together
    training: Training | None = None  # what each rank reports
    multiplication_seconds: float | None = None
    """Seconds of the test between steps; None: its ranks do none. Slow ranks take as much longer for it."""
    tested_step: int = 0
    test_after: int | None = None
    tests: int = 0  # that were ordered
    transfers: dict[tuple[int, int], float] = field(default_factory=dict)
    """A rank and its peer → seconds that it spends in transfers with it in each step."""

    @property
    def world(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    def finish_steps(self, now: float) -> tuple[int, Floats]:
        """The first of the steps that have ended since the last call, and the own time of each rank in each."""
        first = self.step
        self.progress_at = max(self.progress_at, self.begun_at)
        if now < self.paused_until:
            self.progress_at = now
        slowest = max([1.0, *self.pace.values()])
        while not (self.stopped or now < self.paused_until) and self.step - first < WINDOW_STEPS_MAX:
            if self.progress_at + self.step_seconds * slowest > now:
                break
            self.progress_at += self.step_seconds * slowest
            self.step += 1
        if self.test_after is not None and first <= self.test_after < self.step:
            self.tested_step, self.test_after, self.tests = self.test_after, None, self.tests + 1
        shape = (self.world, self.step - first)
        times = 0.8 * self.step_seconds * np.exp(self.rng.normal(0, self.variation, shape))
        times *= np.exp(self.rng.normal(0, self.work_variation, (1, shape[1])))
        for rank, factor in self.pace.items():
            times[rank] *= factor
        return first, times

    def windows(self, now: float) -> dict[str, list[RankWindow]]:
        first, times = self.finish_steps(now)
        wall = float(self.step_seconds * max([1.0, *self.pace.values()]))
        steps, of_ranks = times.shape[1], times.tolist()
        transfers: dict[int, list[Transfers]] = {}
        for (rank, peer), seconds in self.transfers.items():
            transfers.setdefault(rank, []).append(Transfers(peer, [seconds] * steps))
        alike, none, walls = self._collective(None), list[Transfers](), [wall] * steps
        windows = [
            RankWindow(
                self.job_id,
                self.restart_count,
                rank,
                self.world,
                rank % self.ranks_per_node,
                self.user_id,
                "",
                first,
                own,
                walls,
                0,
                self._collective(rank) if rank == self.hung_rank else alike,
                self.section,
                "",
                None,
                [self.data_wait.get(rank, 0.0)] * steps if self.data_wait else [],
                [],
                self._training(rank),
                None,
                transfers.get(rank, none),
            )
            for rank, own in enumerate(of_ranks)
        ]
        size = self.ranks_per_node
        return {name: windows[place * size : (place + 1) * size] for place, name in enumerate(self.nodes)}

    def _training(self, rank: int) -> Training | None:
        if self.multiplication_seconds is None:
            return self.training
        seconds = self.multiplication_seconds * self.pace.get(rank, 1.0)
        return Training(compute_step=self.tested_step, compute_seconds=seconds)

    def _collective(self, rank: int | None) -> Collective | None:
        """None: of a rank that does not hang."""
        if not self.marks_collectives:
            return None
        entered = self.step * 10
        if self.hung_rank is not None:
            arrived = rank != self.hung_rank
            return Collective("all_reduce", entered + arrived, self.progress_at, inside=arrived)
        return Collective("all_reduce", entered + self.waits, self.progress_at, inside=self.waits)


class Fleet:
    def __init__(
        self, folder: Path, names: list[str], gpus: int = GPUS, nvml_seconds: float = 2.0, **config: Any
    ) -> None:
        self.slurm = VirtualSlurm(names, BEGIN, gpus=gpus)
        self.nodes = {
            name: VirtualNode(name, number, folder, BEGIN, gpus, nvml_seconds) for number, name in enumerate(names)
        }
        self.dead: set[str] = set()
        self.gangs: list[Gang] = []
        self.at_rest: dict[str, Report] = {}
        """Nodes that report the same again and again: nothing has changed there for long."""
        self.rng = np.random.default_rng(1)
        self._encoder = msgspec.json.Encoder()
        database = {"server": {"database": new_database(folder / "fleet.db")}}
        self.config: Config = b.config(**(database | config))
        for node in self.nodes.values():
            node.patterns = self.config.xid.rows.kernel_log.patterns
        self.control_plane = self._compose()
        self.control_plane.loop.tick()  # it learns of the nodes

    @property
    def now(self) -> float:
        return self.slurm.now

    def restart_control_plane(self) -> None:
        self.control_plane.close()
        self.control_plane = self._compose()
        self.control_plane.loop.tick()

    def submit(self, nodes: int, user: str = "researcher", comment: str = "understudy", **values: Any) -> Gang:
        """Starts at once: the nodes that Slurm gives it."""
        job_id = self.slurm.submit(user, nodes, comment=comment)
        self.slurm.set_time_limit(job_id, 100_000)
        self.slurm.advance(2.0)
        job = self.slurm.job(job_id)
        assert job is not None and job.nodes, job
        gang = Gang(job_id, job.nodes, self.now, self.rng, job.user_id, **values)
        self.gangs.append(gang)
        return gang

    def tick(self, seconds: float) -> None:
        self.slurm.advance(seconds)
        for gang in self.gangs:
            for name, windows in gang.windows(self.now).items():
                self.nodes[name].ranks += windows
        for name, node in self.nodes.items():
            if (same := self.at_rest.get(name)) is not None:
                again = msgspec.structs.replace(same, sent_at=self.now)
                self.control_plane.telemetry.receive(again, self.now)
            elif not node.silent and name not in self.dead:
                report = node.report(self.now)
                self.control_plane.telemetry.receive(report, self.now)
                self._order_tests(report)
                if report.facts:
                    facts = [_parsed(fact) for fact in report.facts]
                    self.control_plane.stores.facts.record(name, facts, self.now, self._job, self._around(name))
        self.control_plane.loop.tick()

    def decisions(self, since: float) -> list[dict[str, Any]]:
        """Oldest first."""
        found = Queries(self.control_plane.engine).decisions(10_000)
        return [dict(one) for one in reversed(found) if one["at"] >= since]

    def close(self) -> None:
        self.control_plane.close()

    def save_checkpoint(self, gang: Gang) -> None:
        """All ranks announce their shards, with their next reports."""
        for rank in range(gang.world):
            of_rank = (gang.job_id, gang.restart_count, rank, gang.world)
            path, file = f"/checkpoints/{gang.step}", f"rank{rank}"
            node = self.nodes[gang.nodes[rank // gang.ranks_per_node]]
            node.facts.append(RankStarted(*of_rank, gang.begun_at, 100 + rank, user_id=gang.user_id))
            shard = CheckpointShard(*of_rank, gang.step, path, file, 1, "", self.now, user_id=gang.user_id)
            node.facts.append(shard)

    def _order_tests(self, report: Report) -> None:
        for order in self.control_plane.telemetry.compute_tests.answer_to(report.ranks):
            for gang in self.gangs:
                if gang.job_id == order.job_id:
                    gang.test_after = order.step

    def _job(self, job_id: int) -> KnownJob | None:
        return self.control_plane.stores.fleet.known_jobs(b.CLUSTER, [job_id]).get(job_id)

    def _around(self, node: str) -> Circumstances:
        telemetry = self.control_plane.telemetry
        return Circumstances(lambda at: telemetry.allocations.on(node, at), nodes_now=telemetry.nodes_of)

    def _compose(self) -> ControlPlane:
        return compose(self.config, Outside(self.slurm, self._probe, Clock(self.slurm), sleep=self.slurm.advance))

    def _probe(self, node: SlurmNode) -> bool:
        return node.name not in self.dead


def _parsed(fact: Fact) -> Fact:
    return with_code(fact) if isinstance(fact, KernelEvent) else fact
