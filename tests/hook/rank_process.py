"""A rank of a training job, by a fork of a process that has imported PyTorch: 0.1 s of processor time instead of four.

Belongs here: what runs in that fork, and nothing that it does not need: a user's program has few modules of this
project. `understudy` is not among those imported before, so a program imports it as everywhere else.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

IMPORTED = ["torch", "torch.distributed", "torch._dynamo"]
"""Optimizers and DistributedDataParallel import the last one. None of them looks at a rank's environment."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
"""No library starts a thread when it is imported: threads do not survive a fork."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(IMPORTED)


def start(program: Path, argument: Path, environment: Mapping[str, str], output: Path) -> multiprocessing.Process:
    """Starts like `python PROGRAM ARGUMENT` in the program's folder. Standard output and error go to `output`."""
    with mock.patch.dict(os.environ, ENVIRONMENT):
        forkserver.ensure_running()
    process = _context.Process(target=_run, args=(str(program), str(argument), dict(environment), str(output)))
    process.start()
    return process  # type: ignore[return-value]  # typeshed has a class of its own for each way to start


def _run(program: str, argument: str, environment: dict[str, str], output: str) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.environ.clear()
    os.environ.update(environment)
    folder = str(Path(program).parent)
    os.chdir(folder)
    sys.path[:0] = [folder, *environment.get("PYTHONPATH", "").split(":")]
    sys.argv = [program, argument]
    try:
        runpy.run_path(program, run_name="__main__")
    finally:
        # A child of multiprocessing ends without them; a program of its own runs what it registered.
        atexit._run_exitfuncs()
        sys.stdout.flush()
