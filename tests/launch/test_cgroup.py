"""What the kernel counts of a seat's control group."""

from __future__ import annotations

from pathlib import Path

from understudy_agent.launch.cgroup import oom_kills

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


def test_without_version_2_none_are_counted(tmp_path: Path) -> None:
    own = tmp_path / "own"
    assert oom_kills(own, tmp_path) == 0
    own.write_text("4:memory:/slurm/uid_0/job_7\n")
    assert oom_kills(own, tmp_path) == 0
    own.write_text(f"0::{GROUP}\n")
    assert oom_kills(own, tmp_path) == 0
