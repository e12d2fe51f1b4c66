"""Known vulnerabilities of the pinned packages: `make audit` runs pip-audit in an environment of its own.

Ends with 1 where there are any, and with 75 where nothing was audited: pip-audit cannot be installed, or no service
that knows vulnerabilities answers. Not audited: PyTorch, which only tests use.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import NOT_POSSIBLE_HERE, REPOSITORY

FOLDER = REPOSITORY / "build" / "audit"
LOCKS = ("requirements.lock", "requirements-frameworks.lock")
SERVICES = ("pypi", "osv")


def judge(packages: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """Lines, and the exit status. `packages`: what pip-audit prints of each."""
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    audited = len(packages) - len(unknown)
    if audited == 0:
        return [f"NOT AUDITED: the service knows none of the {len(packages)} packages"], NOT_POSSIBLE_HERE
    found = [f"{one['name']} {one['version']}: {fault['id']}" for one in packages for fault in one.get("vulns", ())]
    missing = [f"not audited: {', '.join(unknown)}"] if unknown else []
    return [*found, *missing, f"{audited} audited, {len(unknown)} not, {len(found)} vulnerabilities"], int(bool(found))


def ask(python: Path, service: str) -> tuple[list[str], int]:
    command: list[str | Path] = [python, "-m", "pip_audit", "--vulnerability-service", service, "--format", "json"]
    command += ["--disable-pip", "--require-hashes", "--timeout", "30"]
    for lock in LOCKS:
        command += ["--requirement", REPOSITORY / lock]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return [f"NOT AUDITED: {service} does not answer: {why[:300]}"], NOT_POSSIBLE_HERE
    lines, status = judge(json.loads(done.stdout)["dependencies"])
    return [f"asked: {service}", *lines], status


def main() -> int:
    python = FOLDER / "bin" / "python"
    try:
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pip-audit"], check=True)
    except subprocess.CalledProcessError:
        print("NOT AUDITED: pip-audit cannot be installed here")
        return NOT_POSSIBLE_HERE
    status = NOT_POSSIBLE_HERE
    for service in SERVICES:
        lines, status = ask(python, service)
        print("\n".join(lines), flush=True)
        if status != NOT_POSSIBLE_HERE:
            break
    return status


if __name__ == "__main__":
    sys.exit(main())
