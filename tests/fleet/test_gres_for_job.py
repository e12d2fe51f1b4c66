"""What a job asks for that is to have all of a node's Gres. On Slurm 22.05 and 26.05 jobs ran that asked for GPUs
alone, with NICs, or with a Gres that is not consumed; one that asked for MPS or shards as well was refused.
"""

from __future__ import annotations

import pytest

from understudy_controlplane.fleet.slurm import gres_for_job


@pytest.mark.parametrize(
    ("shown", "asked"),
    [
        ("gpu:8", "gpu:8"),
        ("gpu:h100:8(S:0-1),mps:h100:800(S:0-1)", "gpu:h100:8"),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:1),shard:a100:16(S:0,1)", "gpu:a100:4,gpu:v100:2"),
        ("mps:800,gpu:8,shard:16,nic:2", "gpu:8,nic:2"),
        ("gpu:8,bandwidth:lustre:no_consume:4G", "gpu:8,bandwidth:lustre:4G"),
        ("gpu:8,craynetwork:4", "gpu:8,craynetwork:4"),
        ("mps:800", "mps:800"),
        ("(null)", ""),
        ("", ""),
    ],
)
def test_a_job_asks_for_all_that_slurm_gives_it_together(shown: str, asked: str) -> None:
    assert gres_for_job(shown) == asked
