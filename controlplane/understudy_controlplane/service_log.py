"""What the services of this host have logged, from systemd's journal."""

from __future__ import annotations

import subprocess

UNITS = ("understudy-controlplane", "understudy-agent", "slurmctld")
LINES_MAX = 200_000
SECONDS_MAX = 60.0


def journal(since: float, until: float) -> str:
    """The newest lines of this time. Raises OSError and subprocess.SubprocessError."""
    span = [f"--since=@{int(since)}", f"--until=@{int(until) + 1}", f"--lines={LINES_MAX}"]
    command = ["journalctl", "--no-pager", "--output=short-iso-precise", "--utc", *span]
    return subprocess.run(
        [*command, *(f"--unit={unit}" for unit in UNITS)],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS_MAX,
        check=True,
    ).stdout
