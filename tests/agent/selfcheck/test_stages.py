"""The stages of a validation: what cannot run is never passed, a pass mark decides, and results fit a job's comment."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from tests import PYTHON_PATH
from tests.testbed.fake_nvml import FakeGpus, build, h100_node
from understudy_selfcheck import stage_runs
from understudy_selfcheck.__main__ import main
from understudy_selfcheck.check import KindResult, Result
from understudy_selfcheck.heat import HeatWatch
from understudy_selfcheck.node import Device, NodeResult
from understudy_selfcheck.stage_runs import NotPossible, Place, clock_offset_ms, filesystem_of, run_stages
from understudy_wire.hardware import Gpu, GpuStatus
from understudy_wire.stages import (
    DEFAULTS,
    LINE_BYTES_MAX,
    PREFIX,
    UNITS,
    Stage,
    StageName,
    StageResult,
    StagesError,
    StageStatus,
    judged,
    line_of,
    read_stages,
    results_of,
    toml_of,
)

FAULTY = (sys.executable, "-m", "tests.agent.selfcheck.faulty")
REAL = (sys.executable, "-m", "understudy_selfcheck.worker")


def only(name: StageName, stage: Stage) -> dict[StageName, Stage]:
    off = {one: msgspec.structs.replace(DEFAULTS[one], enabled=False) for one in StageName}
    return off | {name: stage}


def run(name: StageName, stage: Stage, worker: tuple[str, ...] = FAULTY, **environment: str) -> StageResult:
    (result,) = run_stages(only(name, stage), Place(worker, {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}))
    return result


# -- the file ------------------------------------------------------------------


def test_an_empty_file_is_the_default_and_each_stage_has_a_unit() -> None:
    assert read_stages("") == dict(DEFAULTS)
    assert set(UNITS) == set(StageName)


def test_the_file_changes_what_it_names() -> None:
    stages = read_stages('[gpu]\npass = 400\n[disk_write]\npath = "/scratch"\nseconds = 60\n[clock]\nenabled = false\n')
    assert stages[StageName.GPU] == msgspec.structs.replace(DEFAULTS[StageName.GPU], pass_mark=400.0)
    assert stages[StageName.DISK_WRITE].path == "/scratch"
    assert not stages[StageName.CLOCK].enabled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[gpu", "not TOML"),
        ("[hbm]\n", "no stage hbm; the stages are clock, cpu"),
        ("gpu = 1\n", "has to be a table"),
        ("[gpu]\nleast = 3\n", "least"),
        ('[gpu]\npass = "much"\n', "[gpu]"),
        ("[gpu]\npass = -1\n", "0 or more"),
        ("[cpu]\nseconds = 1e9\n", "seconds"),
        ('[disk_read]\npath = "scratch"\n', "absolute"),
    ],
)
def test_a_file_with_an_error_is_refused_with_its_cause(text: str, words: str) -> None:
    with pytest.raises(StagesError, match=words.replace("[", r"\[")):
        read_stages(text)


# -- results ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mark", "value", "status"),
    [
        (StageName.CPU, 100.0, 100.0, StageStatus.PASSED),
        (StageName.CPU, 100.0, 99.0, StageStatus.FAILED),
        (StageName.CPU, 0.0, 0.1, StageStatus.PASSED),
        (StageName.CLOCK, 100.0, 99.0, StageStatus.PASSED),
        (StageName.CLOCK, 100.0, 101.0, StageStatus.FAILED),
    ],
)
def test_the_pass_mark_decides(name: StageName, mark: float, value: float, status: StageStatus) -> None:
    assert judged(name, Stage(pass_mark=mark), value, 1.0).status is status


RESULTS = [
    judged(StageName.CPU, Stage(pass_mark=100.0), 153.24, 10.0),
    judged(StageName.CLOCK, Stage(pass_mark=100.0), 300.0, 0.0),
    StageResult(StageName.GPU, StageStatus.NOT_POSSIBLE, None, 0.0, 0.1, "no GPU"),
]


def test_results_come_back_from_a_jobs_output() -> None:
    found, rest = results_of(f"== stages\n{line_of(RESULTS)}\n== 1 checks, 1 failed")
    assert found == RESULTS
    assert rest == "== stages\n== 1 checks, 1 failed"
    assert [one.words for one in found] == [
        "cpu passed: 153.2 Gflop/s; at least 100",
        "clock failed: 300 ms; at most 100",
        "gpu not possible: no GPU",
    ]


def test_a_line_that_was_cut_off_is_no_result() -> None:
    line = line_of(RESULTS)
    assert results_of(line[10:])[0] == []
    assert results_of(line[:-10])[0] == []
    assert results_of(PREFIX + '[["warp","p",1,0,1,""]]')[0] == []


def test_results_of_all_stages_fit_whatever_went_wrong() -> None:
    results = [
        StageResult(name, StageStatus.FAILED, 12345.678, 23456.789, 86400.0, 'a "long" why é ' * 20)
        for name in StageName
    ]
    assert len(line_of(results)) <= LINE_BYTES_MAX
    assert [one.stage for one in results_of(line_of(results))[0]] == list(StageName)


# -- what each stage finds ------------------------------------------------------------------


def test_a_clock_that_no_service_keeps_is_not_possible_and_never_passed() -> None:
    with pytest.raises(NotPossible):
        clock_offset_ms(0x0040, 0, 0)
    assert clock_offset_ms(0x2000, -3_000_000, 500) == pytest.approx(3.5)
    assert clock_offset_ms(0, 3_000, 0) == pytest.approx(3.0)


def test_what_cannot_run_fails_only_where_the_site_requires_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(stage: Stage, place: Place) -> float:
        raise NotPossible("there is none")

    runs: Mapping[StageName, object] = {StageName.CPU: impossible}
    monkeypatch.setattr(stage_runs, "_RUNS", runs)
    assert run(StageName.CPU, Stage()).status is StageStatus.NOT_POSSIBLE
    required = run(StageName.CPU, Stage(required=True))
    assert (required.status, required.why, required.value) == (StageStatus.FAILED, "there is none", None)


def test_memory_is_copied() -> None:
    result = run(StageName.MEMORY, Stage(seconds=0.0))
    assert result.status is StageStatus.PASSED
    assert (result.value or 0) > 0.01


@pytest.mark.parametrize("name", [StageName.DISK_WRITE, StageName.DISK_READ])
def test_a_disk_is_written_and_read_and_nothing_is_left(
    name: StageName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_runs, "FILE_BYTES_MIN", 8 * 2**20)
    monkeypatch.setattr(stage_runs, "FILE_BYTES_MAX", 8 * 2**20)
    mounts = tmp_path / "mounts"
    mounts.write_text("/dev/nvme0n1 / ext4 rw 0 0\n")
    place = Place(FAULTY, {}, mounts=mounts)
    (tmp_path / f".understudy-disk-{os.getpid()}").touch()  # as a user can leave it in a directory of all
    (result,) = run_stages(only(name, Stage(seconds=0.1, path=str(tmp_path))), place)
    assert result.status is StageStatus.PASSED, result.why
    assert (result.value or 0) > 0.1
    assert {one.name for one in tmp_path.iterdir()} == {"mounts", f".understudy-disk-{os.getpid()}"}


def test_a_disk_that_gives_back_something_else_has_failed(tmp_path: Path) -> None:
    path, block = tmp_path / "file", b"a" * stage_runs.BLOCK_BYTES
    path.write_bytes(block + b"a" * (stage_runs.BLOCK_BYTES - 1) + b"b")
    assert stage_runs.read_back(path, block, len(block), 1.0) > 0
    with pytest.raises(stage_runs.StageFailed, match="differs from what was written"):
        stage_runs.read_back(path, block, 2 * len(block), 1.0)


def test_a_directory_in_memory_or_a_missing_one_says_nothing_of_a_disk(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"/dev/sda1 / ext4 rw 0 0\ntmpfs {tmp_path} tmpfs rw 0 0\n")
    place = Place(FAULTY, {}, mounts=mounts)
    (result,) = run_stages(only(StageName.DISK_WRITE, Stage(path=str(tmp_path))), place)
    assert (result.status, result.why) == (StageStatus.NOT_POSSIBLE, f"{tmp_path} is in memory (tmpfs)")
    assert run(StageName.DISK_READ, Stage(path="/no/such/place")).status is StageStatus.NOT_POSSIBLE


def test_the_longest_mount_point_counts() -> None:
    mounts = "/dev/a / ext4 rw 0 0\ntmpfs /run tmpfs rw 0 0\n/dev/b /run/fast xfs rw 0 0\n"
    assert filesystem_of(Path("/run/fast/x"), mounts) == "xfs"
    assert filesystem_of(Path("/run/other"), mounts) == "tmpfs"
    assert filesystem_of(Path("/var/lib"), mounts) == "ext4"


def device(status: str, tflops: float, problem: str = "") -> Device:
    kinds = [KindResult("float32", 3, 0, 0.1, tflops), KindResult("bfloat16", 3, 0, 0.1, 10 * tflops)]
    return Device(status, 0, problem=problem, result=Result(6, 0, 0, 0, 1.0, "", kinds))


def test_the_slowest_gpu_counts_in_its_fastest_format() -> None:
    found = NodeResult("passed", [device("passed", 60.0), device("passed", 40.0)])
    assert stage_runs.slowest_tflops(found, None) == 400.0
    assert stage_runs.slowest_tflops(found, "float32") == 40.0
    with pytest.raises(NotPossible, match="no torch"):
        stage_runs.slowest_tflops(NodeResult("could_not_run", [], ["no torch"]), None)


@pytest.mark.integration
def test_gpus_that_are_not_there_are_not_possible_and_broken_ones_fail() -> None:
    assert run(StageName.GPU, Stage(seconds=0.02), GPUS="0").status is StageStatus.NOT_POSSIBLE
    broken = run(StageName.GPU, Stage(seconds=0.02), GPUS="2", FAULTS="1=element")
    assert broken.status is StageStatus.FAILED
    assert "device 1" in broken.why


HOT = Gpu(1, GpuStatus.OK, temperature_celsius=91, power_watts=640.4, clock_event_reasons=0x40)
COOL = Gpu(0, GpuStatus.OK, temperature_celsius=64, power_watts=690.0, clock_event_reasons=0x4)


def soaked(*gpus: Gpu, celsius_max: float = 0.0, looks: int = 6) -> tuple[str, str]:
    count = itertools.count(1)
    over = threading.Event()

    def read() -> Sequence[Gpu]:
        if next(count) >= looks:
            over.set()
        return gpus

    with HeatWatch(read, look_seconds=0.0) as heat:
        assert over.wait(20.0)
    return heat.words, heat.fault(celsius_max)


def test_a_gpu_that_its_hardware_slows_for_heat_has_failed_and_the_power_cap_is_no_fault() -> None:
    assert soaked(COOL) == ("up to 64 C, 690 W", "")
    words, fault = soaked(COOL, HOT)
    assert words == "up to 91 C, 690 W"
    assert "GPU 1 slowed by heat or power" in fault
    assert soaked(Gpu(0, GpuStatus.LOST)) == ("", ""), "nothing is known, and nothing is judged"


def test_a_site_may_say_how_hot_a_gpu_may_become() -> None:
    assert soaked(COOL, celsius_max=64)[1] == ""
    assert soaked(COOL, celsius_max=63)[1] == "up to 64 C, 690 W; at most 63 C"
    assert "celsius_max" not in toml_of(DEFAULTS), "agents of the release before refuse what they do not know"
    stages = read_stages("[gpu]\ncelsius_max = 85\n")
    assert read_stages(toml_of(stages)) == stages
    with pytest.raises(StagesError, match="celsius_max"):
        read_stages("[gpu]\ncelsius_max = -1\n")


@pytest.mark.integration
def test_a_soak_reads_nvml_while_the_gpus_compute(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path / "gpus")
    fake.write(h100_node("n1"))
    library = build(tmp_path / "lib")
    program = (
        "import time\nfrom understudy_selfcheck.heat import HeatWatch, by_nvml\n"
        "with HeatWatch(by_nvml(), 0.01) as heat:\n    time.sleep(0.5)\nprint(heat.words)"
    )
    known = {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_STATE": str(fake.path), "PYTHONPATH": PYTHON_PATH}
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | known, capture_output=True, text=True, check=True, timeout=60
    )
    assert re.fullmatch(r"up to \d+ C, \d+ W\n", done.stdout), done.stdout


@pytest.mark.integration
def test_the_links_of_gpus_are_not_possible_without_one() -> None:
    for name in (StageName.PCIE, StageName.NVLINK):
        result = run(name, Stage(seconds=0.02), REAL)
        assert (result.status, result.why) == (StageStatus.NOT_POSSIBLE, "torch finds no GPU that it can use")


@pytest.mark.integration
def test_the_command_runs_the_stages_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    off = "".join(f"[{name}]\nenabled = false\n" for name in StageName if name not in (StageName.CPU, StageName.MEMORY))
    path = tmp_path / "stages.toml"
    path.write_text(f"{off}[cpu]\nseconds = 0.1\n[memory]\nseconds = 0\npass = 1e9\n")
    assert main(["--stages", str(path)]) == 1
    found, rest = results_of(capsys.readouterr().out)
    assert [(one.stage, one.status) for one in found] == [
        (StageName.CPU, StageStatus.PASSED),
        (StageName.MEMORY, StageStatus.FAILED),
    ]
    assert "memory failed" in rest
    path.write_text("[warp]\n")
    assert main(["--stages", str(path)]) == 2
