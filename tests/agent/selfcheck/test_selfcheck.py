"""The self-check finds faults, reports what it could not check, and never waits without limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import understudy_selfcheck.__main__ as command
from tests.agent.selfcheck.faulty import Faulty
from understudy_selfcheck.__main__ import main, render
from understudy_selfcheck.backend import Backend
from understudy_selfcheck.check import Extent, Result, check
from understudy_selfcheck.node import CheckOptions, NodeResult, check_node
from understudy_selfcheck.numpy_backend import NumpyBackend
from understudy_selfcheck.patterns import DEPTH_MAX, PATTERNS, TILE, Pattern
from understudy_selfcheck.torch_backend import TorchBackend
from understudy_selfcheck.worker import run

pytestmark = pytest.mark.integration

QUICK = Extent(seconds=0.02, memory_share=1e-4)
WORKER = (sys.executable, "-m", "tests.agent.selfcheck.faulty")


def checked(backend: Backend) -> Result:
    return check(backend, QUICK, time.perf_counter)


def node(gpus: int, faults: str = "", **options: Any) -> NodeResult:
    values: dict[str, Any] = {
        "device": "auto",
        "seconds": 0.02,
        "memory_share": 1e-4,
        "timeout_seconds": 20.0,
        **options,
    }
    environment = {**os.environ, "GPUS": str(gpus), "FAULTS": faults, "CUDA_VISIBLE_DEVICES": ""}
    return check_node(CheckOptions(**values), WORKER, environment)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_all_sums_are_whole_numbers_that_every_format_holds(pattern: Pattern) -> None:
    assert pattern.left_most * pattern.right_most * DEPTH_MAX < 2**22
    left = np.frombuffer(pattern.left(512), np.int8)
    right = np.frombuffer(pattern.right(512), np.int8)
    assert (left.min(), left.max()) == (-pattern.left_most, pattern.left_most)
    assert (right.min(), right.max()) == (-pattern.right_most, pattern.right_most)
    assert len(left) == TILE * 512


@pytest.mark.parametrize("backend", [NumpyBackend(128, 256), TorchBackend("cpu", 128, 256)], ids=["numpy", "torch"])
def test_a_good_machine_passes(backend: Backend) -> None:
    result = checked(backend)
    assert result.good
    assert result.passes >= 12
    assert result.memory_bytes > 0
    assert all(kind.seconds > 0 and kind.tflops > 0 for kind in result.kinds)


def test_numpy_and_torch_give_the_same_bits() -> None:
    assert checked(NumpyBackend(128, 256)).digest == checked(TorchBackend("cpu", 128, 256)).digest


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_the_product_equals_that_of_whole_numbers(kind: str) -> None:
    backend = NumpyBackend(128, 256)
    for pattern in PATTERNS:
        problem = backend.prepare(pattern, kind)
        exact = problem.left.astype(np.int64) @ problem.right.astype(np.int64)
        assert (backend.multiply(problem) == exact).all()


@pytest.mark.parametrize("fault", ["element", "nan", "bit"])
def test_a_single_wrong_element_is_found(fault: str) -> None:
    result = checked(Faulty(fault))
    assert not result.good
    assert 1 <= result.wrong_elements <= result.passes


def test_a_wrong_word_of_memory_is_found() -> None:
    result = checked(Faulty("word"))
    assert (result.wrong_words, result.good) == (4, False)


def test_a_node_of_good_gpus_passes_with_a_result_for_each() -> None:
    result = node(4)
    assert result.status == "passed"
    assert [(one.index, one.uuid, one.status) for one in result.devices] == [
        (number, f"GPU-{number}", "passed") for number in range(4)
    ]
    assert "GPU 3 GPU-3 Testing GPU: passed" in render(result)


@pytest.mark.parametrize(
    ("fault", "message"),
    [("driver", "illegal memory access"), ("die", "by signal 11"), ("element", "")],
)
def test_one_bad_gpu_fails_the_node_and_no_other_gpu(fault: str, message: str) -> None:
    result = node(3, f"1={fault}")
    assert result.status == "failed"
    assert [one.status for one in result.devices] == ["passed", "failed", "passed"]
    assert message in result.devices[1].problem


def test_a_gpu_that_hangs_is_killed_and_has_failed() -> None:
    begun = time.monotonic()
    result = node(2, "0=hang", timeout_seconds=4.0)
    assert time.monotonic() - begun < 10
    assert [one.status for one in result.devices] == ["failed", "passed"]
    assert "did not finish within 4 s" in result.devices[0].problem


def test_a_driver_that_hangs_has_failed() -> None:
    result = node(2, "list=hang", timeout_seconds=1.0)
    assert (result.status, result.devices) == ("failed", [])
    assert "did not list its GPUs within 1 s" in result.problems[0]


def test_a_file_system_that_hangs_says_nothing_of_the_gpus() -> None:
    result = node(2, "loading=hang", loading_seconds=2.0)
    assert [one.status for one in result.devices] == ["could_not_run", "could_not_run"]
    assert result.status == "could_not_run"
    assert "not loaded in time" in result.devices[0].problem


def test_a_gpu_that_gives_other_bits_than_its_peers_is_reported() -> None:
    assert node(3, "2=bit").problems == ["GPU 2 gives other results than the other GPUs of its model (Testing GPU)"]


def test_a_slow_gpu_is_reported_and_fails_only_on_request() -> None:
    reported = node(3, "1=slow")
    assert reported.status == "passed"
    assert reported.devices[1].slow is not None
    assert reported.devices[1].slow > 2
    failed = node(3, "1=slow", slow_ratio=2.0)
    assert failed.devices[1].status == "failed"


def test_a_missing_gpu_fails_the_node() -> None:
    assert node(3, gpus_expected=4).problems == ["3 of 4 GPUs are there"]
    assert node(0, gpus_expected=4).status == "failed"
    assert node(3, gpus_expected=4).status == "failed"


def test_a_node_without_gpus_checks_its_processor_unless_gpus_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    assert node(0).status == "passed"
    assert node(0).devices[0].index is None
    assert node(0, device="cuda").status == "could_not_run"
    monkeypatch.setenv("CANNOT_LOOK", "torch cannot be imported")
    assert node(0, gpus_expected=4).status == "could_not_run"
    assert node(0, device="cuda").problems == ["GPUs cannot be checked: torch cannot be imported"]


def test_a_node_with_a_driver_and_without_usable_gpus_fails_when_gpus_are_requested(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CUDA fails to initialise without its fabric manager, and torch finds no GPU."""
    monkeypatch.setattr(command, "WORKER", WORKER)
    monkeypatch.setattr(command, "NVIDIA", tmp_path)
    monkeypatch.setenv("GPUS", "0")
    assert main(["--gpus", "8"]) == 1
    assert "problem: 0 of 8 GPUs are there" in capsys.readouterr().out
    assert main([]) == 2


def test_a_gpu_that_was_listed_and_cannot_be_used_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    answer = run("cuda", QUICK)
    assert (answer.failure, answer.cannot_run) == ("the driver lists it, but CUDA cannot use it", "")


def test_gpus_are_not_counted_when_the_processor_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "WORKER", WORKER)
    assert main(["--device", "cpu", "--gpus", "8", "--seconds", "0.02", "--memory", "0.0001"]) == 0


def test_gpus_are_selected_as_slurm_allocated_them() -> None:
    environment = {**os.environ, "GPUS": "2", "FAULTS": "5=element", "CUDA_VISIBLE_DEVICES": "3,5"}
    order = CheckOptions("auto", 0.02, 1e-4, 20.0)
    assert [one.status for one in check_node(order, WORKER, environment).devices] == ["passed", "failed"]


def test_the_command_checks_this_machine_and_prints_json() -> None:
    command_line = [
        sys.executable,
        "-m",
        "understudy_agent.entry",
        "selfcheck",
        "--json",
        "--device",
        "cpu",
        "--seconds",
        "0.1",
    ]
    done = subprocess.run(
        [*command_line, "--memory", "0.001"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    (device,) = printed["devices"]
    assert (printed["status"], device["result"]["wrong_elements"]) == ("passed", 0)
    assert {"passes", "wrong_words", "seconds", "kinds", "digest"} <= device["result"].keys()


@pytest.mark.parametrize(
    "arguments", [["--memory", "2"], ["--gpus", "none"], ["--seconds", "0"], ["--inject", "fault"]]
)
def test_an_invalid_argument_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
