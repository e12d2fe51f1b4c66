"""What a gang's ranks report of their training, together."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import builders as b
from understudy_controlplane.fleet import training
from understudy_controlplane.fleet.job import expected_mfu
from understudy_controlplane.fleet.steps import StepTable
from understudy_wire.hardware import Gpu
from understudy_wire.ranks import Training


def table(*reported: Training, replicas: tuple[int, ...] = (), ranks: int = 4) -> StepTable:
    made = b.step_table([[0.1]] * ranks)
    return replace(made, training=dict(enumerate(reported)), replicas=np.array(replicas, np.int64))


def of(name: str) -> training.GpusOf:
    def gpus(_node: str) -> list[Gpu]:
        return [b.gpu(0, name=name)]

    return gpus


def test_nothing_is_known_of_a_gang_that_reports_nothing() -> None:
    gang = table()
    assert training.step_seconds(gang) is None
    assert training.loss(gang) is None
    assert training.grad_norm(gang) is None
    assert training.tokens_per_second(gang) is None
    assert training.mfu(gang, of("NVIDIA H100 80GB HBM3")) is None


def test_loss_is_a_mean_and_the_step_that_of_the_usual_rank() -> None:
    gang = table(Training(loss=2.0, grad_norm=0.5), Training(loss=4.0, grad_norm=0.5), Training(loss=None))
    gang = replace(gang, wall_seconds=np.array([1.0, 1.0, 9.0, np.nan], np.float32))
    assert (training.loss(gang), training.grad_norm(gang), training.step_seconds(gang)) == (3.0, 0.5, 1.0)


def test_ranks_of_one_replica_report_the_same_tokens() -> None:
    reported = [Training(tokens_per_second=1000.0)] * 4
    assert training.tokens_per_second(table(*reported)) == 4000.0
    assert training.tokens_per_second(table(*reported, replicas=(0, 0, 1, 1))) == 2000.0
    assert training.tokens_per_second(table(*reported, replicas=(0, 0, -1, -1))) == 3000.0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", 0.4),
        ("NVIDIA H100 PCIe", 0.4 * 989 / 756),
        ("NVIDIA GH200 480GB", 0.4),
        ("NVIDIA GB200", 0.4 * 989 / 2500),
        ("NVIDIA A100-SXM4-80GB", 0.4 * 989 / 312),
        ("NVIDIA H20", 0.4 * 989 / 148),
        ("NVIDIA H200", 0.4),
        ("NVIDIA GB300", 0.4 * 989 / 2500),
        ("NVIDIA B300 SXM6 AC", 0.4 * 989 / 2250),
        ("NVIDIA L40S", 0.4 * 989 / 362),
        ("Tesla T4", None),
        ("", None),
    ],
)
def test_mfu_is_what_the_model_needs_of_what_the_gpus_could_do(name: str, expected: float | None) -> None:
    reported = [Training(tokens_per_second=1000.0, flops_per_token=0.4 * 989e9)] * 4
    found = training.mfu(table(*reported), of(name))
    assert found == (None if expected is None else pytest.approx(expected))
    unknown = table(*reported[:3], Training(tokens_per_second=1.0))
    assert training.mfu(unknown, of(name)) is None, "what a token of one rank needs"


def test_mfu_of_a_rank_is_that_of_its_replica_on_all_its_gpus() -> None:
    h100 = of("NVIDIA H100 80GB HBM3")
    reported = [Training(tokens_per_second=1000.0, flops_per_token=0.4 * 989e9)] * 4
    alone = training.mfu_of_ranks(table(*reported), h100, range(1, 9))
    assert alone == {rank: pytest.approx(0.4) for rank in (1, 2, 3)}
    gang = table(*reported[:3], Training(), replicas=(0, 0, 1, 1))
    assert training.mfu_of_ranks(gang, h100, range(4)) == {rank: pytest.approx(0.2) for rank in range(4)}
    assert training.mfu_of_ranks(gang, of("Tesla T4"), range(4)) == {}
    assert training.mfu_of_ranks(table(ranks=4), h100, range(4)) == {}


def test_the_documents_have_what_each_gpu_can_do_and_its_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "straggler.md").read_text()
    rows = re.findall(r"^\| ([A-Z0-9][\w ,]*) \| ([\d,]+) TFLOPS \| (.+) \|$", text, re.MULTILINE)
    shown = {name: float(flops.replace(",", "")) * 1e12 for names, flops, _ in rows for name in names.split(", ")}
    assert shown == training.PEAK_FLOPS


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("understudy mfu=0.4", 0.4),
        ("understudy,mfu=0.25", 0.25),
        ("understudy mfu=40", None),
        ("understudy mfu=1.4", None),
        ("understudy", None),
    ],
)
def test_a_job_names_the_mfu_that_it_expects_in_its_comment(comment: str, expected: float | None) -> None:
    assert expected_mfu(comment) == expected
