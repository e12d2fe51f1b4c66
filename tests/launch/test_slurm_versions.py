"""The launcher on newer versions of Slurm: a rank that fails, a verdict, a dead node. One job meets them all."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.launch.gang import GangJob
from tests.testbed.installation import DEBIAN_13, DEBIAN_14, Installation
from tests.testbed.site import Site

pytestmark = [pytest.mark.cluster, pytest.mark.long]

PYTHON = Path("/usr/bin/python3")
"""Python of the other Debian, where nothing is installed: the launcher needs no more."""


@pytest.mark.parametrize("slurm", [DEBIAN_13, DEBIAN_14], ids=["24.11", "26.05"])
def test_a_gang_outlives_its_faults(slurm: Installation) -> None:
    directory = Path(tempfile.mkdtemp(prefix="ud-"))
    directory.chmod(0o755)
    try:
        with Site(directory, nodes=6, spares=0, slurm=slurm) as site:
            site.copy_launcher()
            meet_faults(GangJob(site, PYTHON))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def meet_faults(gang: GangJob) -> None:
    options = ["--nodes", "3", "--procs-per-node", "2", "--rearm-seconds", "0.5"]
    gang.submit(options, gang.simple("exit:0:n3:7"))
    gang.wait_for_launch(1, 6, seconds=60)
    assert gang.nodes(1) == gang.nodes(0) == ["n1", "n2", "n3"]

    gang.wait_for_standbys(6, generation=2)
    at = gang.condemn("n2")
    gang.wait_for_launch(2, 6)
    print(f"\nverdict to all new processes: {max(one['at'] for one in gang.ranks(2)) - at:.3f} s")
    assert gang.nodes(2) == ["n1", "n4", "n3"]

    gang.wait_for_standbys(5, generation=3)
    at = gang.site.kill_node("n3")
    gang.wait_for_launch(3, 6)
    print(f"dead node to all new processes: {max(one['at'] for one in gang.ranks(3)) - at:.3f} s")
    assert gang.nodes(3) == ["n1", "n4", "n5"]

    gang.finish()
    assert gang.exit_code(60) == 0
    assert [one["row"] for one in gang.events("decision")] == ["L130", "L50", "L50", "L10"]
