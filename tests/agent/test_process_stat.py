"""What the kernel shows of a process is read the same everywhere, whatever its program is called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from understudy_wire.process_stat import read_stat

NAMED = """
import ctypes
ctypes.CDLL(None).prctl(15, b") S 1 (x\\n", 0, 0, 0)  # PR_SET_NAME
print("ready", flush=True)
input()
"""


@pytest.mark.integration
def test_the_name_of_a_program_shifts_no_field() -> None:
    with subprocess.Popen([sys.executable, "-c", NAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdin is not None and program.stdout is not None and program.stdout.readline() == b"ready\n"
        stat = read_stat(Path(f"/proc/{program.pid}/stat"))
        program.stdin.write(b"\n")
        program.stdin.close()
        program.wait()
    assert stat.command.startswith(") S 1 (x")
    assert (stat.parent, stat.threads, stat.has_ended) == (os.getpid(), 1, False)
    with pytest.raises(FileNotFoundError):
        read_stat(Path(f"/proc/{program.pid}/stat"))


def test_a_zombie_has_ended_when_the_last_of_its_threads_has() -> None:
    folder = REPOSITORY / "tests/data/world/gres/proc"
    stat = read_stat(folder / "zombie.stat")
    assert (stat.state, stat.threads, stat.has_ended) == ("Z", 2, False)


def test_a_file_in_another_form_is_an_error_of_reading(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("4711 (train) S 1\n")
    with pytest.raises(OSError, match="not in the form"):
        read_stat(tmp_path / "stat")
