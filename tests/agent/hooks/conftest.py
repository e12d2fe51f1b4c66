"""Installed hooks with their own run directory."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from understudy_agent.hooks.install import install


@dataclass
class Hooks:
    directory: Path
    run: Path

    def call(self, name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Calls as slurmd does: without a PATH."""
        variables = {"SLURM_JOB_ID": "7", "SLURM_JOB_RESTART_COUNT": "1", "SLURMD_NODENAME": "n1"} | environment
        return subprocess.run(
            [str(self.directory / name), *arguments],
            env=variables,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )

    def write_verdict(self, verdict: str) -> None:
        (self.run / "verdict").write_text(verdict)

    def good(self, age_seconds: int = 0) -> None:
        self.write_verdict(f"good {int(time.time()) - age_seconds}\n")

    def bad(self, age_seconds: int = 0) -> None:
        self.write_verdict(f"bad {int(time.time()) - age_seconds} quarantined by row 10, and not drained\n")

    @property
    def records(self) -> list[str]:
        return sorted(path.name for path in (self.run / "hooks").iterdir())

    @property
    def log(self) -> str:
        path = self.run / "hooks.log"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Open to all users, as the hooks' directory has to be; pytest's own is not."""
    directory = Path(tempfile.mkdtemp(prefix="ud-hooks-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return make_hooks(tmp_path)


def make_hooks(folder: Path) -> Hooks:
    run = folder / "run"
    (run / "hooks").mkdir(parents=True)
    install(folder / "understudy", str(run), str(run / "agent.sock"))
    return Hooks(folder / "understudy", run)
