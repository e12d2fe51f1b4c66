"""What real GPUs answered (docs/hardware) raises no finding: they were healthy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests import REPOSITORY
from tests import builders as b
from tests.hardware.publish import node_of, read_report
from understudy_controlplane.detect import detect
from understudy_wire.hardware import Gpu

REPORTS = sorted((REPOSITORY / "docs" / "hardware").glob("*.json"))


def gpus(report: Path) -> tuple[Gpu, ...]:
    node = node_of(read_report(report.read_bytes()))
    assert node.gpus
    return tuple(msgspec.convert({"index": gpu.index, "status": "ok", **gpu.values()}, Gpu) for gpu in node.gpus)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.stem)
def test_a_healthy_gpu_raises_no_finding(report: Path) -> None:
    read = gpus(report)
    assert all(gpu.memory_total_bytes for gpu in read)
    assert detect(b.snapshot(b.node("n3", gpus=read)), b.config()) == []


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.stem)
def test_the_same_gpu_with_a_fault_does(report: Path) -> None:
    lost = tuple(msgspec.structs.replace(gpu, remapped_rows_failed=True) for gpu in gpus(report))
    assert detect(b.snapshot(b.node("n3", gpus=lost)), b.config())


def test_there_is_a_report() -> None:
    assert REPORTS
