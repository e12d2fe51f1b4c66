"""What the command line promises before any verb runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from understudy.release import RELEASE

pytestmark = pytest.mark.integration


def test_the_version_is_that_of_the_package() -> None:
    command = [sys.executable, "-m", "understudy_controlplane", "--version"]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == f"understudy {RELEASE}\n"


def test_the_command_line_is_imported_without_the_server() -> None:
    """`understudy status` runs on login nodes, where each import costs time."""
    code = "import sys, understudy_controlplane.cli.main; print(*sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    imported = {name.split(".")[0] for name in output.split()}
    assert "typer" in imported
    assert not imported & {"fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "prometheus_client"}
