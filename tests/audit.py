"""Known vulnerabilities of the pinned packages: `python -m tests.audit` runs pip-audit in an environment of its own.

Ends with 1 where there are any. Packages that the registry has no answer for are counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests import REPOSITORY

FOLDER = REPOSITORY / "build" / "audit"


def main() -> int:
    python = FOLDER / "bin" / "python"
    try:
        subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pip-audit"], check=True)
    except subprocess.CalledProcessError:
        print("not audited: pip-audit cannot be installed here")
        return 0
    lock = REPOSITORY / "requirements.lock"
    command: list[str | Path] = [
        python,
        "-m",
        "pip_audit",
        "--disable-pip",
        "--require-hashes",
        "--format=json",
        "-r",
        lock,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        print(done.stderr, "not audited: the registry does not answer", sep="\n")
        return 0
    packages = json.loads(done.stdout)["dependencies"]
    unknown = [one for one in packages if "skip_reason" in one]
    vulnerable = [(one["name"], fault["id"]) for one in packages for fault in one.get("vulns", ())]
    for name, fault in vulnerable:
        print(f"{name}: {fault}")
    print(f"{len(packages) - len(unknown)} audited, {len(unknown)} unknown to the registry, {len(vulnerable)} faults")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
