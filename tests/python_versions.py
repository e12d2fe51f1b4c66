"""Installs the wheels on each version of Python that this machine has, and runs there the unit tests of the agent and
the hook, and a sample of the control plane's: `make long`.

`python -m tests.python_versions [VERSION ...]`; without versions: all that agent and control plane promise. Needs the
package index once a version; the virtual environments stay in build/python-versions. Every run reinstalls the wheels.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import REPOSITORY
from tests.pythons import MAIN_VERSIONS, interpreters, missing

FOLDER = REPOSITORY / "build" / "python-versions"
SUITES = ("agent", "decide", "detect", "hook", "ingest", "live", "store")
FILES = ("test_config.py", "test_wire_compatibility.py", "test_xid_policy.py")
WITHOUT = (
    "hook/test_ddp.py",  # needs PyTorch, which has no build for every version
    "agent/test_object_store.py",  # and these an object store
    "hook/test_objects.py",
)
TEST_PACKAGES = ("pytest", "hypothesis", "httpx2", "pytest-xdist")


def main(versions: Sequence[str]) -> int:
    wanted = tuple(versions) or MAIN_VERSIONS
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheels = FOLDER / "wheels"
    subprocess.run([REPOSITORY / "deploy" / "build_wheels.sh", sys.executable, wheels], check=True)
    lines, failed = [], 0
    for version in wanted:
        if version in missing(wanted):
            lines.append(f"Python {version}: not on this machine")
            continue
        code, summary = run_tests(install(version, wheels), version)
        failed += code != 0
        lines.append(f"Python {version}: {summary}")
        print(lines[-1], flush=True)
    print("; ".join(lines))
    return 1 if failed else 0


def install(version: str, wheels: Path) -> Path:
    """A virtual environment with the wheels and all that they and the tests need. Returns its interpreter."""
    folder = FOLDER / version
    python = folder / "bin" / "python"
    lock = REPOSITORY / "requirements.lock"
    built = {path.name.partition("-")[0]: path for path in wheels.glob("*.whl")}
    main_wheel, hook_wheel = built["slurm_understudy"], built["slurm_understudy_hook"]
    pip: list[str | Path] = [python, newest_pip() / "pip", "--disable-pip-version-check", "install", "--quiet"]
    stamp = folder / "installed"
    if not stamp.is_file() or stamp.read_text() != lock.read_text():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([interpreters()[version], "-m", "venv", "--without-pip", folder], check=True)
        extras = f"{main_wheel}[controlplane]"
        pins = folder / "pins.txt"  # without digests: the wheels have none, and pip wants those of all or of none
        pins.write_text("\n".join(line.rstrip(" \\") for line in lock.read_text().splitlines() if "==" in line))
        subprocess.run([*pip, "--constraint", pins, hook_wheel, extras, *TEST_PACKAGES], check=True)
        stamp.write_text(lock.read_text())
    subprocess.run([*pip, "--force-reinstall", "--no-deps", hook_wheel, main_wheel], check=True)
    return python


@functools.cache
def newest_pip() -> Path:
    """Its wheel, which any Python runs: the pip of an older Python does not start on newer ones."""
    folder = FOLDER / "pip"
    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", folder, "pip"], check=True)
    return next(folder.glob("*.whl"))


def run_tests(python: Path, version: str) -> tuple[int, str]:
    """Exit status and pytest's last line. The packages come from the wheels, and only `tests` from the checkout."""
    paths = [f"tests/{name}" for name in (*SUITES, *FILES) if (REPOSITORY / "tests" / name).exists()]
    command: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not cluster and not timed and not integration",
    ]
    # Since Python 3.13 sqlite3 warns of connections that nothing closed; some tests leave one open.
    command += ["-W", "ignore:unclosed database:ResourceWarning"]
    command += ["-o", "pythonpath=.", *(f"--ignore=tests/{path}" for path in WITHOUT), *paths]
    log = FOLDER / f"{version}.log"
    with log.open("w") as output:
        code = subprocess.run(command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
    last = (log.read_text().strip().splitlines() or ["no output"])[-1]
    return code, f"{last} (exit status {code}, {log.relative_to(REPOSITORY)})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
