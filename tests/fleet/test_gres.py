"""How many GPUs a node has by what Slurm shows, what a job asks for that is to have all of them, and which nodes are of
the same kind. On Slurm 22.05 and 26.05 jobs ran that asked for GPUs alone, with NICs, or with a Gres that is not
consumed; one that asked for MPS or shards as well was refused.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest

from tests import REPOSITORY
from tests import builders as b
from understudy_controlplane.detect.gpu_set import lacks_gpus, too_few_gpus
from understudy_controlplane.fleet.gpu import GpusReadable
from understudy_controlplane.fleet.gres import alike, gpus_of_gres, gres_for_job
from understudy_controlplane.fleet.node import NodeView

NODES = tomllib.loads((REPOSITORY / "tests/data/world/gres/nodes.toml").read_text())["node"]


def node(gres: str, gpus: int, mig: bool | None) -> NodeView:
    slurm = replace(b.slurm_node("n1"), gres=gres)
    seen = tuple(b.gpu(index, mig_mode=mig) for index in range(gpus))
    return b.node("n1", slurm=slurm, gpus=seen, gpus_readable=GpusReadable(gpus, b.NOW - 600))


@pytest.mark.parametrize("site", NODES, ids=lambda site: site["gres"])
def test_nothing_is_missing_from_nodes_as_sites_have_them(site: dict[str, int | str]) -> None:
    gres, gpus = str(site["gres"]), int(site["gpus"])
    assert gpus_of_gres(gres) == site["counts"]
    for mig in {bool(site["mig"]), None}:  # also where NVML did not say
        whole = node(gres, gpus, mig)
        assert list(too_few_gpus(b.NOW, whole)) == []
        assert not lacks_gpus(whole)


@pytest.mark.parametrize(
    ("gres", "gpus"), [("gpu:h100:8(S:0-1)", 7), ("gpu:a100:no_consume:4", 3), ("gpu:4,shard:16", 2)]
)
def test_a_gpu_is_missing_only_where_nvml_says_that_slurm_counts_whole_ones(gres: str, gpus: int) -> None:
    assert [one.rule for one in too_few_gpus(b.NOW, node(gres, gpus, mig=False))] == ["gpus.too_few"]
    assert lacks_gpus(node(gres, gpus, mig=False))
    for uncertain in (True, None):
        assert list(too_few_gpus(b.NOW, node(gres, gpus, mig=uncertain))) == []


def test_instances_are_not_missed_before_a_service_has_set_mig_mode_after_a_boot() -> None:
    """NVML's mode is read once a minute, and Hopper does not keep it over a boot."""
    booted = node("gpu:28", 4, mig=False)
    for seconds, found in ((1.0, []), (120.0, []), (181.0, ["gpus.too_few"])):
        young = replace(booted, gpus_readable=GpusReadable(4, b.NOW - seconds))
        assert [one.rule for one in too_few_gpus(b.NOW, young)] == found
        assert lacks_gpus(young)


def test_each_node_of_a_mixed_fleet_is_judged_by_its_own_gres() -> None:
    fleet = [node("gpu:a100:4", 4, mig=False), node("gpu:h100:8", 8, mig=False), node("", 0, mig=None)]
    assert [finding for one in fleet for finding in too_few_gpus(b.NOW, one)] == []


@pytest.mark.parametrize(
    ("shown", "asked"),
    [
        ("gpu:8", "gpu:8"),
        ("gpu:h100:8(S:0-1),mps:h100:800(S:0-1)", "gpu:h100:8"),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:1),shard:a100:16(S:0,1)", "gpu:a100:4,gpu:v100:2"),
        ("mps:800,gpu:8,shard:16,nic:2", "gpu:8,nic:2"),
        ("gpu:8,bandwidth:lustre:no_consume:4G", f"bandwidth:lustre:{4 << 30},gpu:8"),
        ("gpu:a100:no_consume:4", "gpu:a100:4"),
        ("gpu:8,craynetwork:4", "craynetwork:4,gpu:8"),
        ("mps:800", "mps:800"),
        ("gpu:a100_1g.5gb:7,gpu:a100:3", "gpu:a100:3,gpu:a100_1g.5gb:7"),
        ("(null)", ""),
        ("", ""),
    ],
)
def test_a_job_asks_for_all_that_slurm_gives_it_together(shown: str, asked: str) -> None:
    assert gres_for_job(shown) == asked


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("gpu:h100:8(S:0-1)", "gpu:h100:8"),  # as slurmctld shows a node that is switched off
        ("gpu:h100:4(S:0),gpu:h100:4(S:1)", "gpu:h100:8(S:0,1)"),
        ("nic:4,gpu:8", "gpu:8,nic:4"),
        ("gpu:8,mps:2K", "gpu:8,mps:2048"),
        ("(null)", ""),
    ],
)
def test_nodes_with_the_same_resources_are_alike_however_slurm_shows_them(one: str, other: str) -> None:
    assert alike(one) == alike(other)


def test_nodes_with_other_resources_are_not_alike() -> None:
    others = ["gpu:8", "gpu:4", "gpu:h100:8", "gpu:no_consume:8", "gpu:8,nic:4"]
    assert len({alike(one) for one in others}) == len(others)
