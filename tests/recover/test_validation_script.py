"""The script that tests a node, run by a real shell with programs of its own on PATH."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from controlplane.recover.steps.script import NOTHING_CHECKED, gpus_of, validation_script
from tests import builders as b


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def run(folder: Path, gres: str = "", hours: float = 0, **policy: Any) -> tuple[int, str]:
    settings = b.config(validation={"selfcheck": "understudy-x selfcheck", **policy}).validation
    script = validation_script(settings, gres, hours)
    done = subprocess.run(
        ["/bin/bash", "-s"], input=script, env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def test_a_test_in_which_nothing_could_be_looked_at_does_not_pass(programs: Path) -> None:
    code, said = run(programs, gres="gpu:8")
    assert code == NOTHING_CHECKED
    for name in ("understudy-x", "nvidia-smi", "all_reduce_perf", "dcgmi"):
        assert f"== {name}: not installed here, left out" in said


def test_all_parts_are_run_also_after_one_that_failed(programs: Path) -> None:
    program(programs, "understudy-x", "echo checksum differs; exit 1")
    program(programs, "dcgmi", 'echo "diag $*"')
    code, said = run(programs, gres="gpu:8", command="echo ours; exit 7", dcgm_level=3)
    assert code == 1
    assert "checksum differs" in said
    assert "diag diag -r 3\n== passed" in said
    assert "ours\n== FAILED with exit code 7" in said
    assert "== 3 checks, 2 failed" in said


def test_a_selfcheck_that_could_not_run_is_no_pass_and_no_failure(programs: Path) -> None:
    program(programs, "understudy-x", "exit 2")
    assert run(programs)[0] == NOTHING_CHECKED
    assert run(programs, command="exit 2")[0] == 1, "of the site's own command 2 is a failure like any other"
    assert run(programs, command="true")[0] == 0


@pytest.mark.parametrize(("seen", "code"), [(8, 0), (7, 1)])
def test_a_gpu_that_the_driver_does_not_show_fails_the_node(programs: Path, seen: int, code: int) -> None:
    lines = "\n".join(f"echo 'GPU {i}: H100 (UUID: GPU-{i})'" for i in range(seen))
    program(programs, "nvidia-smi", lines)
    assert run(programs, gres="gpu:h100:8(S:0-1)")[0] == code


def test_a_command_with_quotes_and_dollars_is_run_as_it_was_written(programs: Path) -> None:
    code, said = run(programs, command="""x='a b'; echo "[$x]" "it's"; test "$x" = 'a b'""")
    assert (code, "[a b] it's" in said) == (0, True)


@pytest.mark.parametrize(
    ("gres", "count"),
    [("", 0), ("gpu:8", 8), ("gpu:h100:8(S:0-1)", 8), ("nic:2,gpu:a100:4", 4), ("gpu:a:2,gpu:b:2", 4), ("gpu", 0)],
)
def test_gpus_are_counted_as_slurm_lists_them(gres: str, count: int) -> None:
    assert gpus_of(gres) == count


def test_a_burn_in_repeats_the_test_until_its_time_is_over_or_a_round_fails(programs: Path, tmp_path: Path) -> None:
    rounds = tmp_path / "rounds"
    count = f"echo x >> {rounds}; /bin/sleep 0.3"
    assert run(programs, hours=2 / 3600, command=count)[0] == 0
    assert len(rounds.read_text().split()) >= 2
    rounds.unlink()
    assert run(programs, hours=1, command=f"{count}; exit 1")[0] == 1
    assert len(rounds.read_text().split()) == 1
    assert run(programs, hours=1)[0] == NOTHING_CHECKED
