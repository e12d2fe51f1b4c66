"""What the last lines of a failed rank name as the cause."""

from __future__ import annotations

import pytest

from tests import REPOSITORY
from tests.world import WORLD
from understudy_launcher.evidence_findings import cause_line, first_failed

TORCHRUN = (REPOSITORY / "tests/data/world/training/torchrun_failure.txt").read_text()
"""Recorded: torchrun of PyTorch 2.13, two ranks on a node, the second one raises; paths are shortened."""


def test_torchrun_names_the_rank_that_failed_first_and_the_traceback_why() -> None:
    assert first_failed(TORCHRUN) == (1, 1)
    assert cause_line(TORCHRUN) == "ValueError: loss is nan at step 12"
    assert first_failed(TORCHRUN.replace("exitcode  : 1 ", "exitcode  : -9 ")) == (1, -9)


def test_of_several_ranks_the_error_of_the_one_that_failed_first_is_named() -> None:
    text = "[rank9]: ValueError: the cause\n[rank8]: torch.distributed.DistBackendError: a peer is gone\n"
    assert cause_line(text, 9) == "[rank9]: ValueError: the cause"
    assert cause_line(text) == "[rank8]: torch.distributed.DistBackendError: a peer is gone"


def test_a_full_disk_is_named_and_not_what_follows_from_it() -> None:
    text = "OSError: [Errno 28] No space left on device\nRuntimeError: unexpected pos 576 vs 470\n"
    assert cause_line(text) == "OSError: [Errno 28] No space left on device"
    alone = "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 576 vs 470"
    assert cause_line(alone) == f"{alone} (perhaps its disk or quota is full)"


def test_without_an_error_the_last_line_is_named() -> None:
    assert first_failed("Segmentation fault\n") is None
    assert cause_line("loading\nSegmentation fault\n\n") == "Segmentation fault"
    assert cause_line("") == ""


@pytest.mark.parametrize(
    ("file", "first", "cause"),
    [
        (
            "megatron_watchdog",
            None,
            "[PG 1 Rank 7] Process group watchdog thread terminated with exception: [Rank 7] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=199, OpType=_REDUCE_SCATTER_BASE, NumelIn=7098994688, "
            "NumelOut=443687168, Timeout(ms)=600000) ran for 882725 milliseconds before timing out.",
        ),
        ("ecc_then_watchdog", None, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        (
            "nccl_internal_error",
            None,
            "[rank1]: torch.distributed.DistBackendError: NCCL error in: "
            "../torch/csrc/distributed/c10d/NCCLUtils.hpp:317, internal error - "
            "please report this issue to the NCCL developers, NCCL version 2.21.5",
        ),
        (
            "torchrun_of_four",
            (1, 1),
            "traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        ),
        ("torchrun_of_2_5", (0, 1), "=" * 60),
        ("torchrun_of_two_nodes", (4, 1), "=" * 60),
        (
            "accelerate_launch",
            None,
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.75 GiB total "
            "capacity; 13.57 GiB already allocated)",
        ),
    ],
)
def test_a_log_of_another_site_names_its_cause(file: str, first: tuple[int, int] | None, cause: str) -> None:
    text = (WORLD / "training" / f"{file}.txt").read_text()
    assert first_failed(text) == first
    assert cause_line(text) == cause
