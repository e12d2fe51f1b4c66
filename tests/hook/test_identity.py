"""To which run a job belongs, as the hook and Slurm's TaskProlog find it in the environment."""

from __future__ import annotations

import runpy

import pytest

from tests import REPOSITORY
from understudy.identity import read_identity

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
        (["/home/a/train.py", "--lr", "1e-3", "--out", "/scratch/7/out"], 7, False),
        (["/home/a/train.py", "--lr", "3e-4", "--out", "/scratch/17/out"], 7, False),
        (["/home/a/other.py", *COMMAND[1:]], 7, False),
        ([*COMMAND, "--rank-of-lora", "8"], 7, False),
        ([*COMMAND, "--resume", "last.pt", "--epochs", "3"], 7, False),
    ],
)
def test_arguments_are_those_of_an_experiment_and_not_of_one_of_its_jobs(
    command: list[str], job: int, alike: bool
) -> None:
    first = read_identity(RANK | {"SLURM_JOB_ID": "7"}, COMMAND).arguments
    found = read_identity(RANK | {"SLURM_JOB_ID": str(job)}, command).arguments
    assert len(first) == 16
    assert (found == first) is alike
