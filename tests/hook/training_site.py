"""A user's training scripts, run as ranks of a job with the exported hook, and what their agent reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.agent.fake_control_plane import FakeControlPlane
from tests.testbed.configuration import free_ports
from understudy_agent.export import export
from understudy_agent.wire import CheckpointShard, RankWindow

JOB = 7
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
        self._run(script, [self._rank(rank, world, socket, attempt) for rank in range(world)])

    @contextmanager
    def training(self, script: str, world: int, socket: Path) -> Iterator[None]:
        """An attempt that need not come to an end: its ranks are killed at the end of the block."""
        with self._started(script, [self._rank(rank, world, socket, 0) for rank in range(world)]):
            yield

    def train_alone(self, script: str) -> str:
        """On a workstation. Returns what it logged."""
        return self._run(script, [{}])[0]

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
            outputs = [process.communicate(timeout=RUN_SECONDS_MAX)[0] for process in processes]
        for process, output in zip(processes, outputs, strict=True):
            assert process.returncode == 0, output
            assert "failed, and the training" not in output
        return outputs

    @contextmanager
    def _started(self, script: str, ranks: list[dict[str, str]]) -> Iterator[list[subprocess.Popen[str]]]:
        program = self.folder / "train.py"
        program.write_text(script)
        base = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PYTEST"))}
        base |= {
            "PYTHONPATH": str(self.folder / "hook"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_ports(1)[0]),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        processes = [
            subprocess.Popen(
                [sys.executable, str(program), str(self.checkpoints)],
                env=base | rank,
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in ranks
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()


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
