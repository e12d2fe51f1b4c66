"""The pieces of `make hardware` against the fake driver, and on a machine without GPUs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.hardware import __main__ as entry
from tests.hardware import nccl_on_cuda, parts
from tests.hardware.__main__ import markdown, write
from tests.hardware.differences import differences, driver_like, shape_of
from tests.hardware.fake_readings import fake_readings, recorded
from tests.hardware.parts import NotPossibleError, Part, read_fake, run_part
from tests.hardware.readings import GpuRead, NodeRead, Read
from tests.signals.virtual_node import FIELDS_EVERY
from tests.testbed.configuration import free_ports
from tests.testbed.fake_nvml import A100, B200, GB200, H100, H200, L40S, SHAPES
from understudy_agent.sample.nvml import READINGS


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("NVIDIA H100 80GB HBM3", H100),
        ("NVIDIA H100 PCIe", H100),
        ("NVIDIA H200 NVL", H200),
        ("NVIDIA A100-SXM4-40GB", A100),
        ("NVIDIA B200", B200),
        ("NVIDIA GB200", GB200),
        ("NVIDIA L40S", L40S),
        ("Tesla T4", None),
    ],
)
def test_a_gpu_is_compared_with_the_fake_of_its_model(name: str, shape: object) -> None:
    assert shape_of(name) is shape


@pytest.mark.parametrize(
    ("version", "like"),
    [("575.57.08", "570.124.06"), ("580.1", "580.95.05"), ("999.1", "590.44.01"), ("470.1", "525.147.05")],
)
def test_a_driver_is_compared_with_the_newest_that_is_not_newer(version: str, like: str) -> None:
    assert driver_like(version) == like


def node(*readings: Read) -> NodeRead:
    return NodeRead("570.1", [GpuRead(0, list(readings))])


def test_differences_are_named_and_values_that_change_are_none() -> None:
    same = Read("power_watts", [0.1], {"power_watts": 300.0})
    fake = node(
        same,
        Read("sram", [0.1], {"sram_threshold_exceeded": False}),
        Read("nvlinks", [0.1], {"nvlinks": 18}),
        Read("serial", [0.1], {"serial": "1"}),
        Read("memory", [0.1], {"memory_total_bytes": 100}),
    )
    real = node(
        Read("power_watts", [0.1], {"power_watts": 612.5}),
        Read("sram", [0.1], error="Not Supported", error_code=3),
        Read("nvlinks", [0.1], {"nvlinks": 6}),
        Read("serial", [0.1], {"serial": 7}),
        Read("memory", [0.1], {"memory_total_bytes": 104}),
    )
    assert differences(real, fake) == [
        "sram: Not Supported here, answered in the fake",
        "serial: serial is of type int here, of type str in the fake",
        "nvlinks: 6 here, 18 in the fake",
    ]
    assert differences(fake, fake) == []
    assert differences(NodeRead(error="Driver Not Loaded"), fake) == ["NVML cannot be used: Driver Not Loaded"]


def test_a_part_that_fails_or_is_not_possible_takes_no_other_with_it(tmp_path: Path) -> None:
    def lacking(_: float) -> parts.Found:
        raise NotPossibleError("PyTorch is not installed")

    def failing(_: float) -> parts.Found:
        raise RuntimeError("it ended with 1")

    done = [
        run_part("one", lacking, 5),
        run_part("two", failing, 5),
        run_part("three", lambda _: (["fine"], {"x": 1}), 5),
        run_part("four", lacking, 0),
    ]
    assert [part.outcome for part in done] == ["not possible", "failed", "done", "not possible"]
    write(tmp_path, done)
    assert [part["values"] for part in json.loads((tmp_path / "report.json").read_text())] == [{}, {}, {"x": 1}, {}]
    assert "## two\nfailed, 0.0 s\n\n- RuntimeError: it ended with 1\n" in (tmp_path / "report.md").read_text()
    assert markdown([Part("five", "done", 1.0)]).endswith("## five\ndone, 1.0 s\n\n")


@pytest.mark.integration
def test_every_reading_of_a_fake_gpu_is_in_the_report_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read = read_fake(A100, "535.183.06", 30)
    assert [one.name for one in read.gpus[0].readings] == [reading.name for reading in READINGS]
    assert all(one.milliseconds for one in read.gpus[0].readings)
    assert {one.name: one.error_code for one in read.gpus[0].readings if one.error}.keys() >= {"sram", "fabric"}
    monkeypatch.setattr(parts, "read_real", lambda _: read)
    lines, values = parts.readings(30)
    assert "driver 535.183.06, 1 GPUs" in lines
    assert "- none" in lines
    assert values["differences"] == []


@pytest.mark.integration
def test_the_documents_have_which_gpus_and_drivers_of_the_fake_answer_each_reading() -> None:
    found = fake_readings()
    assert found == recorded(), "python -m tests.hardware.fake_readings"
    assert {name for one in found for name in one.fields} == {name for names in FIELDS_EVERY.values() for name in names}
    assert all(len(one.not_by) < len(SHAPES) for one in found), "no GPU of the fake answers it: it is not tested"


@pytest.mark.integration
def test_on_a_machine_without_gpus_readings_are_not_possible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    part = run_part("readings", parts.readings, 30)
    assert part.outcome == "not possible"
    assert "NVML cannot be used" in part.lines[0]


@pytest.mark.integration
def test_a_gang_goes_on_in_the_process_of_the_rank_that_stays_with_its_state() -> None:
    """Ranks use gloo, on the CPU."""
    found = json.loads(parts.output_of("tests.hardware.in_process", ("--backend", "gloo", "--device", "cpu"), 120))
    line = parts.described(found)
    assert found["exit_code"] == 0
    assert found["left_after_seconds"] is not None and found["left_after_seconds"] < found["first_step_after_seconds"]
    assert "went on in the same process; the new rank got the same state, 1 MiB; steps lost: 0; first step" in line


def test_a_rank_that_does_not_leave_its_gang_is_reported_as_replaced() -> None:
    found = {"backend": "nccl", "left_after_seconds": None, "first_step_after_seconds": 31.5}
    assert parts.described(found | {"same_state": True, "megabytes": 8, "steps_lost": 3}) == (
        "nccl: the rank that stayed did not leave its gang and was ended: another process took its place; the new rank "
        "got the same state, 8 MiB; steps lost: 3; first step of the next launch 31.5 s after the loss"
    )


@pytest.mark.parametrize(("count", "tried"), [(2, ["gloo", "nccl"]), (1, ["gloo"]), (0, [])])
def test_a_gang_over_nccl_needs_two_gpus(monkeypatch: pytest.MonkeyPatch, count: int, tried: list[str]) -> None:
    found = {"left_after_seconds": 0.1, "first_step_after_seconds": 3, "same_state": True, "megabytes": 8}

    def output_of(_: str, arguments: tuple[str, ...], *__: object) -> str:
        return json.dumps(found | {"steps_lost": 0, "backend": arguments[1]})

    monkeypatch.setattr(parts, "_need_torch", lambda: None)
    monkeypatch.setattr(parts, "output_of", output_of)
    monkeypatch.setattr(parts, "read_real", lambda _: NodeRead("570", [GpuRead(index) for index in range(count)]))
    part = run_part("gang", parts.in_process, 5)
    assert part.outcome == ("done" if count else "not possible")
    assert list(part.values) == tried
    assert ("needs 2 GPUs, and there is 1" in part.lines[-1]) is (count == 1)


@pytest.mark.parametrize("count", [1, 0])
def test_nccl_is_asked_where_there_is_a_gpu(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    found: dict[str, object] = {"version": "2.29.2", "read": '{"count":1}', "recorder": "{}", "text": "as it came"}
    found |= {"json": "{}", "broken": [], "inspector": {}}
    monkeypatch.delenv("NCCL_PROFILER_PLUGIN", raising=False)
    monkeypatch.setattr(parts, "_need_torch", lambda: None)
    monkeypatch.setattr(parts, "output_of", lambda *_: json.dumps(found))
    monkeypatch.setattr(parts, "read_real", lambda _: NodeRead("570", [GpuRead(index) for index in range(count)]))
    part = run_part("nccl", parts.nccl, 5)
    assert (part.outcome, part.values) == (("done", found) if count else ("not possible", {}))
    assert part.lines[0] == (
        'NCCL 2.29.2: the agent read {"count":1}' if count else "NCCL needs a GPU, and there is none"
    )


def test_nccl_that_does_not_answer_on_a_gpu_fails_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"groups": [{"group": "0:default_pg", "last": 5}]}
    asked = nccl_on_cuda.found(free_ports(1)[0], (2, 29, 2), places)
    assert asked.broken and asked.broken[0].startswith("the RAS service: ")
    assert nccl_on_cuda.found(free_ports(1)[0], (2, 21, 5), places).broken == [], "it has none"
    assert "flight recorder" in nccl_on_cuda.found(free_ports(1)[0], (2, 21, 5), {}).broken[0]
    monkeypatch.setattr(parts, "_need_torch", lambda: None)
    monkeypatch.setattr(parts, "output_of", lambda *_: json.dumps(asdict(asked)))
    monkeypatch.setattr(parts, "read_real", lambda _: NodeRead("570", [GpuRead(0)]))
    assert run_part("nccl", parts.nccl, 5).outcome == "failed"


def test_files_of_inspector_that_are_not_read_fail_the_part(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NCCL_PROFILER_PLUGIN", raising=False)
    assert parts.read_inspector(tmp_path).startswith("Inspector: not tried")
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "inspector.so")
    assert "wrote no file" in parts.read_inspector(tmp_path)
    (tmp_path / "n1-pid7.log").write_text("no record\n")
    with pytest.raises(RuntimeError, match="Inspector: "):
        parts.read_inspector(tmp_path)


def test_what_is_tested_within_a_training_is_put_into_words(monkeypatch: pytest.MonkeyPatch) -> None:
    again = {"runs": 21, "same": True, "reported": False, "step_milliseconds": 3.0}
    between = {"step_milliseconds": 3.0, "more_milliseconds": 2.1, "multiplication_milliseconds": 0.2}
    flipped = again | {"reported": True}
    found = {"between_steps": between, "again": again, "again_with_a_flipped_bit": flipped}
    monkeypatch.setattr(parts, "_need_torch", lambda: None)
    monkeypatch.setattr(parts, "output_of", lambda *_: json.dumps(found))
    assert parts.training(5)[0] == [
        "test between steps: a step of 3.0 ms takes 2.1 ms more with it; its multiplication takes 0.200 ms",
        "a step computed again, 3.0 ms: 21 runs, the same bits each time",
        "a flipped bit was reported",
    ]


def hook_seen(monkeypatch: pytest.MonkeyPatch, root: bool) -> tuple[str, list[list[str]]]:
    asked: list[list[str]] = []

    def output_of(*_: object, within: list[str]) -> str:
        asked.append(within)
        return json.dumps({"uuid": "GPU-b", "microseconds": 1.0})

    monkeypatch.setattr(parts, "output_of", output_of)
    monkeypatch.setattr(parts, "SYSTEMD", Path("/"))
    monkeypatch.setattr("os.geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/systemd-run")
    return parts.hook_in_cgroup({"0": "GPU-a", "1": "GPU-b"}, 5)[0], asked


def test_under_a_cgroup_the_hook_sees_one_gpu_which_cuda_numbers_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    line, ((*command,),) = hook_seen(monkeypatch, root=True)
    assert line == "under a cgroup that allows GPU 1: the hook names GPU-b, as NVML names it"
    assert "--property=DeviceAllow=/dev/nvidia1 rw" in command
    assert not any("nvidia0" in argument for argument in command)
    assert {"--setenv=CUDA_VISIBLE_DEVICES=0", "--setenv=SLURM_STEP_GPUS=1"} <= set(command)


def test_without_root_the_cgroup_is_not_tried_and_the_report_names_that(monkeypatch: pytest.MonkeyPatch) -> None:
    line, asked = hook_seen(monkeypatch, root=False)
    assert asked == []
    assert "needs root and systemd" in line


def test_without_a_gpu_the_report_names_what_each_part_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_gpu() -> None:
        raise NotPossibleError("PyTorch finds no GPU that it can use")

    monkeypatch.setattr(parts, "_need_torch", no_gpu)
    monkeypatch.setattr(parts, "read_real", lambda _: NodeRead(error="Driver Not Loaded"))
    monkeypatch.setattr(parts, "KERNEL_LOG", tmp_path / "kmsg")
    monkeypatch.setattr(entry, "REPOSITORY", tmp_path)
    assert entry.main() == 1
    report = (tmp_path / "build" / "hardware" / "report.md").read_text()
    assert report.count("not possible, ") == len(entry.PARTS)
    assert "NVML cannot be used: Driver Not Loaded" in report
    assert "kmsg cannot be read: No such file or directory; run it as root" in report
    assert "In-process restart: not possible" in capsys.readouterr().out
