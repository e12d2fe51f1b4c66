"""CPUs and GPUs of its node that a rank gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_launcher.binding import (
    Binding,
    BindingError,
    Cpu,
    CpuBind,
    NodeBinding,
    binding_for_seat,
    cpus_of_task,
    gpus,
    gpus_of_task,
    is_cyclic,
    parse_cpu_bind,
    read_cpus,
    shares,
)


def node(sockets: int = 2, cores: int = 4, threads: int = 2) -> list[Cpu]:
    """CPUs as Linux mostly counts: first threads of all cores, then second threads."""
    all_cores = sockets * cores
    return [
        Cpu(core + thread * all_cores, core, core // cores, core // cores)
        for core in range(all_cores)
        for thread in range(threads)
    ]


def numbers(found: list[frozenset[int]] | None) -> list[list[int]]:
    assert found is not None
    return [sorted(one) for one in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", CpuBind("none")),
        ("no", CpuBind("none")),
        ("cores", CpuBind("cores")),
        ("verbose,core", CpuBind("cores")),
        ("quiet,threads", CpuBind("threads")),
        ("map_cpu:0,4,0x8", CpuBind("map_cpu", (0, 4, 8))),
        ("mask_cpu:0xf,f0", CpuBind("mask_cpu", (15, 240))),
        ("q,mask_cpu:0x3*2,0xc", CpuBind("mask_cpu", (3, 3, 12))),
        ("map_ldom:0,1", CpuBind("map_ldom", (0, 1))),
    ],
)
def test_the_words_of_srun_are_read(text: str, expected: CpuBind) -> None:
    assert parse_cpu_bind(text) == expected


@pytest.mark.parametrize(
    "text", ["", "rank", "map_cpu", "map_cpu:", "map_cpu:-1", "map_cpu:x", "cores:1", "mask_cpu:0xg"]
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_cpu_bind(text)


def test_ranks_of_a_job_that_says_how_many_cpus_a_task_has_get_these() -> None:
    """Whole cores, no rank on two sockets, as srun with --cpu-bind=cores."""
    found = shares(Binding(cpus_per_task=4), 4, node())
    assert numbers(found) == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]
    assert numbers(shares(Binding(cpus_per_task=3), 4, node())) == numbers(found), "the rest of a core is its own, too"
    assert numbers(shares(Binding(cpus_per_task=2), 2, node())) == [[0, 8], [4, 12]]


def test_without_that_number_or_with_other_ranks_than_tasks_nothing_is_bound() -> None:
    assert shares(Binding(), 4, node()) is None
    assert shares(Binding(cpus_per_task=16), 4, node()) is None, "the job has one task a node, and four ranks share it"
    assert shares(Binding(CpuBind("none"), cpus_per_task=4), 4, node()) is None


def test_by_turns_ranks_go_from_socket_to_socket() -> None:
    found = numbers(shares(Binding(cpus_per_task=4, cyclic=True), 4, node()))
    assert found == [[0, 1, 8, 9], [4, 5, 12, 13], [2, 3, 10, 11], [6, 7, 14, 15]]
    assert is_cyclic({"SLURM_DISTRIBUTION": "block:cyclic"})
    assert not any(is_cyclic({"SLURM_DISTRIBUTION": one}) for one in ("block", "cyclic", "cyclic:block,pack", ""))


def test_all_of_the_node_is_shared_where_the_user_asks_for_cores_or_threads() -> None:
    assert numbers(shares(Binding(CpuBind("cores")), 2, node())) == [
        [0, 1, 2, 3, 8, 9, 10, 11],
        [4, 5, 6, 7, 12, 13, 14, 15],
    ]
    assert numbers(shares(Binding(CpuBind("threads"), cpus_per_task=1), 2, node(1, 1, 2))) == [[0], [1]]
    assert numbers(shares(Binding(CpuBind("cores")), 4, node(1, 2, 1))) == [[0], [1], [0], [1]], "more ranks than cores"


def test_sockets_and_numa_nodes_are_whole() -> None:
    for how in ("sockets", "ldoms"):
        found = numbers(shares(Binding(CpuBind(how)), 4, node()))
        assert found == [[0, 1, 2, 3, 8, 9, 10, 11]] * 2 + [[4, 5, 6, 7, 12, 13, 14, 15]] * 2


def test_lists_name_the_cpus_of_each_rank_and_begin_again() -> None:
    assert numbers(shares(Binding(CpuBind("map_cpu", (0, 4))), 3, node())) == [[0], [4], [0]]
    assert numbers(shares(Binding(CpuBind("mask_cpu", (3, 12))), 2, node())) == [[0, 1], [2, 3]]
    assert numbers(shares(Binding(CpuBind("mask_ldom", (3,))), 1, node())) == [sorted(one.number for one in node())]


def test_a_rank_without_a_cpu_is_refused() -> None:
    with pytest.raises(BindingError, match=r"local rank 1 would have no CPU: of CPUs \[99\] the job has none"):
        shares(Binding(CpuBind("map_cpu", (0, 99))), 2, node())


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 2), st.integers(1, 12), st.booleans(), st.integers(0, 9))
def test_whatever_the_node_ranks_have_cpus_and_share_none_while_there_are_enough(
    sockets: int, cores: int, threads: int, count: int, cyclic: bool, wanted: int
) -> None:
    cpus = node(sockets, cores, threads)
    found = shares(Binding(CpuBind("cores"), wanted or None, cyclic), count, cpus)
    assert found is not None
    assert len(found) == count
    assert all(one and one <= {cpu.number for cpu in cpus} for one in found)
    each = -(-wanted // threads) if wanted else max(1, sockets * cores // count)
    if count * each <= sockets * cores:
        assert sum(map(len, found)) == len(frozenset().union(*found)) == count * each * threads


def test_cpus_of_this_machine_are_read_from_where_linux_has_them(tmp_path: Path) -> None:
    assert [one.number for one in sorted(read_cpus(frozenset({0, 1})), key=lambda one: one.number)] == [0, 1]
    for number, (core, socket) in {0: ("0,2", 0), 2: ("0,2", 0), 1: ("1,3", 1), 3: ("1,3", 1)}.items():
        folder = tmp_path / "cpu" / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core}\n")  # an older kernel
        (folder / "physical_package_id").write_text(f"{socket}\n")
    for number, listed in {0: "0,2", 1: "1,3"}.items():
        folder = tmp_path / "node" / f"node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{listed}\n")
    expected = [Cpu(0, 0, 0, 0), Cpu(2, 0, 0, 0), Cpu(1, 1, 1, 1), Cpu(3, 1, 1, 1)]
    assert read_cpus(frozenset(range(4)), tmp_path) == expected
    assert read_cpus(frozenset({5}), tmp_path) == [Cpu(5, 5, 0, 0)], "a kernel that shows nothing"


MIG = "MIG-1f3a0001-0000-5000-8000-000000000001,MIG-1f3a0001-0000-5000-8000-000000000002"


@pytest.mark.parametrize(
    ("visible", "each", "expected"),
    [
        ("0,1,2,3", 1, ["0", "1"]),
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("4,5,6,7", 1, ["4", "5"]),
        ("GPU-aa,GPU-bb", 1, ["GPU-aa", "GPU-bb"]),
        (MIG, 1, MIG.split(",")),
        (MIG, None, MIG.split(",")),
    ],
)
def test_each_rank_sees_its_own_gpus(visible: str, each: int | None, expected: list[str]) -> None:
    """Numbers of the node, numbers within a job whose devices Slurm constrains, UUIDs, MIG devices."""
    binding = Binding(gpus_per_task=each)
    found = [gpus(binding, 2, index, {"CUDA_VISIBLE_DEVICES": visible}) for index in range(2)]
    assert found == [{"CUDA_VISIBLE_DEVICES": one} for one in expected]


def test_of_other_makers_too() -> None:
    step = {"ROCR_VISIBLE_DEVICES": "0,1", "ZE_AFFINITY_MASK": "0.0,0.1", "GPU_DEVICE_ORDINAL": "0,1"}
    expected = {"ROCR_VISIBLE_DEVICES": "1", "ZE_AFFINITY_MASK": "0.1", "GPU_DEVICE_ORDINAL": "1"}
    assert gpus(Binding(gpus_per_task=1), 2, 1, step) == expected


def test_ranks_see_all_gpus_unless_the_job_asks_for_some_a_task() -> None:
    assert gpus(Binding(), 2, 0, {"CUDA_VISIBLE_DEVICES": "0,1"}) == {}
    assert gpus(Binding(gpus_per_task=0), 2, 0, {"CUDA_VISIBLE_DEVICES": MIG}) == {}
    assert gpus(Binding(gpus_per_task=1), 2, 0, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}) == {}
    assert gpus(Binding(gpus_per_task=1), 2, 0, {}) == {}


def test_ranks_that_would_have_no_gpu_of_their_own_are_refused() -> None:
    with pytest.raises(BindingError, match="3 ranks with 1 GPUs each, and CUDA_VISIBLE_DEVICES has 2"):
        gpus(Binding(gpus_per_task=1), 3, 0, {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"SLURM_GPUS_PER_TASK": "2"}, 2),
        ({"SLURM_GPUS_PER_TASK": "a100:2"}, 2),
        ({"SLURM_GPUS_PER_TASK": "a100:1,h100:1"}, 2),
        ({"SLURM_TRES_PER_TASK": "cpu=4,gres/gpu=2"}, 2),
        ({"SLURM_TRES_PER_TASK": "cpu:4,gres/gpu:h100:2"}, 2),
        ({"SLURM_TRES_PER_TASK": "cpu:4"}, None),
        ({"SLURM_GPUS_PER_TASK": "many"}, None),
        ({}, None),
    ],
)
def test_what_the_job_asks_for_each_task_is_read(environment: dict[str, str], expected: int | None) -> None:
    assert gpus_of_task(environment) == expected


def test_a_rank_finds_the_tasks_numbers_and_not_the_seats() -> None:
    """Slurm gives the seat all CPUs of the node, and its environment has their number."""
    assert cpus_of_task({"SLURM_CPUS_PER_TASK": "12"}) == 12
    assert cpus_of_task({}) is None
    found = NodeBinding(Binding(cpus_per_task=12, gpus_per_task=1), {"CUDA_VISIBLE_DEVICES": "0,1"}).variables(2, 1)
    assert found == {"SLURM_CPUS_PER_TASK": "12", "SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "1"}
    assert NodeBinding(Binding(), {}).variables(2, 1) == {}
    assert NodeBinding(Binding(), {}).cpus(2, 1) == os.sched_getaffinity(0)


def test_a_seat_reads_what_the_launcher_writes() -> None:
    for binding in (Binding(), Binding(CpuBind("map_cpu", (0, 4)), 12, True, 1)):
        assert binding_for_seat(binding.for_seat()) == binding
