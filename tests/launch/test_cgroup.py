"""What the kernel counts of a seat's control group."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import PYTHON_PATH
from understudy_launcher.process_tree import oom_kills

GROUP = "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"
EVENTS = "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n"


def test_kills_for_want_of_memory_are_counted_in_the_own_group(tmp_path: Path) -> None:
    own, mount = tmp_path / "own", tmp_path / "mount"
    folder = mount / GROUP.lstrip("/")
    folder.mkdir(parents=True)
    (folder / "memory.events").write_text(EVENTS)
    own.write_text(f"0::{GROUP}\n")
    assert oom_kills(own, mount) == 1
    own.write_text(f"4:memory:/slurm\n0::{GROUP}\n")
    assert oom_kills(own, mount) == 1


DIES = """
import os, selectors, signal, sys, time
from pathlib import Path
from understudy_launcher import process_tree
from understudy_launcher.command import Meeting
from understudy_launcher.seat_ranks import Ranks
from understudy_launcher.rank_environment import Part

events = Path(sys.argv[1])
process_tree.oom_kills.__defaults__ = (Path(sys.argv[2]), Path(sys.argv[3]))
ranks = Ranks(["sh", "-c", "kill -9 $$"], "", selectors.DefaultSelector(), restartable=False)
for launch, killed in enumerate((1, 1, 2)):  # what the kernel has counted when the rank has ended
    ranks.start(Part(launch, Meeting(2, 1, 1, "n1", 20000), False, "n[1-2]"))
    events.write_text(f"oom_kill {killed}\\n")
    while not list(ranks.exits()):
        time.sleep(0.01)
    print(launch, file=sys.stderr)
"""


@pytest.mark.integration
def test_a_rank_that_was_killed_for_want_of_memory_is_named_in_the_jobs_output(tmp_path: Path) -> None:
    """SIGKILL alone has other causes, as in the second launch."""
    own, events = tmp_path / "own", tmp_path / "memory.events"
    own.write_text("0::/\n")
    events.write_text("oom_kill 0\n")
    words = [sys.executable, "-c", DIES, str(events), str(own), str(tmp_path)]
    environment = {"PYTHONPATH": PYTHON_PATH, "PATH": os.environ["PATH"], "SLURMD_NODENAME": "n2"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    what = "its job uses all that Slurm gives it on this node (--mem)"
    named = f"understudy: n2: rank 1 was killed for want of memory: {what}"
    assert done.stderr.splitlines() == [named, "0", "1", named, "2"]


def test_without_version_2_none_are_counted(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert oom_kills(own, tmp_path) == 0
    own.write_text("4:memory:/slurm/uid_0/job_7\n")
    assert oom_kills(own, tmp_path) == 0
    own.write_text(f"0::{GROUP}\n")
    assert oom_kills(own, tmp_path) == 0
