"""The agent's unit waits for the service that sets MIG mode, and not for ever.

Its command runs here with a systemctl that prints what systemd's does: there is no systemd.
"""

from __future__ import annotations

import shlex
import subprocess
from configparser import RawConfigParser
from pathlib import Path

import pytest

from tests import REPOSITORY

pytestmark = pytest.mark.integration

UNIT = REPOSITORY / "deploy/systemd/understudy-agent.service"
STARTING = "Job=0\nActiveState=activating"
QUEUED = "Job=117\nActiveState=inactive"
OVER = "ActiveState=inactive"
WAITING = 120


def unit() -> RawConfigParser:
    """Settings that repeat, as After= and ExecReload=, count once."""
    found = RawConfigParser(strict=False)
    found.read(UNIT)
    return found


def waited(tmp_path: Path, *shown: str) -> tuple[int, str]:
    """Seconds, and what it wrote. The last of `shown` is shown again and again."""
    for number, text in enumerate(shown):
        (tmp_path / f"shown{number}").write_text(f"{text}\n")
    slept = tmp_path / "slept"
    slept.write_text("")
    count = f'$(wc -l < "{slept}")'
    last = len(shown) - 1
    programs = {
        "systemctl": f'number={count}; [ $number -lt {last} ] || number={last}; cat "{tmp_path}/shown$number"',
        "sleep": f'echo "$1" >> "{slept}"',
    }
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    command = shlex.split(unit()["Service"]["ExecStartPre"].replace("$$", "$"))
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ran = subprocess.run(command, env=path, check=True, capture_output=True, text=True, timeout=60)
    return sum(map(int, slept.read_text().split())), ran.stdout


@pytest.mark.parametrize(
    ("shown", "seconds"),
    [([OVER], 0), (["ActiveState=failed"], 0), ([QUEUED, STARTING, STARTING, OVER], 3)],
    ids=["not-installed", "failed", "at-boot"],
)
def test_the_agent_starts_once_mig_mode_is_set(tmp_path: Path, shown: list[str], seconds: int) -> None:
    assert waited(tmp_path, *shown) == (seconds, "")


def test_a_mig_manager_that_hangs_does_not_hold_the_agent_back_for_ever(tmp_path: Path) -> None:
    seconds, wrote = waited(tmp_path, STARTING)
    assert seconds == WAITING and wrote.startswith("nvidia-mig-manager.service is still starting after 120 s")
    assert "mig" not in unit()["Unit"]["After"], "a oneshot's end has no time limit"
    assert int(unit()["Service"]["TimeoutStartSec"]) > WAITING
