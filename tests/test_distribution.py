"""What users install and copy: the wheel of the hook, the wheel of everything else, and the exported hook."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import sqlite3
import subprocess
import sys
import sysconfig
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

import understudy
from tests import REPOSITORY, audit
from tests.testbed.configuration import free_ports
from tests.testbed.prometheus import CLIENT
from understudy_agent.export import ExportError, export, main

pytestmark = pytest.mark.integration

HOOK = REPOSITORY / "agents" / "understudy"
MAIN_PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
HOOK_PROJECT = tomllib.loads((REPOSITORY / "agents" / "pyproject.toml").read_text())["project"]
ON_NODES = ("understudy_agent", "understudy_keeper", "understudy_launcher", "understudy_selfcheck", "understudy_wire")
Result = TypeVar("Result")


def clean_environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(folder)}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**clean_environment(cwd), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Venv:
    """A virtual environment that begins empty, without even pip."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
        [self.packages] = (folder / "lib").glob("python3.*/site-packages")
        assert list(self.packages.iterdir()) == []

    def install(self, *wheels: Path) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check"]
        run(*pip, "install", "--quiet", "--no-deps", "--no-index", *wheels, cwd=self.folder)

    def borrow_dependencies(self) -> None:
        """The packages of the development environment, after this one's own on the path. Its editable installations
        are not active here: a .pth file within a folder that a .pth file adds is not read.
        """
        (self.packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Name of the distribution → its wheel."""
    folder = tmp_path_factory.mktemp("wheels")
    run(REPOSITORY / "deploy" / "build_wheels.sh", sys.executable, folder, cwd=folder)
    return {path.name.partition("-")[0].replace("_", "-"): path for path in folder.glob("*.whl")}


@pytest.fixture(scope="module")
def hook_venv(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Venv:
    venv = Venv(tmp_path_factory.mktemp("hook") / "venv")
    venv.install(wheels["slurm-understudy-hook"])
    return venv


@pytest.fixture(scope="module")
def main_venv(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Venv:
    venv = Venv(tmp_path_factory.mktemp("main") / "venv")
    venv.install(*wheels.values())
    venv.borrow_dependencies()
    return venv


# -- what is in the wheels ---------------------------------------------------------------------------------------


def test_the_wheels_hold_every_file_of_their_packages_and_nothing_else(wheels: dict[str, Path]) -> None:
    assert sorted(wheels) == ["slurm-understudy", "slurm-understudy-hook"]
    tracked = run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY).splitlines()
    packages = {
        "understudy": "agents/",
        **dict.fromkeys(ON_NODES, "agents/"),
        "understudy_controlplane": "controlplane/",
        "understudy_client": "controlplane/",
    }
    expected = {
        package: {
            path.removeprefix(folder)
            for path in tracked
            if path.startswith(f"{folder}{package}/") and not (REPOSITORY / path).is_symlink()
        }
        for package, folder in packages.items()
    }
    expected["understudy_controlplane"] |= {
        f"understudy_controlplane/{path}" for path in tracked if path.startswith("migrations/")
    }
    expected["understudy_agent"] |= {
        f"understudy_agent/documents/{Path(path).name}" for path in tracked if re.fullmatch(r"docs/[^/]+\.md", path)
    }
    assert _content(wheels["slurm-understudy-hook"]) == expected["understudy"]
    main = set().union(*(files for package, files in expected.items() if package != "understudy"))
    assert _content(wheels["slurm-understudy"]) == main


def _content(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_every_package_that_the_code_imports_is_declared() -> None:
    """The tests below borrow the development environment's packages, so they would not miss one."""
    base = {_name(line) for line in MAIN_PROJECT["dependencies"]}
    extras = {_name(line) for extra in ("controlplane", "notify", "postgres") for line in _extra(extra)}
    # Only where the site has it: the user's PyTorch on the node; pyslurm, which depends on the site's Slurm; xxhash,
    # without which an agent cannot compare the checksums that a hook has made with it.
    optional = {"torch", "pyslurm", "xxhash"}
    brought = {"starlette", "pydantic-core", "anyio", "uvloop"}  # parts of fastapi, pydantic, starlette and uvicorn
    of_agent = {_name(line) for line in _extra("s3")}
    on_nodes = set().union(*(_imported(f"agents/{package}") for package in ON_NODES))
    assert on_nodes - base - of_agent - optional - {"numpy"} == set()
    assert _imported("controlplane/understudy_client") - base == set()
    assert _imported("controlplane/understudy_controlplane") - base - extras - optional - brought == set()
    frameworks = {_name(line) for line in _extra("frameworks")}
    dev = {_name(line) for line in _extra("dev")}
    assert HOOK_PROJECT["dependencies"] == []
    hook_extras = {_name(line) for lines in HOOK_PROJECT["optional-dependencies"].values() for line in lines}
    assert _imported("agents/understudy") - hook_extras - frameworks - {"pytorch-lightning"} == set()
    assert (_imported("tests") | _imported("docs")) - base - extras - of_agent - dev - frameworks - brought - {
        "tests",
        "docs",
        "deploy",
    } == set()


def test_every_declared_package_is_pinned_for_development() -> None:
    locks = "".join(path.read_text() for path in REPOSITORY.glob("requirements*.lock"))
    pinned = {_name(line) for line in locks.splitlines() if "==" in line}
    lines = [
        *MAIN_PROJECT["dependencies"],
        *(line for extra in ("controlplane", "dev", "frameworks", "s3") for line in _extra(extra)),
    ]
    assert {_name(line) for line in lines if not line.startswith("slurm-understudy")} - pinned == set()


@pytest.mark.parametrize(("lock", "at_least"), [("requirements.lock", 50), ("requirements-frameworks.lock", 20)])
def test_every_pinned_package_has_digests_and_no_address(lock: str, at_least: int) -> None:
    """PyTorch has a lock of its own, without digests: machines have different builds of it."""
    pins = re.split(r"\n(?=[a-z])", (REPOSITORY / lock).read_text())
    assert len(pins) > at_least
    assert [pin for pin in pins if "==" in pin and "--hash=sha256:" not in pin] == []
    assert "://" not in "".join(pins)


@pytest.mark.parametrize(
    ("packages", "status", "last"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 audited, 0 not, 0 vulnerabilities"),
        ([{"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]}], 1, "1 audited, 0 not, 1 vulnerabilities"),
        ([{"name": "a", "skip_reason": "not found"}], 75, "NOT AUDITED: the service knows none of the 1 packages"),
    ],
)
def test_an_audit_without_an_answer_does_not_count_as_clean(
    packages: list[dict[str, object]], status: int, last: str
) -> None:
    lines, found = audit.judge(packages)
    assert (found, lines[-1]) == (status, last)


def test_the_bill_of_materials_has_every_package_of_a_control_plane_with_licence_and_digests() -> None:
    bill = runpy.run_path(str(REPOSITORY / "deploy" / "sbom.py"))["bill_of_materials"]()
    components = {one["name"]: one for one in bill["components"]}
    assert {"slurm-understudy", "fastapi", "uvicorn", "httptools", "sqlalchemy", "msgspec"} <= components.keys()
    assert "pytest" not in components
    for name, one in components.items():
        assert one["licenses"][0]["license"]["name"], name
        assert name.startswith("slurm-understudy") or one["properties"], name


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=~ ]", requirement)[0].lower().replace("_", "-")


def _extra(name: str) -> list[str]:
    lines: list[str] = MAIN_PROJECT["optional-dependencies"][name]
    return lines


def _imported(folder: str) -> set[str]:
    """Distributions whose modules are imported somewhere in the folder, this project's own left out."""
    modules = set()
    for path in (REPOSITORY / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module)
    tops = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names
    owners = packages_distributions()
    return {owners.get(top, [top])[0].lower().replace("_", "-") for top in tops if not top.startswith("understudy")}


# -- the hook's wheel ----------------------------------------------------------------------------------------------


def test_the_hooks_wheel_brings_the_package_understudy_and_nothing_else(hook_venv: Venv, tmp_path: Path) -> None:
    version = understudy.__version__
    assert {path.name for path in hook_venv.packages.iterdir()} == {
        "understudy",
        f"slurm_understudy_hook-{version}.dist-info",
    }
    metadata = (hook_venv.packages / f"slurm_understudy_hook-{version}.dist-info" / "METADATA").read_text()
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert [line for line in needed if "extra ==" not in line] == []
    program = """
import json, sys
before = set(sys.modules)
import understudy
outside = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
print(json.dumps([understudy.__file__, understudy.Monitor().active, sorted(outside)]))
"""
    seen = json.loads(run(hook_venv.python, "-c", program, cwd=tmp_path))
    assert seen == [str(hook_venv.packages / "understudy" / "__init__.py"), False, ["understudy"]]


# -- the main wheel ------------------------------------------------------------------------------------------------


def test_the_main_wheel_says_its_version(main_venv: Venv, tmp_path: Path) -> None:
    command = main_venv.folder / "bin" / "understudy"
    assert run(command, "--version", cwd=tmp_path) == f"understudy {understudy.__version__}\n"
    assert run(command, "help", "runbooks", "breaker", cwd=tmp_path).startswith("### breaker")


def test_the_main_wheel_exports_the_hook(main_venv: Venv, hook_venv: Venv, tmp_path: Path) -> None:
    """The environment has other packages of its own, and none of them is hidden."""
    users = tmp_path / "users"
    (users / "agents").mkdir(parents=True)
    (users / "agents" / "__init__.py").write_text("OWNER = 'the user'\n")
    printed = run(main_venv.folder / "bin" / "understudy", "export-hook", "hook", cwd=tmp_path)
    assert f"export PYTHONPATH={tmp_path}/hook" in printed
    assert [path.name for path in (tmp_path / "hook").iterdir()] == ["understudy"]
    program = "import agents, understudy; print(agents.OWNER, understudy.__file__)"
    printed = run(sys.executable, "-I", "-c", _with_path(program, users, tmp_path / "hook"), cwd=tmp_path)
    assert printed.strip() == f"the user {tmp_path}/hook/understudy/__init__.py"


def _with_path(program: str, *folders: Path) -> str:
    return f"import sys; sys.path[:0] = {list(map(str, folders))}; {program}"


def test_agent_and_control_plane_start_from_the_wheel(main_venv: Venv, hook_venv: Venv, tmp_path: Path) -> None:
    """No checkout is needed, and Slurm does not answer: the control plane creates its database and answers, the agent
    finds it and takes the hello of a rank that has the hook's wheel alone.
    """
    command = str(main_venv.folder / "bin" / "understudy")
    port = free_ports(1)[0]
    url = f"http://127.0.0.1:{port}"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho 'Unable to contact slurm controller (connect failure)' >&2\nexit 1\n")
    scontrol.chmod(0o755)
    (tmp_path / "controlplane.toml").write_text(
        f'cluster = "c"\n[server]\nport = {port}\ndatabase = "sqlite:///{tmp_path}/understudy.db"\n'
        f'[slurm]\nscontrol = "{scontrol}"\n'
    )
    making = ("token", "create", "--role", "node", "--node", "n1", "--file", "token", "--config", "controlplane.toml")
    run(command, *making, cwd=tmp_path)
    (tmp_path / "kernel.log").write_text("")
    (tmp_path / "agent.toml").write_text(
        f'cluster = "c"\nnode = "n1"\ncontrol_plane_urls = ["{url}"]\ntoken_file = "{tmp_path}/token"\n'
        f'kernel_log = "{tmp_path}/kernel.log"\nsocket = "{tmp_path}/agent.sock"\n'
        f'run_directory = "{tmp_path}/run"\nreport_interval_seconds = 0.2\n[nvml]\nenabled = false\n'
    )
    checked = run(command, "agent", "--config", "agent.toml", "--check-config", cwd=tmp_path)
    assert "cluster c, node n1" in checked
    assert _loaded_from(main_venv, tmp_path) == {"understudy_agent", "understudy_controlplane"}
    with started(command, "serve", "--config", "controlplane.toml", cwd=tmp_path) as control_plane:
        assert "slurm_error" in (until(lambda: healthz(url), control_plane) or {})
        with started(command, "agent", "--config", "agent.toml", cwd=tmp_path) as agent:
            until((tmp_path / "agent.sock").exists, agent)
            # Slurm cannot be read here, so the control plane knows no node. The agent logs that answer.
            until(lambda: "knows no node" in (tmp_path / "agent.log").read_text(), agent)
            rank = {"SLURM_JOB_ID": "7", "RANK": "0", "WORLD_SIZE": "1", "UNDERSTUDY_SOCKET": f"{tmp_path}/agent.sock"}
            program = "from understudy import Monitor; m = Monitor(); print(m._link.connected.wait(20)); m.close(0.1)"
            assert run(hook_venv.python, "-c", program, cwd=tmp_path, **rank).strip() == "True"
    revisions = [path.name[:4] for path in (REPOSITORY / "migrations" / "versions").glob("0*.py")]
    with sqlite3.connect(tmp_path / "understudy.db") as database:
        [[revision]] = database.execute("SELECT version_num FROM alembic_version")
    assert str(revision)[:4] == max(revisions)


def _loaded_from(venv: Venv, cwd: Path) -> set[str]:
    """This project's packages that Python finds in the virtual environment itself."""
    program = """
import json, understudy_agent.entry, understudy_controlplane.store.database as database
print(json.dumps([understudy_agent.entry.__file__, database.__file__, str(database.MIGRATIONS)]))
"""
    paths = json.loads(run(venv.python, "-c", program, cwd=cwd))
    assert all(Path(path).is_relative_to(venv.packages) for path in paths), paths
    return {Path(path).relative_to(venv.packages).parts[0] for path in paths}


@contextmanager
def started(*command: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (cwd / f"{command[1]}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=cwd, env=clean_environment(cwd), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            status = process.wait(20)
    assert status in (0, -15), f"{command} ended with {status}"


def healthz(url: str) -> dict[str, object] | None:
    try:
        body: dict[str, object] = CLIENT.get(f"{url}/healthz", timeout=5).json()
    except httpx.TransportError:
        return None
    return body


def until(condition: Callable[[], Result], process: subprocess.Popen[bytes], seconds: float = 60) -> Result:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert process.poll() is None, f"{process.args!r} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"nothing within {seconds} s"
        time.sleep(0.1)
    return result


# -- the exported hook ---------------------------------------------------------------------------------------------


def test_an_export_is_repeated_over_an_earlier_one(tmp_path: Path) -> None:
    export(tmp_path)
    (tmp_path / "understudy" / "link.py").write_text("an older version\n")
    export(tmp_path)
    exported = {path.name: path.read_bytes() for path in (tmp_path / "understudy").iterdir()}
    assert exported == {path.name: path.read_bytes() for path in HOOK.iterdir() if path.is_file()}


def test_an_export_that_was_interrupted_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "understudy").mkdir()
    (tmp_path / "understudy" / "clocks.py").write_text("")
    (tmp_path / "understudy" / ".collectives.py.4711").write_text("")
    export(tmp_path)
    assert (tmp_path / "understudy" / "monitor.py").exists()


@pytest.mark.parametrize("name", ["__init__.py", "notes.txt"])
def test_another_package_of_the_same_name_is_not_overwritten(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "understudy").mkdir()
    (tmp_path / "understudy" / name).write_text("the user's own\n")
    with pytest.raises(ExportError):
        export(tmp_path)
    assert main([str(tmp_path)]) == 1
    assert "is not an export of the hook" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "understudy").iterdir()] == [name]


# -- the name on PyPI ----------------------------------------------------------------------------------------------

WRONG_NAME = re.compile(r"(pip3? install|uv pip install|uv add|install)\s+['\"]?understudy\b(?![-_.]\w)")
"""The name on PyPI belongs to another project."""


def test_no_text_asks_to_install_the_name_understudy_from_pypi() -> None:
    tracked = run("git", "ls-files", "-co", "--exclude-standard", cwd=REPOSITORY).splitlines()
    texts = [path for path in tracked if path.endswith((".md", ".py", ".toml", ".sh", ".mako")) or "/" not in path]
    found = [
        f"{path}: {match[0]}"
        for path in texts
        if (REPOSITORY / path).is_file() and path != "tests/test_distribution.py"
        for match in WRONG_NAME.finditer((REPOSITORY / path).read_text(errors="replace"))
    ]
    assert found == []
