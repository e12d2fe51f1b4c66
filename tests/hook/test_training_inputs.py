"""Code, configuration and data of a training, in a few characters each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from understudy import training_inputs
from understudy.training_inputs import code_of, config_of

pytestmark = pytest.mark.integration


def git(folder: Path, *arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    command = ["git", "-C", str(folder), *own, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout.strip()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Script in a working tree with one commit."""
    folder = tmp_path / "project"
    (folder / "model").mkdir(parents=True)
    (folder / "train.py").write_text("import model\n")
    (folder / "model" / "__init__.py").write_text("width = 16\n")
    (folder / "link").symlink_to("train.py")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder / "train.py"


def test_the_code_is_the_commit_and_a_sum_of_the_tracked_files(script: Path) -> None:
    found = code_of(script).split()
    assert found[:3] == ["commit", git(script.parent, "rev-parse", "HEAD"), "files"]
    assert len(found) == 4, "nothing is changed"
    (script.parent / "checkpoint.pt").write_bytes(b"weights")
    os.utime(script, (1, 1))
    assert code_of(script).split() == found, "only what is tracked counts, and its content"


@pytest.mark.parametrize("is_added", [False, True])
def test_a_changed_file_is_other_code_also_where_it_is_not_committed(script: Path, is_added: bool) -> None:
    before = code_of(script)
    (script.parent / "model" / "__init__.py").write_text("width = 32\n")
    if is_added:
        git(script.parent, "add", ".")
    after = code_of(script)
    assert after.split()[:2] == before.split()[:2]
    assert after.split()[3] != before.split()[3]
    assert after.endswith(" changed") is not is_added
    git(script.parent, "commit", "--quiet", "--all", "-m", "second")
    assert code_of(script).split()[3] == after.split()[3], "what was committed is what ran"


def test_a_file_that_is_gone_is_other_code(script: Path) -> None:
    before = code_of(script)
    (script.parent / "model" / "__init__.py").unlink()
    assert code_of(script) not in ("", before)


def test_a_second_working_tree_and_packed_references_are_read(script: Path, tmp_path: Path) -> None:
    git(script.parent, "worktree", "add", "--quiet", "-b", "other", str(tmp_path / "other"))
    git(script.parent, "pack-refs", "--all")
    assert code_of(tmp_path / "other" / "train.py") == code_of(script)
    git(script.parent, "checkout", "--quiet", "--detach")
    assert code_of(script).startswith("commit ")


def test_no_program_is_started(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """git would start one for these settings of the repository."""
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\ncat\n")
    trap.chmod(0o755)
    for name in ("core.fsmonitor", "filter.x.clean", "filter.x.smudge"):
        git(script.parent, "config", name, str(trap))
    (script.parent / ".gitattributes").write_text("*.py filter=x\n")
    script.write_text("import model, os\n")
    git(script.parent, "status")
    assert (tmp_path / "sprung").exists()
    (tmp_path / "sprung").unlink()
    assert code_of(script).endswith(" changed")
    assert not (tmp_path / "sprung").exists()


def test_a_script_that_git_does_not_track_is_known_by_its_bytes(script: Path, tmp_path: Path) -> None:
    other = script.parent / "experiment.py"
    for place in (other, tmp_path / "train.py"):
        place.write_text("a = 1\n")
        before = code_of(place)
        place.write_text("a = 2\n")
        assert before.startswith("script ") and code_of(place).startswith("script ")
        assert code_of(place) != before
    assert code_of(tmp_path / "gone.py") == ""


def test_what_takes_too_long_or_is_too_much_is_not_known(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = " ".join(code_of(script).split()[:2])
    monkeypatch.setattr(training_inputs, "FILES_MAX", 2)
    assert code_of(script) == commit
    monkeypatch.undo()
    git(script.parent, "update-index", "--index-version", "4")
    assert code_of(script) == commit
    (script.parent / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\3" + b"a" * 100)
    assert code_of(script) == commit
    (script.parent / ".git" / "index").unlink()
    os.mkfifo(script.parent / ".git" / "index")
    assert code_of(script) == commit


def test_the_configuration_is_the_files_that_the_user_names_else_the_arguments(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("width: 16\n")
    second.write_text("lr: 1\n")
    both = f"{first}:{second}"
    found = config_of(both, ["--seed", "1"])
    assert found.startswith("file ") and found == config_of(both, ["--seed", "2"])
    second.write_text("lr: 2\n")
    assert config_of(both, []) != found
    assert config_of(str(tmp_path / "gone"), ["--seed", "1"]) == ""
    assert config_of("", ["--seed", "1"]) not in (config_of("", ["--seed", "2"]), config_of("", ["--see", "d1"]), "")
    assert config_of("", []) == ""


def test_no_value_of_the_environment_but_the_ones_for_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--seed", "1"])
    plain = training_inputs.training_inputs("", "", {})
    assert plain == training_inputs.training_inputs("", "", {"WANDB_API_KEY": "secret"})
    named = training_inputs.training_inputs("", "", {"UNDERSTUDY_DATA_VERSION": "2026-11" + "x" * 1000})
    assert (named.data[:7], len(named.data)) == ("2026-11", 255)
