"""Programs that begin again unless an argument lets them continue (`--resume-args`), such as nanoGPT."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch import begins_again
from tests.launch.local import LocalGang
from understudy.identity import read_identity
from understudy_launcher.checkpoint_files import look_for
from understudy_launcher.command import Meeting
from understudy_launcher.options import UsageError, parse
from understudy_launcher.rank_environment import APPENDED_VARIABLE, Part, rank_environment

RESUMES = ["--resume-args=--init_from=resume --eval_interval=2", "--resume-if", "out/ckpt.pt"]
COMMAND = [sys.executable, begins_again.__file__, "config.py"]


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[LocalGang]:
    started = LocalGang(tmp_path)
    yield started
    started.close()


def steps(gang: LocalGang, launch: int) -> list[int]:
    """Steps at which the ranks of a launch have begun."""
    return [one["step"] for one in gang.lines("began") if one["launch"] == str(launch)]


@pytest.mark.integration
@pytest.mark.parametrize("more", [[], ["--preload", "json", "--rearm-seconds", "0"]], ids=["cold", "warm"])
def test_a_launch_that_has_a_checkpoint_continues_and_the_first_one_begins(gang: LocalGang, more: list[str]) -> None:
    gang.start(["--nodes", "2", *RESUMES, *more], [*COMMAND, "--fails_at=4"], nodes=2)
    if more:
        gang.wait_for_standbys(2, "warm")
    (gang.home / "go").touch()
    assert gang.exit_code() == 0, gang.output
    assert steps(gang, 0) == [0, 0], gang.output
    assert steps(gang, 1) == [4, 4]
    assert [one["warm"] for one in gang.events("launch")][1] == (2 if more else 0)
    after = [one["arguments"] for one in gang.lines("began") if one["launch"] == "1"]
    assert {tuple(one[-2:]) for one in after} == {("--init_from=resume", "--eval_interval=2")}
    assert "launch 0 begins: out/ckpt.pt (--resume-if) is not there" in gang.output
    assert "launch 1 continues from out/ckpt.pt (written 20" in gang.output
    assert "--init_from=resume --eval_interval=2 is appended to the command" in gang.output


@pytest.mark.integration
def test_the_first_launch_of_a_requeued_job_continues_too(gang: LocalGang) -> None:
    for expected in ([0], [5]):
        gang.forget()
        (gang.home / "began").unlink(missing_ok=True)
        gang.start(["--nodes", "1", *RESUMES], [*COMMAND, "--max_iters=5"], nodes=1)
        assert gang.exit_code() == 0, gang.output
        assert steps(gang, 0) == expected


@pytest.mark.integration
def test_without_it_such_a_program_begins_again(gang: LocalGang) -> None:
    """What the option is for."""
    (gang.home / "go").touch()
    gang.start(["--nodes", "2"], [*COMMAND, "--fails_at=4"], nodes=2)
    assert gang.exit_code() == 0, gang.output
    assert [steps(gang, 0), steps(gang, 1)] == [[0, 0], [0, 0]]


def test_it_is_one_experiment_with_the_arguments_and_without_them() -> None:
    def arguments(*appended: str, **environment: str) -> str:
        part = Part(1, Meeting(1, 0, 1, "n1", 20000), False, "n1", appended=appended)
        rank = rank_environment({"SLURM_JOB_ID": "7"}, part, 0)
        return read_identity({**rank, **environment}, ["train.py", "--lr=1", *appended]).arguments

    assert arguments("--load-checkpoint", "x") == arguments()
    for odd in ("no JSON", '["y"]', "5", '"x"', "[]", "{}"):
        assert arguments("--load-checkpoint", "x", UNDERSTUDY_APPENDED_ARGUMENTS=odd) != arguments()


def test_a_file_system_that_does_not_answer_may_have_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that begins again would write over it."""
    (tmp_path / "file").touch()
    assert look_for(tmp_path / "no folder" / "ckpt.pt") is None
    assert look_for(tmp_path / "file" / "ckpt.pt") is None
    assert (look_for(tmp_path / "file") or "").startswith("written 20")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "symbolic links" in (look_for(tmp_path / "loop") or "")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["--resume-args=--init_from=resume"], "belong together"),
        (["--resume-if", "x"], "belong together"),
        (["--resume-args='x", "--resume-if", "x"], "No closing quotation"),
        (["--resume-args=x", "--resume-if", "x", "--in-process"], "keeps its arguments"),
    ],
)
def test_what_could_not_work_is_refused(line: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse(["--nodes", "2", *line, "--", "x"])


def test_words_are_those_of_a_shell() -> None:
    line: list[Any] = ["--nodes", "2", "--resume-args=--from 'a b'", "--resume-if", "c", "--", "x"]
    resume = parse(line).resume
    assert resume is not None and (resume.arguments, str(resume.file)) == (("--from", "a b"), "c")


def test_a_home_directory_is_known_where_no_shell_has_put_it_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    line = ["--nodes", "2", "--resume-args=x", "--resume-if=~/out/ckpt.pt", "--", "train"]
    resume = parse(line).resume
    assert resume is not None
    assert resume.file == Path("/home/ada/out/ckpt.pt")


def test_arguments_that_another_launch_appended_are_not_passed_on() -> None:
    """A rank that submits the next job exports its environment."""
    part = Part(0, Meeting(1, 0, 1, "n1", 20000), False, "n1")
    assert APPENDED_VARIABLE not in rank_environment({APPENDED_VARIABLE: '["--old"]'}, part, 0)
