"""Tracebacks of ranks that lost their connection to another are shortened; whatever else is written is unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.testbed.configuration import free_ports
from understudy_launcher.follow_up_errors import HELD_BYTES_MAX, Fold

GLOO = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:23263. This is typically caused by a remote worker crashing."
)
NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, remote "
    "process exited or there was a network error, NCCL version 2.21.5"
)
BEGIN = "Traceback (most recent call last):"
FRAMES = ('  File "t.py", line 7, in <module>', "    dist.all_reduce(x)")
LIBRARY = (
    '  File "/opt/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper',
    "    return func(*args, **kwargs)",
    "           ^^^^^^^^^^^^^^^^^^^^^",
)
WATCHDOG = (
    "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 3. Original reason for failure was: "
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600000 ms"
)


def traceback(error: str, prefix: str = "") -> str:
    return "".join(f"{prefix}{line}\n" for line in (BEGIN, *FRAMES, *LIBRARY, error))


def shown(*pieces: str) -> str:
    fold = Fold()
    return (b"".join(fold.feed(piece.encode()) for piece in pieces) + fold.end()).decode()


@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
@pytest.mark.parametrize("error", [GLOO, NCCL])
def test_of_a_broken_connection_the_error_and_the_line_of_the_program_are_shown(error: str, prefix: str) -> None:
    note = f"{prefix}understudy: the connection to another rank broke; of its traceback, lines left out: 4\n"
    frame = "".join(f"{prefix}{line}\n" for line in FRAMES)
    assert shown("step 3\n", traceback(error, prefix), "bye\n") == f"step 3\n{note}{frame}{prefix}{error}\nbye\n"


def test_without_a_frame_of_the_program_the_last_one_is_shown() -> None:
    text = "\n".join((BEGIN, *LIBRARY, *LIBRARY, GLOO, ""))
    assert shown(text).splitlines()[1:] == [*LIBRARY, GLOO]


def test_further_lines_of_such_an_error_are_left_out() -> None:
    more = "ncclRemoteError: A call failed possibly due to a network error.\nLast error:\nsocket: closed\n"
    assert shown(traceback(NCCL), more).endswith(f"{NCCL}\nsocket: closed\n")


@pytest.mark.parametrize(
    "text",
    [
        traceback("ValueError: bad sample 17"),
        traceback("torch.OutOfMemoryError: CUDA out of memory"),
        traceback("ConnectionResetError: [Errno 104] Connection reset by peer"),
        traceback("KeyboardInterrupt"),
        traceback(WATCHDOG),
        traceback("ValueError: bad\n\nDuring handling of the above exception, another exception occurred:\n"),
        f"{BEGIN}\n{FRAMES[0]}\n",
        BEGIN,
        f"{GLOO}\n",
        f"[rank1]: {BEGIN}\n[rank2]: {GLOO}\n",
        f"{BEGIN}\n" + f"{FRAMES[0]}\n" * 3000 + f"{GLOO}\n",
    ],
)
def test_any_other_text_passes_unchanged(text: str) -> None:
    assert shown(text) == text
    assert shown(*text) == text, "byte after byte"


def test_a_progress_bar_is_shown_at_once() -> None:
    fold = Fold()
    assert [fold.feed(one) for one in (b"\r 10%", b"\r 20%", b"Tra", b"in\n")] == [
        b"\r 10%",
        b"\r 20%",
        b"Tra",
        b"in\n",
    ]


def test_a_traceback_that_does_not_end_is_held_up_to_a_size() -> None:
    fold = Fold()
    assert fold.feed(f"{BEGIN}\n".encode()) == b""
    assert len(fold.feed(b"  File a\n" * HELD_BYTES_MAX)) > HELD_BYTES_MAX


def test_many_short_lines_take_no_more_time_than_few_long_ones() -> None:
    def seconds(line: bytes) -> float:
        fold = Fold()
        fold.feed(f"{BEGIN}\n".encode())
        begun = time.thread_time()
        fold.feed(line * (HELD_BYTES_MAX // len(line) - 100))
        return time.thread_time() - begun

    assert seconds(b"\n") < 1000 * max(seconds(b" " * 63 + b"\n"), 0.0005)


PIECES = st.sampled_from([*traceback(GLOO), *traceback("ValueError: x"), traceback(GLOO), traceback(NCCL), "\r", " 5%"])


@given(st.lists(PIECES | st.text(max_size=20), max_size=30), st.integers(1, 40))
def test_how_the_text_is_cut_into_pieces_changes_nothing(pieces: list[str], size: int) -> None:
    text = "".join(pieces)
    assert shown(*(text[at : at + size] for at in range(0, len(text), size))).replace("\r", "") == shown(text).replace(
        "\r", ""
    )


@pytest.mark.integration
def test_of_a_real_gang_only_the_rank_that_failed_shows_its_traceback(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.barrier()\nif dist.get_rank() == 1:\n    raise ValueError('bad sample 17')\n"
        "dist.all_reduce(torch.ones(4))\n"
    )
    gang = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports(1)[0]), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, program], stderr=subprocess.PIPE, text=True, env=os.environ | gang | {"RANK": str(rank)}
        )
        for rank in range(2)
    ]
    victim, failed = (shown(rank.communicate(timeout=120)[1]) for rank in ranks)
    assert "Traceback" not in victim and "Connection closed by peer" in victim
    assert "dist.all_reduce(torch.ones(4))" in victim
    assert "ValueError: bad sample 17" in failed and "Traceback" in failed
