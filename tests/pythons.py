"""The versions of Python that this machine has, and which of them each distribution promises to run on."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.testbed.installation import ROOTS

HOOK_VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")
"""What runs in the user's own interpreter: the package `understudy`, and warm.py of the launcher."""

MAIN_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
"""Agent, launcher and control plane."""

OF_A_SLURM_VERSION = {"3.14": ROOTS / "26.05" / "opt" / "outside" / "bin" / "python3.14"}
"""Made by tests/testbed/slurm_versions.sh, where this machine has none of its own."""

REQUIRED_VARIABLE = "UNDERSTUDY_PYTHONS_REQUIRED"
"""Versions that a machine must have, such as "3.9 3.12": a test fails where one of them is not found."""


@functools.cache
def interpreters() -> dict[str, str]:
    """Version → path of the interpreter, oldest version first. What runs and what is on PATH goes before pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    on_path = [path for version in HOOK_VERSIONS if (path := shutil.which(f"python{version}"))]
    of_pyenv = sorted(pyenv.glob("3.*/bin/python3"))
    candidates = [sys.executable, *on_path, *map(str, of_pyenv), *map(str, OF_A_SLURM_VERSION.values())]
    found: dict[str, str] = {}
    for path in candidates:
        version = _version(path)
        if version in HOOK_VERSIONS:
            found.setdefault(version, path)
    return {version: found[version] for version in HOOK_VERSIONS if version in found}


def missing(versions: tuple[str, ...]) -> list[str]:
    return [version for version in versions if version not in interpreters()]


def required() -> list[str]:
    return os.environ.get(REQUIRED_VARIABLE, "").replace(",", " ").split()


def _version(path: str) -> str:
    """Such as "3.9"; empty where the interpreter does not start, as a pyenv shim of a version that is not selected."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-I", "-c", program], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
