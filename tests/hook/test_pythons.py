"""What runs in the user's own interpreter works on each supported version of Python that this machine has.

Which versions were tried, and which this machine lacks, is in the last lines of every test run (tests/conftest.py).
"""

from __future__ import annotations

import json
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.hook import on_any_python
from tests.pythons import HOOK_VERSIONS, OF_A_SLURM_VERSION, REQUIRED_VARIABLE, interpreters, required
from understudy_launcher import warm

pytestmark = pytest.mark.integration


# What comes with a version of Slurm is there when tests on clusters begin.
VERSIONS = [
    pytest.param(version, marks=pytest.mark.cluster) if version in OF_A_SLURM_VERSION else version
    for version in HOOK_VERSIONS
]


@pytest.mark.parametrize("version", VERSIONS)
def test_hook_and_warm_start_work_on_this_version(
    version: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    if version not in interpreters():  # asked here: each interpreter is started for it
        pytest.skip(f"Python {version} is not on this machine")
    command = [interpreters()[version], on_any_python.__file__, REPOSITORY / "agents", warm.__file__, tmp_path]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen == {
        "version": version,
        "rank": {
            "kinds": [
                "anomaly",
                "checkpoint_deleted",
                "collective",
                "first_step",
                "hello",
                "restore_point",
                "shard",
                "steps",
                "training",
            ],
            "steps": 20,
            "checksum": f"crc32:{zlib.crc32(b'weights'):08x}",
            "size": 7,
            "more": [{"file": "rank2.pt", "size_bytes": 7, "checksum": ""}],
        },
        "callbacks": [
            f"understudy.{name}"
            for name in (
                "dcp",
                "ddp",
                "deepspeed",
                "huggingface",
                "lightning",
                "state_handover",
                "megatron",
                "restart",
                "torch_save",
            )
        ],
        "warm": ["__main__", ["--lr", "1"], "3", True],
        "restarted": "0 5",
    }
    record_property("hook on Python", version)


def test_versions_that_this_machine_must_have_are_there() -> None:
    lacking = [version for version in required() if version not in interpreters()]
    assert not lacking, f"{REQUIRED_VARIABLE} names {lacking}: not found on PATH or in pyenv's folder of versions"


def test_the_supported_versions_are_those_that_the_package_declares() -> None:
    declared = (REPOSITORY / "agents" / "pyproject.toml").read_text()
    assert f'requires-python = ">={HOOK_VERSIONS[0]}"' in declared
