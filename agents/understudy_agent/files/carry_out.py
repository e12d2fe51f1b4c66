"""Carries out one task on files, and reports what became of it. Runs as their owner.

The agent starts it as a process of its own (`tasks.py`), with the task on its standard input and the result on its
standard output. It imports nothing but the standard library, `xxhash` where that is installed, and botocore for what is
in an object store.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from understudy_agent.files import object_store
from understudy_agent.files.announced import Finding, Pace
from understudy_agent.files.copy import FULL, copy
from understudy_agent.files.delete import delete
from understudy_agent.files.object_store import SCHEME
from understudy_agent.files.read import read
from understudy_agent.files.rights import MEMORY_BYTES_MAX, bound_memory, take_rights
from understudy_agent.files.warm import warm

TASK_BYTES_MAX = 16 << 20


def carry_out(task: dict[str, Any]) -> dict[str, str]:
    """Never raises: what the system refuses is a result."""
    try:
        outcome, why = _carry_out(task)
    except Finding as found:
        outcome, why = found.outcome, found.why
    except MemoryError:
        outcome, why = "unseen", f"it needs more than {MEMORY_BYTES_MAX >> 20} MiB of memory to look through"
    except OSError as error:
        target = task.get("copy_to") if error.errno in FULL else None
        place = error.filename or target or task.get("path", "files of a program")
        outcome, why = "unseen", f"{error.strerror or type(error).__name__}: {place}"
    return {"outcome": outcome, "why": why}


def _carry_out(task: dict[str, Any]) -> tuple[str, str]:
    if task["type"] == "warm":
        return "warmed", warm(task, Pace(task["bytes_per_second"]))
    in_store = task["path"].startswith(SCHEME)
    folder = Path(task["path"]).parent
    if not in_store and not folder.is_dir():
        raise Finding("unseen", f"{folder} is not there: the file system may not be mounted")
    match task["type"]:
        case "read":
            outcome = (object_store.read if in_store else read)(task, Pace(task["bytes_per_second"]))
        case "copy":
            into_store = task["copy_to"].startswith(SCHEME)
            outcome = (object_store.copy if into_store else copy)(task, Pace(task["bytes_per_second"]))
        case "delete":
            outcome = (object_store.delete if in_store else delete)(task)
        case other:
            raise Finding("unseen", f"this agent carries out no task {other}")
    return outcome, ""


def _end_with_stdin() -> None:
    """The agent wants it no longer, or has ended itself."""
    while os.read(0, 1):
        pass
    os._exit(1)


def main() -> None:
    """Arguments: after how many seconds it ends at the latest, and the rights that it takes."""
    seconds, *rights = map(int, sys.argv[1:])
    signal.alarm(seconds)  # an agent without CAP_KILL cannot end it
    task = sys.stdin.buffer.readline(TASK_BYTES_MAX)
    if task.endswith(b"\n"):
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    bound_memory()
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))  # nothing that a user configures starts a program
    asked = json.loads(task)
    if rights:
        object_store.prepare(asked)
        take_rights(*rights)
    os.nice(19)
    sys.stdout.write(json.dumps(carry_out(asked)))


if __name__ == "__main__":
    main()
