"""A rank's GPU is found without being asked."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from understudy.gpu import gpu_index, gpu_uuid
from understudy_agent.rank_messages import GpuUsed, Hello, Steps
from understudy_agent.step_windows import WindowBuffer
from understudy_wire.hardware import Gpu, GpuStatus


@pytest.fixture(autouse=True)
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def torch_on(monkeypatch: pytest.MonkeyPatch, device: int, initialized: bool = True, **properties: Any) -> None:
    cuda = SimpleNamespace(
        is_initialized=lambda: initialized,
        current_device=lambda: device,
        get_device_properties=lambda _: SimpleNamespace(**properties),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))


@pytest.mark.parametrize("uuid", ["5c1a3b9e-0000", "GPU-5c1a3b9e-0000"])
def test_torch_knows_the_uuid_also_under_cgroups(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    torch_on(monkeypatch, 1, uuid=uuid)
    assert gpu_uuid({"CUDA_VISIBLE_DEVICES": "0,1"}) == "GPU-5c1a3b9e-0000"


def test_cuda_is_not_initialised_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_on(monkeypatch, 0, initialized=False, uuid="5c1a3b9e-0000")
    assert gpu_uuid({}) == ""


def test_an_older_torch_names_the_device_and_the_environment_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_on(monkeypatch, 1)
    assert gpu_uuid({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb", "LOCAL_RANK": "0"}) == "GPU-bb"
    assert gpu_index({"CUDA_VISIBLE_DEVICES": "4,5", "LOCAL_RANK": "0"}) == 5


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        ({}, None),
        ({"LOCAL_RANK": "3"}, None),  # it may use no GPU
        ({"CUDA_VISIBLE_DEVICES": "", "LOCAL_RANK": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "LOCAL_RANK": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3", "SLURM_LOCALID": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "5", "LOCAL_RANK": "2"}, 5),  # each rank sees its own
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_STEP_GPUS": "6,7", "LOCAL_RANK": "1"}, 7),  # constrained by a cgroup
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "6", "LOCAL_RANK": "1"}, 6),
        ({"CUDA_VISIBLE_DEVICES": "6,7", "SLURM_JOB_GPUS": "6,7", "LOCAL_RANK": "1"}, 7),
        ({"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_JOB_GPUS": "7", "LOCAL_RANK": "1"}, None),
        # Slurm has bound each task to one of the step's GPUs: which one the environment does not show.
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "0,1,2,3", "SLURM_LOCALID": "2"}, None),
        ({"CUDA_VISIBLE_DEVICES": "0", "SLURM_STEP_GPUS": "4,5,6,7", "SLURM_LOCALID": "2"}, None),
        ({"CUDA_VISIBLE_DEVICES": "2", "SLURM_STEP_GPUS": "0,1,2,3", "SLURM_LOCALID": "2"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "MIG-aa", "LOCAL_RANK": "0"}, None),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa,GPU-bb", "LOCAL_RANK": "1"}, None),  # known by its UUID
    ],
)
def test_the_environment_gives_the_index_on_the_node(environment: dict[str, str], index: int | None) -> None:
    assert gpu_index(environment) == index


def test_the_agent_turns_a_uuid_into_the_index_that_it_has_itself() -> None:
    gpus = [Gpu(index, GpuStatus.OK, f"GPU-{index}{index}-0000") for index in range(8)]
    windows = WindowBuffer()
    hello = Hello(job_id=7, restart_count=0, rank=0, world_size=1, gpu_index=0)

    def reported() -> int | None:
        windows.add(hello, Steps(0, [0.1], [0.1]), 1000)
        return windows.take(gpus)[0].gpu_index

    assert reported() == 0
    for uuid, index in (("GPU-66-0000", 6), ("GPU-5", 5), ("GPU-", 0), ("GPU-99", 0)):
        windows.place(hello, GpuUsed(uuid), 1000)
        assert reported() == index
