"""The recipes in `deploy/` name commands, services and files that exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from deploy.packages.build import COMPLETIONS, FLAVOURS, write_completions
from tests import REPOSITORY
from understudy_agent.commands import COMMANDS
from understudy_agent.config import parse_config as parse_agent_config
from understudy_controlplane.cli.main import root
from understudy_controlplane.config import parse_config

DEPLOY = REPOSITORY / "deploy"
RECIPES = [DEPLOY / "cloud-init.yaml", *sorted((DEPLOY / "ansible").rglob("*.yml"))]
WITH_COMMANDS = [*RECIPES, *sorted((DEPLOY / "packages" / "scripts").iterdir()), REPOSITORY / "docs" / "install.md"]


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


@pytest.mark.parametrize("recipe", RECIPES, ids=name)
def test_a_recipe_is_yaml(recipe: Path) -> None:
    assert yaml.safe_load(recipe.read_text())


@pytest.mark.parametrize("recipe", WITH_COMMANDS, ids=name)
def test_its_commands_and_services_exist(recipe: Path) -> None:
    text = recipe.read_text()
    used = set(re.findall(r"(?:^|[`/\s])understudy ([a-z][a-z-]+)", text)) - {"account"}  # sacctmgr's word
    assert used <= set(COMMANDS), used - set(COMMANDS)
    services = set(re.findall(r"systemctl [a-z -]*(understudy-[a-z]+)", text))
    assert services <= {path.stem for path in (DEPLOY / "systemd").glob("*.service")}


def test_each_system_has_the_packages_for_one_python_in_a_folder_of_its_own() -> None:
    systems = [system for flavour in FLAVOURS for system in flavour.systems]
    assert len(systems) == len(set(systems)) == len(FLAVOURS) + 1
    page = (REPOSITORY / "docs" / "install.md").read_text()
    assert not [system for system in systems if f"`{system}`" not in page and f"/{system}`" not in page]


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["deb", "rpm"])
def test_packages_install_the_completion_that_the_command_prints(kind: str, tmp_path: Path) -> None:
    write_completions(tmp_path, kind)
    for (shell, of_kind), path in COMPLETIONS.items():
        if of_kind == kind:
            printed = CliRunner().invoke(root, ["completion", shell]).output
            assert (tmp_path / path).read_text().strip() == printed.strip()


@pytest.mark.integration
def test_bash_completes_states_of_nodes_with_the_installed_script(tmp_path: Path) -> None:
    write_completions(tmp_path, "deb")
    (tmp_path / "understudy").write_text(f"#!{sys.executable}\nfrom understudy_agent.entry import main\nmain()\n")
    (tmp_path / "understudy").chmod(0o755)
    script = tmp_path / COMPLETIONS["bash", "deb"]
    asked = (
        f"source {script}; COMP_WORDS=(understudy node list --state qua) COMP_CWORD=4; "
        "_understudy_completion understudy; "
        'echo "${COMPREPLY[@]}"'
    )
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", asked], env=path, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.split() == ["quarantined"], done.stderr


def test_the_sample_configurations_are_valid() -> None:
    assert (
        parse_config((DEPLOY / "examples" / "controlplane.toml").read_text(), "controlplane.toml").mode.value
        == "observe"
    )
    assert parse_agent_config((DEPLOY / "examples" / "agent.toml").read_text(), "agent.toml").cluster == "mycluster"
    files = yaml.safe_load((DEPLOY / "cloud-init.yaml").read_text())["write_files"]
    assert parse_agent_config(files[0]["content"], "agent.toml").ca_file == Path(files[1]["path"])
