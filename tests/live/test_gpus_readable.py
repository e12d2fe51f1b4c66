"""What reports of any release say of how many GPUs NVML can read, and since when."""

from __future__ import annotations

from typing import Any

from tests import builders as b
from understudy_controlplane.fleet.gpu import GpusReadable
from understudy_controlplane.live.telemetry import Telemetry
from understudy_wire.hardware import GpuStatus


def heard(*reports: tuple[float, dict[str, Any]]) -> GpusReadable | None:
    telemetry = Telemetry()
    telemetry.know({"n1"})
    for at, values in reports:
        telemetry.receive(b.report("n1", **values), at)
    latest = telemetry.latest("n1")
    assert latest is not None
    return latest.gpus


def with_unreadable(count: int) -> dict[str, Any]:
    gpus = [b.gpu(i, GpuStatus.UNREADABLE if i < count else GpuStatus.OK) for i in range(8)]
    return {"gpus": gpus, "driver_version": "570"}


def test_each_gpu_that_fails_counts_from_its_own_time() -> None:
    seen = heard(
        (1.0, {}), (5.0, {}), (6.0, with_unreadable(1)), (60.0, with_unreadable(1)), (61.0, with_unreadable(3))
    )
    assert seen is not None
    assert (seen.count, seen.fewer_since(8), seen.fewer_since(7), seen.fewer_since(6)) == (5, 5.0, 60.0, 60.0)


def test_a_gpu_that_can_be_read_again_counts_from_zero() -> None:
    seen = heard((1.0, {}), (2.0, with_unreadable(8)), (3.0, with_unreadable(1)), (4.0, {}), (5.0, with_unreadable(1)))
    assert seen is not None
    assert (seen.count, seen.fewer_since(8)) == (7, 4.0)


def test_another_boot_counts_from_its_first_report() -> None:
    seen = heard((1.0, {}), (9.0, {"boot_id": "next", **with_unreadable(8)}))
    assert seen == GpusReadable(0, 9.0)


def test_an_agent_that_reads_no_gpus_says_nothing_of_them() -> None:
    assert heard((1.0, {"gpus": []})) is None
    assert heard((1.0, {"gpus": [], "driver_version": "570"})) == GpusReadable(0, 1.0)
    assert heard((1.0, {"gpus": [], "problems": ["NVML cannot be used: ... (NVML error 18)"]})) == GpusReadable(0, 1.0)
