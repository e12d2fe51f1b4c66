"""Reports that are taken for usual have nothing in them that a rule for hardware finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from tests import builders as b
from understudy_controlplane.detect import DETECTORS
from understudy_controlplane.fleet.finding import Finding
from understudy_controlplane.fleet.node import NodeView
from understudy_controlplane.fleet.snapshot import Snapshot
from understudy_controlplane.live.telemetry import Heard, Telemetry
from understudy_wire.hardware import Disk, GpuStatus, Host, Port, Stuck, StuckProcess
from understudy_wire.messages import Report

BY_HARDWARE = ("gpu_state", "hardware", "driver", "fabric")
TWINS = 20
"""Nodes beside it of the same hardware: some rules compare."""

GPUS = [b.gpu(index, nvlinks=18, nvlinks_max=18, fabric_state=3) for index in range(2)]
PORT = Port("mlx5_0", 1, state="ACTIVE", was_active=True)
HOST = Host(fabric_manager=True, disks=[Disk("/", 100, 50)])
USUAL = b.report("n0", gpus=GPUS, ports=[PORT], host=HOST, driver_version="570.1", sent_at=b.NOW)

VALUES: dict[type[inspect.Type], Sequence[Any]] = {
    inspect.IntType: (0, 1, 2, 3, 17, 1 << 8, 3 << 8, 10**6),
    inspect.FloatType: (0.0, 0.5, 0.6, 1.0, 29.0, 30.0, 70.0, 1e6),
    inspect.BoolType: (False, True),
    inspect.StrType: ("", "x", "NVML error 15", "read-only"),
    inspect.NoneType: (None,),
}


def values_of(kind: inspect.Type) -> Iterator[Any]:
    """Some of every sort that a field of this type may have."""
    if isinstance(kind, inspect.Metadata):
        yield from values_of(kind.type)
    elif isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from values_of(one)
    elif isinstance(kind, inspect.EnumType):
        yield from kind.cls
    else:
        yield from VALUES.get(type(kind), ())


def changed(whole: Any) -> Iterator[Any]:
    """`whole` with another value in one of its fields."""
    found = inspect.type_info(type(whole))
    assert isinstance(found, inspect.StructType)
    for one in found.fields:
        for value in values_of(one.type):
            yield msgspec.structs.replace(whole, **{one.name: value})


def reports() -> Iterator[Report]:
    yield USUAL
    yield from (one for one in changed(USUAL) if one.node == USUAL.node)
    parts: dict[str, Iterator[Any]] = {
        "gpus": ([GPUS[0], one] for one in changed(GPUS[1])),
        "ports": ([one] for one in changed(PORT)),
        "host": changed(HOST),
        "processes": ([one] for one in changed(StuckProcess(7, 0, "python", Stuck.KILLED, 70.0))),
        "problems": ([text] for text in ("NVML error 9", "a disk")),
    }
    for name, values in parts.items():
        yield from (msgspec.structs.replace(USUAL, **{name: value}) for value in values)
    yield from (msgspec.structs.replace(USUAL, host=Host(disks=[one])) for one in changed(HOST.disks[0]))
    yield from (msgspec.structs.replace(USUAL, gpus=gpus) for gpus in ([], GPUS[:1]))
    yield msgspec.structs.replace(USUAL, gpus=[], driver_version="")


def heard(report: Report) -> Heard:
    telemetry = Telemetry()
    telemetry.know([report.node])
    telemetry.receive(report, b.NOW)
    return telemetry.heard()[report.node]


def view(name: str, one: Heard) -> NodeView:
    """View of the node as the observer makes it, but for `usual`: every rule looks at it."""
    report = one.report
    slurm = replace(b.slurm_node(name), gres="gpu:h100:2")
    return replace(
        b.node(name, slurm=slurm, heard_at=one.at),
        gpus=tuple(report.gpus),
        ports=tuple(report.ports),
        host=report.host,
        gpus_readable=one.gpus,
        driver_version=report.driver_version,
        nvml_silent_seconds=report.nvml_silent_seconds,
        ports_silent_seconds=report.ports_silent_seconds,
        host_silent_seconds=report.host_silent_seconds,
        clock_ahead_seconds=report.sent_at - one.at,
        problems=tuple(report.problems),
        processes=tuple(report.processes),
    )


def found(snapshot: Snapshot, after_seconds: float) -> list[Finding]:
    later = replace(snapshot, now=b.NOW + after_seconds)
    config = b.config()
    return [one for name in BY_HARDWARE for one in DETECTORS[name](later, config) if one.node in {"n0", ""}]


def test_no_rule_finds_anything_in_a_usual_report() -> None:
    usual, odd = 0, 0
    twins = [view(f"n{number}", heard(USUAL)) for number in range(1, TWINS)]
    for report in reports():
        one = heard(report)
        seen = b.snapshot(view("n0", one), *twins)
        # Too few GPUs are found by what Slurm has of the node.
        findings = [one for after in (0.0, 100.0) for one in found(seen, after) if one.rule != "gpus.too_few"]
        odd += bool(findings)
        usual += one.usual
        assert not (one.usual and findings), (findings[0].rule, report)
    assert usual > 100
    assert odd > 20


@pytest.mark.parametrize("status", GpuStatus)
def test_rules_look_at_nodes_that_are_not_usual(status: GpuStatus) -> None:
    one = heard(msgspec.structs.replace(USUAL, gpus=[b.gpu(status=status)]))
    assert one.usual is (status is GpuStatus.OK)
    seen = b.snapshot(replace(view("n0", one), usual=one.usual))
    assert [node.name for node in seen.unusual if node.name == "n0"] == ([] if one.usual else ["n0"])
