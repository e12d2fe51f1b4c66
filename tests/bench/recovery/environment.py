"""What the rivals need on a testbed: a Python with NVRx, and a health check as sites have one.

Belongs here: making them, for one run of the bench. They are no dependency of this project.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.testbed.cluster import ClusterError

NVRX = "nvidia-resiliency-ext==0.4.1"
NVRX_NEEDS = ("defusedxml", "psutil", "pynvml", "pyyaml", "nvidia-ml-py", "packaging")


def make_nvrx(home: Path, python: Path) -> Path:
    """A virtual environment that sees the PyTorch of that Python. Returns its own."""
    shutil.rmtree(home, ignore_errors=True)
    packages = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    _run([sys.executable, "-m", "venv", str(home)])
    python = home / "bin" / "python"
    _run([str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps", NVRX, *NVRX_NEEDS])
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "torch.pth").write_text(f"{packages}\n")
    return python


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")


def health_check(directory: Path) -> Path:
    """A HealthCheckProgram for slurmd that drains a node one of whose GPUs does not answer."""
    program = directory / "health_check"
    program.write_text(
        "#!/bin/sh\n"
        f"cd {directory}/nodes\n"
        'for node in $(grep -l "^gpu=.*result=15" */gpus | cut -d/ -f1); do\n'
        '  scontrol update NodeName="$node" State=DRAIN Reason="GPU is lost"\n'
        "done\n"
    )
    program.chmod(0o755)
    return program
