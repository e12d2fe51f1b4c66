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
