"""A process has ended only when the last of its threads has: a relaunch on its GPUs waits for that."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from understudy_launcher import process_tree

pytestmark = pytest.mark.integration

LEADER_ENDS = """
import ctypes, sys, threading, time
SYS_exit = {"x86_64": 60, "aarch64": 93}[__import__("platform").machine()]
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall(SYS_exit, 0)  # this thread alone
"""


@pytest.fixture
def zombie_leader() -> Iterator[subprocess.Popen[str]]:
    """A process whose first thread has ended, as after a crash in the driver, and whose others have not."""
    program = subprocess.Popen([sys.executable, "-c", LEADER_ENDS], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "ready\n"
    stat = Path(f"/proc/{program.pid}/stat")
    wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
    yield program
    program.kill()
    program.wait()
    program.stdout.close()


def test_a_zombie_whose_threads_live_has_not_ended(zombie_leader: subprocess.Popen[str]) -> None:
    """It keeps the memory of its GPUs (apache/mxnet issue 4242): a launch beside it would find too little."""
    assert zombie_leader.pid in process_tree.below()
    assert process_tree.started_at(zombie_leader.pid) is not None
    zombie_leader.kill()
    wait_until(lambda: zombie_leader.pid not in process_tree.below())
    assert process_tree.started_at(zombie_leader.pid) is None, "nothing of it is left but its status, which is not read"
