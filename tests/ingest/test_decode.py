"""An odd value of hardware, or of a user's file, costs a report that value and nothing else: a silent node may be
declared dead.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from tests import builders as b
from understudy_controlplane.ingest.decode import decode_report
from understudy_wire.files import FileOutcome, FileResult
from understudy_wire.hardware import STUCK_PROCESSES_MAX, Disk, Gpu, GpuStatus, Host, Port, Stuck, StuckProcess
from understudy_wire.messages import Report
from understudy_wire.values import EPOCH_SECONDS_MAX, NOT_UNDERSTOOD, SIZE_MAX

WELL = b.report(
    gpus=[Gpu(0, GpuStatus.OK, "GPU-0"), Gpu(1, GpuStatus.UNREADABLE, "GPU-1", error="lost")],
    ports=[Port("mlx5_0", 1, state="ACTIVE"), Port("mlx5_1", 1, state="DOWN")],
    host=Host(disks=[Disk("/", 2, 1), Disk("/data", 4, 3)], versions={"kernel": "6.8"}),
    problems=["the keeper does not answer"],
)
ODD_TEXT, PLAIN_TEXT = "16\x01\0\n\x1b[2J" + "x" * 5000, "16    [2J" + "x" * 5000
HARDWARE: list[tuple[type[msgspec.Struct], tuple[str | int, ...]]] = [
    (Gpu, ("gpus", 1)),
    (Port, ("ports", 1)),
    (Host, ("host",)),
    (Disk, ("host", "disks", 1)),
]
CASES = [
    (kind.__name__, path, field)
    for kind, path in HARDWARE
    for field in msgspec.structs.fields(kind)
    if field.name not in ("status", "disks", "versions")  # the agent's own, and no single values
] + [
    ("Report", (), field)
    for field in msgspec.structs.fields(Report)
    if field.name in ("driver_version", "sent_at", "agent_started_at", "nvml_silent_seconds", "release")
]


def odd_and_read(field: msgspec.structs.FieldInfo) -> tuple[Any, Any]:
    """A value that is out of bounds, and what is read in its place; None: nothing."""
    kind = inspect.type_info(field.type)
    if isinstance(kind, inspect.UnionType):
        kind = kind.types[0]
    if isinstance(kind, inspect.StrType):
        return ODD_TEXT, PLAIN_TEXT[: kind.max_length]
    if isinstance(kind, inspect.BoolType | inspect.EnumType):
        return 2, None
    assert isinstance(kind, inspect.IntType | inspect.FloatType)
    return (2**63 if isinstance(kind, inspect.IntType) else 1e300), kind.le if field.required else None


def with_value(path: tuple[str | int, ...], name: str, value: Any) -> dict[str, Any]:
    """`WELL` as it is sent, with this value in one place; None: with none."""
    message: Any = copy.deepcopy(msgspec.to_builtins(WELL))
    place = message
    for one in path:
        place = place[one]
    place.pop(name, None)
    if value is not None:
        place[name] = value
    assert isinstance(message, dict)
    return message


@pytest.mark.parametrize(
    ("struct", "path", "field"), CASES, ids=[f"{struct}.{field.name}" for struct, _, field in CASES]
)
def test_an_odd_value_of_hardware_costs_the_report_that_value_alone(
    struct: str, path: tuple[str | int, ...], field: msgspec.structs.FieldInfo
) -> None:
    odd, read = odd_and_read(field)
    decoded = decode_report(msgspec.json.encode(with_value(path, field.name, odd)))
    assert decoded.report == msgspec.convert(with_value(path, field.name, read), Report)
    assert len(decoded.ignored) == 1
    assert decoded.ignored[0].startswith(f"{struct}.{field.name} of the report")


def test_many_odd_values_cost_no_gpu_and_no_good_value() -> None:
    message = with_value(("host",), "versions", {"BIOS": "1.2\x02", "kernel": "6.8", "board\x01": "x" * 300})
    message["gpus"][0] |= {"serial": "16\x01", "temperature_celsius": 2**63, "power_watts": 70.0, "name": "H100"}
    message["problems"] = ["a\0b", "well"]
    message["sent_at"] = 5e9
    report = decode_report(msgspec.json.encode(message)).report
    assert report.gpus[0] == Gpu(0, GpuStatus.OK, "GPU-0", serial="16 ", power_watts=70.0, name="H100")
    assert report.gpus[1:] == WELL.gpus[1:]
    assert report.host is not None
    assert report.host.versions == {"BIOS": "1.2 ", "kernel": "6.8", "board ": "x" * 255}
    assert (report.problems, report.sent_at) == (["a b", "well"], EPOCH_SECONDS_MAX)


def test_a_newer_agents_odd_value_leaves_what_it_adds_to_be_counted() -> None:
    message = with_value((), "release", "99.0")
    message["gpus"][0] |= {"serial": "16\x01", "fan_percent": 7}
    assert decode_report(msgspec.json.encode(message)).unknown == ["field Gpu.fan_percent"]


def test_the_name_of_a_users_file_costs_no_report() -> None:
    result = FileResult(7, FileOutcome.BAD, "it names x\0.distcp")
    decoded = decode_report(msgspec.json.encode(msgspec.structs.replace(WELL, file_result=result)))
    assert decoded.report.file_result == FileResult(7, FileOutcome.BAD, "it names x .distcp")
    assert len(decoded.ignored) == 1


@pytest.mark.parametrize("odd", [{"why": 3}, {"why": None}, {"gpus": None}, {"gpus": [7]}, {"pid": -1}])
def test_an_odd_process_is_left_out_alone(odd: dict[str, Any]) -> None:
    stuck = StuckProcess(7, 1000, "python", Stuck.KILLED, 61.0)
    message = with_value((), "processes", [msgspec.to_builtins(stuck) | odd, msgspec.to_builtins(stuck)])
    decoded = decode_report(msgspec.json.encode(message))
    assert decoded.report == msgspec.structs.replace(WELL, processes=[stuck])
    assert [one.partition(":")[0] for one in decoded.ignored] == ["a process that is stuck cannot be read"]


def test_of_more_processes_than_a_report_may_have_the_first_count() -> None:
    stuck = [StuckProcess(pid, 1000, "python", Stuck.KILLED, 61.0) for pid in range(STUCK_PROCESSES_MAX + 1)]
    decoded = decode_report(msgspec.json.encode(with_value((), "processes", msgspec.to_builtins(stuck))))
    assert decoded.report == msgspec.structs.replace(WELL, processes=stuck[:STUCK_PROCESSES_MAX])
    assert decoded.ignored == ["Report.processes has more than 16 items: the others are left out"]


def test_a_result_that_cannot_be_read_is_left_out_alone() -> None:
    decoded = decode_report(msgspec.json.encode(with_value((), "file_result", {"number": "x", "outcome": "bad"})))
    assert decoded.report == WELL
    assert decoded.ignored[-1].startswith("what became of a task on files cannot be read: ")


@pytest.mark.parametrize(("name", "value"), [("node", "n1\0"), ("gpus", 8), ("gpus", [8]), ("host", "n1")])
def test_what_no_agent_sends_is_refused(name: str, value: Any) -> None:
    """Left out, a list of GPUs would be one without any."""
    with pytest.raises(NOT_UNDERSTOOD):
        decode_report(msgspec.json.encode(with_value((), name, value)))


def test_a_file_system_above_the_bound_is_one_at_the_bound() -> None:
    message = with_value(("host", "disks", 0), "total_bytes", 2**54)
    host = decode_report(msgspec.json.encode(message)).report.host
    assert host is not None
    assert host.disks[0] == Disk("/", SIZE_MAX, 1)
