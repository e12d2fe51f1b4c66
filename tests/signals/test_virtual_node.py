"""Nodes at rest are not read, and report what they would report if they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.signals.virtual_node import VirtualNode
from understudy_wire.messages import Report

BEGIN = 1_700_000_000.0
MINUTES = 240
REASONS = (0x4, 0x40, 0x24, 0x0)


def change(node: VirtualNode, rng: np.random.Generator, now: float) -> None:
    """Something that a healthy or an ill node shows."""
    index = int(rng.integers(len(node.gpus)))
    gpu, port = node.gpus[index], node.ports[0]
    match int(rng.integers(13)):
        case 0:
            node.set_gpu(index, pcie_replays=(gpu.pcie_replays or 0) + 5)
        case 1:
            node.set_gpu(index, nvlink_errors=max(0, (gpu.nvlink_errors or 0) + int(rng.integers(-20, 20))))
        case 2 | 3:
            node.set_gpu(index, clock_event_reasons=int(rng.choice(REASONS)))
        case 4:
            node.set_port(0, symbol_errors=(port.symbol_errors or 0) + 50)
        case 5:
            up = port.state == "DOWN"
            node.set_port(0, state="ACTIVE" if up else "DOWN", link_downed=(port.link_downed or 0) + (not up))
        case 6:
            node.nvml_silent_since = None if node.nvml_silent_since is not None else now
        case 7:
            node.host = replace(node.host, cpu_pressure_percent=float(rng.uniform(0, 95)))
        case 8:
            node.mounts = node.mounts[:-1] if len(node.mounts) == 3 else [disk.path for disk in node.host.disks]
        case 9:
            node.restart_agent(now)
        case 10:
            node.driver = "535.183.06" if node.driver.startswith("570") else "570.124.06"
        case 11:
            node.nvml_error = "" if node.nvml_error else "Driver/library version mismatch (NVML error 18)"
        case _:
            node.make_well(now) if rng.random() < 0.5 else node.gpus.pop() if len(node.gpus) > 2 else None


@pytest.mark.parametrize("nvml_seconds", [2.0, 30.0])
@pytest.mark.parametrize("seed", range(6))
def test_a_node_at_rest_reports_what_it_would_if_it_were_read(tmp_path: Path, nvml_seconds: float, seed: int) -> None:
    nodes = [
        VirtualNode("n1", 3, tmp_path, BEGIN, 4, nvml_seconds, reads_at_rest=reads_at_rest)
        for reads_at_rest in (False, True)
    ]
    now, rested = BEGIN, 0
    moments = np.random.default_rng(seed)
    often = 1 / (8, 100, 400)[seed % 3]
    for tick in range(MINUTES * 4):
        now += 15.0
        if moments.random() < often:
            for node in nodes:
                change(node, np.random.default_rng((seed, tick)), now - 7.0)
        at_rest, read = (node.report(now) for node in nodes)
        assert at_rest == read, differences(at_rest, read)
        rested += nodes[0].at_rest
    assert rested > (-1, 20, 80)[seed % 3], "the node was hardly at rest: little is shown"


def differences(one: Report, other: Report) -> list[str]:
    return [name for name in one.__struct_fields__ if getattr(one, name) != getattr(other, name)]
