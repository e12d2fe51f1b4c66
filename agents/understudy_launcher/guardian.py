"""The guardian: the process that Slurm starts, and that starts the launcher again where it is killed.

It keeps what outlives a launcher: its port, its memory, the signals that came meanwhile. It does nothing beside waiting
that can fail or takes memory.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from understudy_launcher.process_tree import become_subreaper
from understudy_launcher.saved_state import LauncherMemory, MemoryFile

QUICK_SECONDS = 60.0
QUICK_ENDS_MAX = 3
"""A launcher that ends for the third time within this time after its start is not started again."""
EXIT_BROKEN = 70


@dataclass(frozen=True, slots=True)
class Inheritance:
    """What a launcher gets from its guardian."""

    server: socket.socket
    signals: socket.socket
    """Gives the number of each signal that the job has received, as a byte. Its end: the guardian is gone."""
    file: MemoryFile
    memory: LauncherMemory | None
    """None: this is the first launcher of the job."""
    why: str = ""
    """How the one before it ended."""


def guard(run: Callable[[Inheritance], int], server: socket.socket, handled: frozenset[signal.Signals]) -> int:
    """Returns the launcher's exit code. `handled`: signals that the launcher gets by its socket."""
    become_subreaper()  # the srun commands of a launcher that is killed become its children
    signals, heard = socket.socketpair()
    signals.setblocking(False)
    heard.setblocking(False)
    for one in handled:
        signal.signal(one, lambda *_: None)
    signal.set_wakeup_fd(heard.fileno(), warn_on_full_buffer=False)
    file, memory, why, quick = MemoryFile(), None, "", 0
    while True:
        began = time.monotonic()
        pid = _start(run, Inheritance(server, signals, file, memory, why), heard, handled)
        status = _wait(pid)
        left = file.read()
        if isinstance(left, int):
            return left
        memory = left
        quick = quick + 1 if time.monotonic() - began < QUICK_SECONDS else 0
        why = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "an error, see above"
        if memory is None or quick >= QUICK_ENDS_MAX:
            sys.stderr.write(f"understudy run: the launcher was ended by {why}; it is not started again\n")
            return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _start(
    run: Callable[[Inheritance], int], inherited: Inheritance, heard: socket.socket, handled: frozenset[signal.Signals]
) -> int:
    """Returns its process id. A signal during the fork is for the guardian alone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        heard.close()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        try:
            inherited.file.write(run(inherited))
        except BaseException:  # noqa: BLE001 - the next launcher goes on
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_BROKEN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    return pid


def _wait(launcher: int) -> int:
    """Collects every child until the launcher has ended."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == launcher:
            return status
