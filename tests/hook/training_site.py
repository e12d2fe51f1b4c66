"""A user's training scripts, run as ranks of a job with the exported hook, and what their agent reported."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.fake_control_plane import FakeControlPlane
from tests.hook import rank_process
from tests.testbed.configuration import free_ports
from understudy_agent.export import export
from understudy_wire.facts import CheckpointShard
from understudy_wire.ranks import RankWindow

JOB = 7
LIGHTNING_MODULE = """
import torch
from lightning.pytorch import LightningModule, Trainer
from understudy.lightning import UnderstudyCallback


class Sum(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.model(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)
"""
RUN_SECONDS_MAX = 120


class TrainingSite:
    """A script, a directory for checkpoints, and the exported hook on the PYTHONPATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        export(folder / "hook")

    def train(self, script: str, world: int, socket: Path, attempt: int = 0) -> None:
        """One attempt of the job, with as many ranks, to its end."""
        self._run(script, self._ranks(world, socket, attempt))

    @contextmanager
    def training(self, script: str, world: int, socket: Path) -> Iterator[None]:
        """An attempt that need not come to an end: its ranks are killed at the end of the block."""
        with self._started(script, self._ranks(world, socket, 0)):
            yield

    def train_alone(self, script: str) -> str:
        """Trains on a workstation, by a new interpreter. Returns what it logged."""
        command = [sys.executable, str(self._program(script)), str(self.checkpoints)]
        done = subprocess.run(
            command,
            env=self._environment(),
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _ranks(self, world: int, socket: Path, attempt: int) -> list[dict[str, str]]:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0])}
        return [self._environment() | address | self._rank(rank, world, socket, attempt) for rank in range(world)]

    def _rank(self, rank: int, world: int, socket: Path, attempt: int) -> dict[str, str]:
        """What Slurm and the line before `exec` in a batch script set."""
        return {
            "SLURM_JOB_ID": str(JOB),
            "SLURM_JOB_NAME": "train",
            "SLURM_RESTART_COUNT": str(attempt),
            "SLURM_NNODES": "1",
            "SLURM_NODEID": "0",
            "SLURM_NTASKS": str(world),
            "SLURM_NTASKS_PER_NODE": str(world),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(rank),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "UNDERSTUDY_SOCKET": str(socket),
        }

    def _run(self, script: str, ranks: list[dict[str, str]]) -> list[str]:
        with self._started(script, ranks) as processes:
            for process in processes:
                process.join(RUN_SECONDS_MAX)
            outputs = [self._output(number).read_text() for number in range(len(ranks))]
        for process, output in zip(processes, outputs, strict=True):
            assert process.exitcode == 0, output
            assert "failed, and the training" not in output
        return outputs

    def _output(self, number: int) -> Path:
        return self.folder / f"output-{number}"

    @contextmanager
    def _started(self, script: str, ranks: list[dict[str, str]]) -> Iterator[list[multiprocessing.Process]]:
        processes = []
        program = self._program(script)  # once: a rank that starts meanwhile would read half of it
        for number, rank in enumerate(ranks):
            self._output(number).unlink(missing_ok=True)
            processes.append(rank_process.start(program, self.checkpoints, rank, self._output(number)))
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.join()

    def _program(self, script: str) -> Path:
        program = self.folder / "train.py"
        program.write_text(script)
        return program

    def _environment(self) -> dict[str, str]:
        base = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PYTEST"))}
        return base | {"PYTHONPATH": str(self.folder / "hook"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def windows(plane: FakeControlPlane, attempt: int) -> list[RankWindow]:
    reported = [window for report in list(plane.reports) for window in report.ranks]
    return [window for window in reported if window.restart_count == attempt]


def steps(plane: FakeControlPlane, attempt: int, rank: int) -> list[int]:
    mine = [window for window in windows(plane, attempt) if window.rank == rank]
    return [window.first_step + i for window in mine for i in range(len(window.self_seconds))]


def shards(plane: FakeControlPlane, attempt: int, step: int) -> list[CheckpointShard]:
    facts = [fact for fact in plane.facts if isinstance(fact, CheckpointShard)]
    found = [fact for fact in facts if (fact.restart_count, fact.step) == (attempt, step)]
    return sorted(found, key=lambda shard: shard.rank)
