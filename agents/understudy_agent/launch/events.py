"""What happened, told twice: a line for people on stderr, an object a line for programs (`--events`).

Belongs here: writing it down. Must not: deciding what is worth telling.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO


class Events:
    def __init__(self, path: Path | None) -> None:
        """Raises OSError where the file cannot be written."""
        self._path = path
        self._file = path.open("a", encoding="utf-8") if path else None

    def tell(self, what: str, words: str, **fields: object) -> None:
        """Never fails: a full disk is no reason to stop a training."""
        now = time.time()
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        _write(sys.stderr, f"understudy: {at} {words}\n")
        self.note(what, at=now, words=words, **fields)

    def note(self, what: str, **fields: object) -> None:
        """For programs alone."""
        if self._file is not None:
            _write(self._file, json.dumps({"what": what, "at": time.time(), **fields}) + "\n")


def _write(file: TextIO, line: str) -> None:
    try:
        file.write(line)
        file.flush()
    except OSError:
        pass
