"""Hook and Slurm's TaskProlog find a job's run in the environment."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests import PYTHON_PATH, REPOSITORY
from understudy import Monitor
from understudy import identity as identity_of_hook
from understudy.identity import is_outside, read_identity

SCRIPT = REPOSITORY / "agents" / "understudy_agent" / "hooks" / "scripts" / "restore_point.py"
RANK = {"SLURM_JOB_ID": "7", "RANK": "2", "WORLD_SIZE": "4"}
JOB = {"SLURM_JOB_NAME": "train", "SLURM_SUBMIT_DIR": "/home/a/project"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ("", "")),
        ({"SLURM_JOB_NAME": "train"}, ("", "")),
        (JOB, ("train", "/home/a/project")),
        (JOB | {"SLURM_ARRAY_TASK_ID": "3"}, ("train[3]", "/home/a/project")),
        (JOB | {"UNDERSTUDY_RUN": "pretraining"}, ("pretraining", "")),
        (JOB | {"UNDERSTUDY_RUN": "x" * 300}, ("x" * 255, "")),
        (JOB | {"SLURM_SUBMIT_DIR": "/" * 3000}, ("", "")),
    ],
)
def test_a_run_has_the_name_that_the_user_gave_or_that_of_job_and_folder(
    environment: dict[str, str], expected: tuple[str, str]
) -> None:
    identity = read_identity(RANK | environment)
    assert (identity.run, identity.run_folder) == expected
    asked = runpy.run_path(str(SCRIPT))["run"](environment)
    assert (asked.get("run", ""), asked.get("run_folder", "")) == expected


COMMAND = ["/home/a/train.py", "--lr", "3e-4", "--out", "/scratch/7/out"]


@pytest.mark.parametrize(
    ("command", "job", "alike"),
    [
        (["train.py", *COMMAND[1:]], 7, True),
        (["/home/a/train.py", "--lr", "3e-4", "--out", "/scratch/8/out"], 8, True),
        ([*COMMAND, "--resume", "last.pt"], 7, True),
        ([*COMMAND, "--resume"], 7, True),
        ([*COMMAND, "--init_from=resume"], 7, True),
        ([*COMMAND, "--local-rank=3", "--node_rank", "1", "--master_port", "29500"], 7, True),
        ([*COMMAND, "--global_rank", "2", "--node-id", "1", "--gpu", "3", "--port", "29501"], 7, True),
        ([*COMMAND, "--auto-resume", "--resume_from_checkpoint=/c/20", "--resume", "auto"], 7, True),
        ([*COMMAND, "trainer.resume_from_checkpoint=/c/20"], 7, True),
        (["/home/a/train.py", "--lr", "1e-3", "--out", "/scratch/7/out"], 7, False),
        (["/home/a/train.py", "--lr", "3e-4", "--out", "/scratch/17/out"], 7, False),
        (["/home/a/other.py", *COMMAND[1:]], 7, False),
        ([*COMMAND, "--rank-of-lora", "8"], 7, False),
        ([*COMMAND, "--resume", "last.pt", "--epochs", "3"], 7, False),
        ([*COMMAND, "--rank", "8"], 7, False),
        ([*COMMAND, "--main_lr", "1"], 7, False),
    ],
)
def test_arguments_are_those_of_an_experiment_and_not_of_one_of_its_jobs(
    command: list[str], job: int, alike: bool
) -> None:
    place = {"LOCAL_RANK": "3", "NODE_RANK": "1"}
    first = read_identity(RANK | {"SLURM_JOB_ID": "7"}, COMMAND).arguments
    found = read_identity(RANK | place | {"SLURM_JOB_ID": str(job)}, command).arguments
    assert len(first) == 16
    assert (found == first) is alike


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["--auto-resume", "a.yaml"], ["--auto-resume", "b.yaml"]),
        (["--resume", "a.yaml"], ["--resume", "conf/b.yaml"]),
        (["--rank", "8"], ["--rank", "16"]),
        (["--cfg", "resume_false.yaml"], ["--cfg", "resume_true.yaml"]),
        (["--auto-resume", "/data/a"], ["--auto-resume", "/data/b"]),
        (["--init_from", "gpt2"], ["--init_from", "gpt2-xl"]),
    ],
)
def test_no_option_joins_two_experiments(one: list[str], other: list[str]) -> None:
    found = {read_identity(RANK, [*COMMAND, *words]).arguments for words in (one, other)}
    assert len(found) == 2


@pytest.mark.integration
def test_a_process_below_slurmstepd_is_in_a_job_whatever_its_container_hides() -> None:
    """`enroot start` in a batch script has a cgroup namespace of its own, and no process namespace."""
    child = "from understudy import identity; identity.CGROUP = '/dev/null'; print(identity.is_outside({}, '/no/sock'))"
    parent = """
import subprocess, sys
with open("/proc/self/comm", "w") as file:
    file.write(sys.argv[1])
subprocess.run(["/bin/sh", "-c", '"$0" -c "$1"; true', sys.executable, sys.argv[2]], check=True)
"""

    def asked(name: str) -> str:
        words = [sys.executable, "-c", parent, name, child]
        done = subprocess.run(words, env={"PYTHONPATH": PYTHON_PATH}, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert [asked("slurmstepd"), asked("bash")] == ["False", "True"]


def test_a_container_that_hides_its_job_is_advised_in_the_line_that_reports_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in list(os.environ):
        if name.startswith("SLURM"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(identity_of_hook, "CGROUP", str(tmp_path / "cgroup"))
    for group, advised in (("0::/\n", True), ("0::/user.slice/user-1000.slice\n", False)):
        caplog.clear()
        (tmp_path / "cgroup").write_text(group)
        monitor = Monitor(socket=str(tmp_path / "agent.sock"))
        assert monitor.restore_point().path == ""
        (line,) = caplog.messages
        assert "training begins at its start" in line
        assert ("A container of a Slurm job needs the job's variables" in line) is advised


@pytest.mark.parametrize(
    ("environment", "group", "agent", "outside"),
    [
        ({}, "0::/user.slice/user-1000.slice", False, True),
        ({"SLURM_CONF": "/etc/slurm.conf", "RANK": "0"}, None, False, True),
        ({"SLURM_JOB_NAME": "train"}, "0::/", False, False),
        ({}, "9:cpuset:/\n4:memory:/slurm/uid_1000/job_7/step_0\n0::/", False, False),
        ({}, "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", False, False),
        ({}, "0::/", True, False),
    ],
)
def test_a_rank_without_slurms_variables_is_outside_only_where_nothing_else_shows_a_job(
    environment: dict[str, str],
    group: str | None,
    agent: bool,
    outside: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if group is not None:
        (tmp_path / "cgroup").write_text(group)
    monkeypatch.setattr(identity_of_hook, "CGROUP", str(tmp_path / "cgroup"))
    if agent:
        (tmp_path / "agent.sock").touch()
    assert is_outside(environment, str(tmp_path / "agent.sock")) is outside
