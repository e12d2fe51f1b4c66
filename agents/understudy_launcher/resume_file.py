"""Whether the checkpoint is there from which a program continues only where its arguments say so.

Looked up once for each launch, by the launcher: if each rank looked for itself, a file system that lags would split the
gang.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from pathlib import Path

LOOK_SECONDS_MAX = 5.0
"""A cold file server takes seconds."""


def look_for(file: Path) -> str | None:
    """When it was written, in words; None: it is not there. Where the file system does not answer, it may
    be there: a program that begins again would write over it, and one that cannot continue fails.
    """
    answer: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(_look(file)), name="resume file", daemon=True).start()
    try:
        return answer.get(timeout=LOOK_SECONDS_MAX)
    except queue.Empty:
        return "its file system does not answer"


def _look(file: Path) -> str | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - it may be a folder
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or str(error)
    return f"written {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(found.st_mtime))}"
