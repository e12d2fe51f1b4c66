from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import PYTHON_PATH

pytestmark = pytest.mark.integration


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder for sys.path with two commands registered, whose packages stand in for the real ones."""
    metadata = tmp_path / "standin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[understudy.commands]\nstand-in = light:main\nneedy = heavy:main\n")
    (tmp_path / "light.py").write_text("import sys\ndef main():\n    print(sys.argv)\n    return 3\n")
    (tmp_path / "heavy.py").write_text("import a_package_that_is_not_installed\n")
    return tmp_path


def understudy(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{folder}:{PYTHON_PATH}"}
    command = [sys.executable, "-m", "understudy_agent.entry", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_verb_is_run_by_its_owner_with_the_rest_of_the_words(installed: Path) -> None:
    done = understudy(installed, "stand-in", "--config", "x")
    assert done.stdout.strip() == "['understudy stand-in', '--config', 'x']"
    assert done.returncode == 3


def test_a_missing_package_is_named_with_what_to_install(installed: Path) -> None:
    done = understudy(installed, "needy")
    assert done.returncode == 1
    assert "a_package_that_is_not_installed" in done.stderr
    assert "install slurm-understudy[controlplane]" in done.stderr
    assert "stand-in" in done.stderr
    assert "Traceback" not in done.stderr
