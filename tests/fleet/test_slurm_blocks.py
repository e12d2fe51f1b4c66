"""Slurm starts a job under topology/block on these nodes, as seen with 24.11 and 26.05."""

from __future__ import annotations

from pathlib import Path

import pytest

from understudy_controlplane.fleet.slurm import TopologyUnit, UnitKind
from understudy_controlplane.fleet.slurm_blocks import SlurmBlocks, slurm_blocks
from understudy_controlplane.slurm.parse import parse_topology

DATA = Path(__file__).parents[1] / "slurm" / "data"
FIVE_OF_TWO = SlurmBlocks(tuple((f"n{2 * i + 1}", f"n{2 * i + 2}") for i in range(5)), (2, 4))
"""BlockSizes=2,4. The fifth block is in no group of two."""


@pytest.mark.parametrize(
    ("nodes", "starts"),
    [
        ("n1 n2", True),
        ("n1 n3", False),
        ("n9 n10", True),
        ("n1 n2 n3", True),
        ("n1 n2 n3 n5", False),
        ("n1 n2 n5 n6", False),
        ("n3 n4 n5 n6", False),
        ("n1 n2 n3 n4 n5 n6", True),
        ("n1 n2 n3 n4 n9 n10", False),
        ("n1 n3 n5 n6 n7 n8", True),
        ("n1 n2 n5 n6 n9", False),
    ],
)
def test_slurm_starts_a_job_in_as_few_groups_of_blocks_as_it_needs(nodes: str, starts: bool) -> None:
    assert FIVE_OF_TWO.allow(nodes.split()) is starts


def test_blocks_and_sizes_are_those_that_slurm_prints() -> None:
    found = slurm_blocks(parse_topology((DATA / "topology-block-24.11.txt").read_text()))
    assert found == SlurmBlocks((("n1", "n2"), ("n3", "n4"), ("n5", "n6")), (2, 4))


def test_with_another_topology_beside_the_blocks_nothing_is_known_of_a_job() -> None:
    block, switch = TopologyUnit(UnitKind.BLOCK, "b1", ("n1",), size=1), TopologyUnit(UnitKind.SWITCH, "s1", ("n1",))
    assert slurm_blocks([block]) is not None
    assert slurm_blocks([block, switch]) is None
    assert slurm_blocks([block, block]) is None
    assert slurm_blocks([]) is None
