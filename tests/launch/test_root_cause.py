"""What the last lines of a failed rank name as the cause."""

from __future__ import annotations

from tests import REPOSITORY
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
