"""Steps of pipelines, with the time that each rank waits for each neighbour: what a fault at one place does to all.

Data-parallel replicas of a pipeline. A step sends its micro-batches forward and the gradients back, stage by stage; a
send does not block, a receive waits until the data is there. Then each stage reduces its gradients over all replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from tests import builders as b
from understudy_controlplane.fleet.steps import StepTable, Transfers

Floats = npt.NDArray[np.float64]


@dataclass
class Pipelines:
    replicas: int = 8
    stages: int = 4
    micro_batches: int = 8
    steps: int = 100
    ranks_per_node: int = 1
    seed: int = 1
    compute: float = 0.010  # of a stage for a micro-batch
    transfer: float = 0.002
    noise: float = 0.03
    from_step: int = 0  # of what follows
    links: dict[tuple[int, int], float] = field(default_factory=dict)  # two ranks → so many times as long
    slow: dict[int, float] = field(default_factory=dict)  # rank → its computing takes so many times as long
    starved: dict[int, float] = field(default_factory=dict)  # rank → seconds that it waits for data in each step
    work: dict[int, float] = field(default_factory=dict)  # replica → how much more it has to do
    work_varies: float = 0.0
    saves_every: int = 0  # rank 0 writes a checkpoint of 2 s in such a step

    @property
    def world(self) -> int:
        return self.replicas * self.stages

    def table(self) -> StepTable:
        """All steps at once: arrays have the shape (steps, replicas, stages)."""
        rng = np.random.default_rng(self.seed)
        shape = (self.steps, self.replicas, self.stages)
        broken = np.arange(self.steps) >= self.from_step
        pace, data, own = np.ones(shape), np.zeros(shape), np.zeros(shape)
        for rank, slower in self.slow.items():
            pace[broken, rank // self.stages, rank % self.stages] = slower
        for rank, waits in self.starved.items():
            data[broken, rank // self.stages, rank % self.stages] = waits
        if self.saves_every:
            own[:: self.saves_every, 0, 0] = 2.0
        amount = np.exp(rng.normal(0, self.work_varies, shape[:2]))
        for replica, factor in self.work.items():
            amount[:, replica] *= factor
        lag = np.full((*shape[:2], self.stages - 1), self.transfer)  # between a stage and the next
        for link, factor in self.links.items():
            lag[broken, min(link) // self.stages, min(link) % self.stages] *= factor
        clock = data + own
        waited = {by: np.zeros(shape) for by in (-1, 1)}  # for the stage before, and the one behind
        for by in (-1, 1):  # forward, then the gradients back
            sent = np.zeros((*shape, self.micro_batches))
            for stage in range(self.stages) if by == -1 else reversed(range(self.stages)):
                for batch in range(self.micro_batches):
                    if 0 <= stage + by < self.stages:
                        there = sent[..., stage + by, batch] + lag[..., min(stage, stage + by)]
                        wait = np.maximum(0.0, there - clock[..., stage])
                        waited[by][..., stage] += wait
                        clock[..., stage] += wait
                    noise = np.exp(rng.normal(0, self.noise, shape[:2]))
                    seconds = self.compute * (1 if by == -1 else 2) * amount * pace[..., stage] * noise
                    clock[..., stage] += seconds
                    own[..., stage] += seconds
                    sent[..., stage, batch] = clock[..., stage]
        wall = np.broadcast_to(clock.max(axis=1, keepdims=True) + 0.01, shape)  # each stage reduces over all replicas
        return self._table(own, data, wall, waited)

    def _table(self, own: Floats, data: Floats, wall: Floats, waited: dict[int, Floats]) -> StepTable:
        def by_rank(values: Floats) -> Floats:
            return values.reshape(self.steps, self.world).T

        neighbours = [
            (rank, rank + by, by)
            for rank in range(self.world)
            for by in (-1, 1)
            if 0 <= rank % self.stages + by < self.stages
        ]
        seconds = [by_rank(waited[by])[rank] for rank, _, by in neighbours]
        made = b.step_table(
            by_rank(own).tolist(),
            [f"n{rank // self.ranks_per_node + 1}" for rank in range(self.world)],
            [f"stage{rank % self.stages}" for rank in range(self.world)],
        )
        return replace(
            made,
            data_seconds=by_rank(data).astype(np.float32),
            wall_seconds=by_rank(wall)[:, -10:].mean(axis=1).astype(np.float32),
            transfers=Transfers(np.array([pair[:2] for pair in neighbours], np.int64), np.array(seconds, np.float32)),
        )
