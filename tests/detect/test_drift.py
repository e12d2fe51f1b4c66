"""A node whose driver, kernel or firmware differs from nearly all others is recorded, and stays what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests import builders as b
from understudy_agent.sample.host import read_host
from understudy_controlplane.decide.judge import decide
from understudy_controlplane.detect import detect
from understudy_controlplane.detect.drift import Baseline, drift
from understudy_controlplane.fleet.finding import Signal
from understudy_controlplane.fleet.node import NodeState, NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_wire.hardware import Host


def fleet(*others: NodeView, count: int = 20) -> Snapshot:
    names = [f"n{i}" for i in range(1, count + 1)]
    nodes = {name: of(name) for name in names} | {one.name: one for one in others}
    return replace(b.snapshot(), nodes=nodes)


def of(name: str, driver: str = "580.1", kernel: str = "6.1.0", vbios: str = "96.00", **values: object) -> NodeView:
    host = Host(versions={"kernel": kernel, "firmware of MT_0000000838": "28.39.1002"})
    return b.node(name, driver_version=driver, host=host, gpus=(b.gpu(0, vbios=vbios),), **values)  # type: ignore[arg-type]


def found(snapshot: Snapshot, baseline: Baseline | None = None) -> list[tuple[str, str]]:
    return [(one.node, one.rule) for one in drift(snapshot, baseline or {})]


def test_a_stated_baseline_counts_instead_of_the_majority() -> None:
    seen = fleet(of("n3", driver="570.9"), of("n4", driver="590.2"), of("n5", kernel="5.15.0"))
    stated = {"*": {"driver": "590.2"}}
    assert sorted(found(seen, stated)) == sorted(
        [*((f"n{i}", "drift.driver") for i in range(1, 21) if i != 4), ("n5", "drift.kernel")]
    ), "what is not stated is compared with the majority"
    (first, *_) = drift(seen, stated)
    assert first.summary == "its driver is 580.1, where the baseline of the site has 590.2"


def test_a_baseline_of_one_kind_of_nodes_is_for_these_alone_and_needs_no_majority() -> None:
    few = fleet(of("n1", driver="570.9"), count=2)
    gres = few.nodes["n1"].slurm.gres if few.nodes["n1"].slurm else ""
    for written in (gres, f"{gres}(S:0-1)"):  # as sites copy it from scontrol
        assert found(few, {"*": {"driver": "1"}, written: {"driver": "580.1"}}) == [("n1", "drift.driver")]
    assert found(few, {"gpu:other:8": {"driver": "1"}}) == []


def test_nodes_that_are_all_alike_show_nothing() -> None:
    assert found(fleet()) == []


def test_a_node_that_an_update_left_out_is_named_with_both_versions() -> None:
    seen = fleet(of("n3", driver="570.9", vbios="95.02"), of("n4", kernel="5.15.0"))
    assert found(seen) == [("n3", "drift.driver"), ("n3", "drift.vbios"), ("n4", "drift.kernel")]
    (first, *_) = drift(seen, {})
    assert first.signal is Signal.RECORDED
    assert first.summary == "its driver is 570.9, where 19 of 20 nodes with the same GPUs have 580.1"
    decisions = decide(seen, detect(seen, b.config()), b.config())
    assert {one.to_state for one in decisions if one.subject in ("n3", "n4")} == {None}


def test_an_update_under_way_shows_nothing() -> None:
    assert found(fleet(*(of(f"n{i}", driver="590.2") for i in range(1, 4)))) == []


def test_other_hardware_and_few_nodes_are_compared_with_their_own_kind_alone() -> None:
    other = of("n3", driver="570.9", slurm=replace(b.slurm_node("n3"), gres="gpu:b200:8"))
    assert found(fleet(other)) == []
    assert found(fleet(of("n3", driver="570.9"), count=7)) == []


def test_a_node_in_repair_and_one_that_reports_no_versions_are_no_evidence() -> None:
    assert found(fleet(of("n3", driver="570.9", state=NodeState.REPAIRING), b.node("n4"))) == []


def test_the_agent_reads_kernel_bios_its_settings_and_firmware_of_adapters(tmp_path: Path) -> None:
    files = {
        "proc/sys/kernel/osrelease": "6.1.0-28-amd64\n",
        "sys/class/dmi/id/bios_version": "2.4.1\n",
        "sys/class/infiniband/mlx5_0/board_id": "MT_0000000838\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
        "sys/class/infiniband/mlx5_1/board_id": "MT_0000000838\n",
        "sys/class/infiniband/mlx5_1/fw_ver": "28.41.1000\n",
        "sys/class/infiniband/mlx5_2/fw_ver": "1.0\n",
        "sys/devices/system/cpu/smt/control": "off\n",
        "sys/devices/system/node/online": "0-7\n",
        "sys/class/iommu/ivhd0/uevent": "",
        "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert read_host(tmp_path / "sys", tmp_path / "proc", []).versions == {
        "kernel": "6.1.0-28-amd64",
        "BIOS": "2.4.1",
        "firmware of MT_0000000838": "28.39.1002, 28.41.1000",
        "SMT": "off",
        "NUMA nodes": "0-7",
        "IOMMU": "on",
        "turbo": "off",
    }
    assert read_host(tmp_path / "no", tmp_path / "none", []).versions == {}
