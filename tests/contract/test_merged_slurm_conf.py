"""A slurm.conf that `understudy install-hooks` has merged: each Slurm runs the site's programs and the hooks."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.testbed.cluster import SlurmCluster
from tests.testbed.installation import DEBIAN_13, DEBIAN_14, NATIVE, Installation
from understudy_agent.hooks.install import main

pytestmark = pytest.mark.cluster


@pytest.fixture(
    params=[NATIVE, pytest.param(DEBIAN_13, marks=pytest.mark.long), DEBIAN_14], ids=["22.05", "24.11", "26.05"]
)
def slurm(request: pytest.FixtureRequest) -> Installation:
    installation: Installation = request.param
    return installation


@pytest.fixture
def cluster(slurm: Installation) -> Iterator[SlurmCluster]:
    """A site with two Prologs, of which Slurm runs the second or both, a health check, and a flag, in shapes that Slurm
    reads.
    """
    directory = Path(tempfile.mkdtemp(prefix="ud-"))
    directory.chmod(0o755)
    (directory / "run" / "hooks").mkdir(parents=True)
    for name in ("first", "second", "nhc"):
        (directory / name).write_text(f"#!/bin/sh\necho {name} >> {directory}/ran\n")
        (directory / name).chmod(0o755)
    (directory / "site.conf").write_text(f'PROLOG = "{directory}/second" # of the site\nprologflags\t= Contain')
    lines = [f"Prolog={directory}/\\", "first", "INCLUDE site.conf # included", f"HealthCheckProgram\t={directory}/nhc"]
    lines += ["healthcheckinterval =2 # seconds", "HealthCheckNodeState=ANY"]
    try:
        with SlurmCluster(directory, 1, 0, lines, slurm=slurm) as running:
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def test_the_site_s_programs_and_the_hooks_run(
    cluster: SlurmCluster, slurm: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", cluster.environment["PATH"])  # its `scontrol --version`
    folder, ran, log = cluster.directory, cluster.directory / "ran", cluster.directory / "run" / "hooks.log"
    arguments = ["--directory", f"{folder}/hooks", "--slurm-conf", f"{folder}/slurm.conf"]
    arguments += ["--run-directory", f"{folder}/run"]
    assert main(arguments) == 0
    assert main([*arguments, "--edit-slurm-conf"]) == 0
    assert main([*arguments, "--check"]) == 0
    cluster.run("scontrol", "reconfigure")
    cluster.wait_until_idle()
    ran.unlink(missing_ok=True)
    cluster.run("srun", "--time=1", "--immediate=30", "true")
    assert set(ran.read_text().split()) - {"nhc"} == ({"second"} if slurm is NATIVE else {"first", "second"})
    assert re.search(r"prolog: job \d+: let through", log.read_text())
    cluster.wait_until(lambda: "nhc" in ran.read_text() and "health_check: job -" in log.read_text(), 30, "both checks")
    shown = cluster.run("scontrol", "show", "config").stdout
    assert re.search(r"^PrologFlags += Alloc,Contain$", shown, re.MULTILINE)
