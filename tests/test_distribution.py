"""What users install and copy: every package, and the hook under its own name."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests import REPOSITORY
from understudy_agent.export import ExportError, export, main

HOOK = REPOSITORY / "agents" / "understudy"
SYSTEM_PYTHON = "/usr/bin/python3"
"""Debian's: without any package of this environment."""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    clean = {"PATH": os.environ["PATH"], **environment}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_directory_with_code_is_installed() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    there = {
        ".".join(path.parent.relative_to(REPOSITORY).parts)
        for top in ("agents", "controlplane", "migrations")
        for path in (REPOSITORY / top).glob("**/*.py")
        if path.parent.name != "scripts"  # of the Slurm hooks: data
    }
    assert set(settings["packages"]) == there | {"understudy"}
    assert len(settings["packages"]) == len(set(settings["packages"]))


def test_an_editable_installation_has_the_hook_under_its_name(tmp_path: Path) -> None:
    told = run(sys.executable, "-c", "import understudy.link; print(understudy.__path__[0])", cwd=tmp_path)
    assert Path(told.strip()) == HOOK


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what git would take, because setuptools leaves its own traces beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY, HOME=str(folder)).splitlines()
    for name in listed:
        if name.partition("/")[0] in ("agents", "controlplane", "migrations", "pyproject.toml", "README.md", "LICENSE"):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((REPOSITORY / name).read_bytes())
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder)]
    run(*build, source, cwd=folder, HOME=str(folder), PIP_DISABLE_PIP_VERSION_CHECK="1")
    [built] = folder.glob("*.whl")
    return built


def test_a_wheel_has_the_hook_under_its_name_and_all_of_its_modules(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
        names = set(archive.namelist())
    modules = {path.name for path in HOOK.iterdir() if path.is_file()}
    assert {f"understudy/{name}" for name in modules} <= names
    assert "migrations/script.py.mako" in names
    assert "agents/understudy_agent/hooks/scripts/prolog" in names
    program = "import understudy; print(understudy.__file__, understudy.Monitor().active)"
    told = run(SYSTEM_PYTHON, "-c", program, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert told.split() == [str(tmp_path / "understudy" / "__init__.py"), "False"]


def test_an_installed_wheel_exports_the_hook_for_an_environment_without_it(wheel: Path, tmp_path: Path) -> None:
    """The collision it is for: the user's environment has another package named `agents`."""
    theirs = tmp_path / "theirs"
    (theirs / "agents").mkdir(parents=True)
    (theirs / "agents" / "__init__.py").write_text("OWNER = 'somebody else'\n")
    installed = tmp_path / "site-packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    program = "import sys; from understudy_agent.entry import main; sys.exit(main())"
    packages = f"{installed}:{sysconfig.get_paths()['purelib']}"
    told = run(sys.executable, "-c", program, "export-hook", "hook", cwd=tmp_path, PYTHONPATH=packages)
    assert f"export PYTHONPATH={tmp_path}/hook" in told
    assert [path.name for path in (tmp_path / "hook").iterdir()] == ["understudy"]
    program = "import agents, understudy; print(agents.OWNER, understudy.Monitor().active)"
    told = run(SYSTEM_PYTHON, "-c", program, cwd=tmp_path, PYTHONPATH=f"{theirs}:{tmp_path}/hook")
    assert told.split() == ["somebody", "else", "False"]


def test_an_export_is_repeated_over_an_earlier_one(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / "understudy" / "link.py").write_text("an older version\n")
    export(tmp_path)
    exported = {path.name: path.read_bytes() for path in (tmp_path / "understudy").iterdir()}
    assert exported == {path.name: path.read_bytes() for path in HOOK.iterdir() if path.is_file()}


def test_an_export_that_was_cut_off_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "understudy").mkdir()
    (tmp_path / "understudy" / "clocks.py").write_text("")
    (tmp_path / "understudy" / ".collectives.py.4711").write_text("")
    export(tmp_path)
    assert (tmp_path / "understudy" / "monitor.py").exists()


@pytest.mark.parametrize("name", ["__init__.py", "notes.txt"])
def test_what_is_not_ours_is_left_alone(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "understudy").mkdir()
    (tmp_path / "understudy" / name).write_text("somebody's\n")
    with pytest.raises(ExportError):
        export(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "is something else" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "understudy").iterdir()] == [name]
