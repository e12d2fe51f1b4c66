"""A signal reaches the process that it is meant for, or no process at all."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import replace

import pytest

from tests.testbed.processes import is_running, read_process, signal_process

pytestmark = pytest.mark.integration


def test_a_signal_to_a_process_that_has_just_ended_does_nothing() -> None:
    with subprocess.Popen(["sleep", "60"]) as program:
        seen = read_process(program.pid)
        assert seen is not None
        assert is_running(seen)
        program.kill()
        program.wait()
        signal_process(seen, signal.SIGCONT)
        assert not is_running(seen)


def test_a_signal_spares_a_process_that_got_the_process_id_of_another() -> None:
    with subprocess.Popen(["sleep", "60"]) as program:
        seen = read_process(program.pid)
        assert seen is not None
        signal_process(replace(seen, started_ticks=seen.started_ticks - 1), signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.2)
        signal_process(seen, signal.SIGKILL)
        assert program.wait(10) == -signal.SIGKILL
