"""Batch scripts as people write them: what `understudy check-job` finds, and what `--fix` makes of them.

The mended scripts are run by bash with programs that fail: a failure has to keep the job's nodes, and to be its result.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests import REPOSITORY
from understudy_launcher.check_job import check, fixed

SCRIPTS = REPOSITORY / "tests" / "data" / "batch_scripts"
FOUND: dict[str, tuple[list[int], list[int]]] = {
    "accelerate": ([13], []),
    "apptainer": ([9], []),
    "arithmetic": ([8], []),
    "array": ([], []),
    "background_wait": ([10], [10]),
    "bash_e": ([9], []),
    "body_in_quotes": ([7], []),
    "case": ([8], [8]),
    "comment_as_the_name": ([5], []),
    "comment_of_other": ([8], []),
    "conda": ([11], []),
    "container_srun": ([9], []),
    "copies_results": ([7], [7]),
    "crlf": ([1], []),
    "deepspeed": ([9], []),
    "exec_srun": ([9], []),
    "exec_srun_exec": ([7], []),
    "exec_with_variables": ([7], []),
    "export_hook_launcher": ([], []),
    "export_none": ([], []),
    "function_main": ([10], []),
    "good_pool": ([], []),
    "heredoc": ([], []),
    "heredoc_with_a_dash": ([10], []),
    "if_srun": ([9], [9]),
    "late_directives": ([3, 4, 0, 0], []),
    "late_time": ([5], [5]),
    "launcher": ([], []),
    "launcher_no_exec": ([0, 0, 7, 0], []),
    "launcher_with_variables": ([7], []),
    "loop_retry": ([10], [10]),
    "mpirun": ([9], []),
    "no_newline": ([7], []),
    "no_requeue": ([7], []),
    "nodelist": ([8], [8]),
    "nodes_all": ([3], [3]),
    "one_in_background": ([7], []),
    "pipe_below": ([7, 7], []),
    "pipe_tee": ([9, 9], []),
    "plain_ddp": ([0, 0, 12], []),
    "semicolon": ([7], [7]),
    "set_e": ([10], []),
    "set_e_good": ([], []),
    "sleep_already": ([], []),
    "srun_assign": ([10], []),
    "timeout": ([9], [9]),
    "torchrun_alone": ([9], []),
    "torchrun_by_srun": ([0, 0, 9], []),
    "trap_requeue": ([15], [15]),
    "two_in_background": ([7, 8], [7, 8]),
    "two_stages": ([9, 10], []),
    "var_command": ([10], []),
    "wrapper_script": ([9], [9]),
}
"""Script → lines of its problems, and of those that are left to a person after `--fix`."""


def read(name: str) -> str:
    return (SCRIPTS / f"{name}.sh").read_bytes().decode()


def problems(text: str) -> list[int]:
    return [one.line for one in check(text) if one.is_problem]


def test_each_script_has_its_verdict() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.sh")} == set(FOUND)
    assert {name: problems(read(name)) for name in FOUND} == {name: found for name, (found, _) in FOUND.items()}


def test_what_needs_no_choice_is_mended() -> None:
    assert {name: problems(fixed(read(name))) for name in FOUND} == {name: left for name, (_, left) in FOUND.items()}


@pytest.mark.integration
@pytest.mark.parametrize("name", [name for name, (_, left) in FOUND.items() if not left])
def test_a_mended_script_keeps_its_nodes_after_a_failure_and_ends_well_otherwise(name: str, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("srun", "torchrun", "deepspeed", "mpirun", "understudy"):
        (programs / program).write_text('#!/bin/sh\nexit "$(cat "$0".code)"\n')
    (programs / "sleep").write_text(f"#!/bin/sh\necho slept >> {tmp_path}/slept\n")
    (programs / "scontrol").write_text("#!/bin/sh\necho n1\n")
    for path in programs.iterdir():
        path.chmod(0o755)
    script = tmp_path / "job.sh"
    # What only a cluster has: environment modules and conda.
    text = fixed(read(name)).replace("module ", "true ").replace("source ", "true ").replace("conda activate", "true")
    script.write_text(text)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    environment |= {"SLURM_JOB_NODELIST": "n1", "SLURM_NNODES": "1", "SLURM_ARRAY_TASK_ID": "1"}
    for code, slept in ((0, False), (1, "understudy run" not in text)):
        for program in ("srun", "torchrun", "deepspeed", "mpirun", "understudy"):
            (programs / f"{program}.code").write_text(str(code))
        shell = text.partition("\n")[0].removeprefix("#!").split()
        done = subprocess.run([*shell, script], env=environment, cwd=tmp_path, check=False, timeout=30)
        assert done.returncode == code
        assert (tmp_path / "slept").exists() == slept
