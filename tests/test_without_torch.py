"""`make check` installs no training framework."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import REPOSITORY

pytestmark = [pytest.mark.integration, pytest.mark.patient]

HIDDEN = ("accelerate", "lightning", "pytorch_lightning", "safetensors", "torch", "transformers")
COLLECT = f"""
import sys
from importlib.machinery import PathFinder

import pytest

found = PathFinder.find_spec


def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {HIDDEN} else found(name, path, target)


PathFinder.find_spec = find_spec
sys.exit(pytest.main(["--collect-only", "-q", "-q", "-p", "no:cacheprovider", "-m", "not integration and not cluster"]))
"""


def output_of(*command: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, *command], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_without_a_framework_the_unit_tests_can_be_collected() -> None:
    status, output = output_of("-c", COLLECT)
    assert status == 0, output[-5000:]


def test_without_a_framework_the_hook_has_its_types() -> None:
    status, output = output_of("-m", "mypy", "--no-site-packages", "--no-incremental", "agents/understudy")
    assert status == 0, output
