"""What happened, written twice: a line for people on stderr, a JSON object a line for programs (`--events`).

Belongs here: writing both. Must not: deciding what is worth reporting.
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

    def report(self, event: str, message: str, **fields: object) -> None:
        """Never fails: a full disk is no reason to stop a training job."""
        now = time.time()
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        _write(sys.stderr, f"understudy: {at} {message}\n")
        self.note(event, at=now, message=message, **fields)

    def note(self, event: str, **fields: object) -> None:
        """Writes only the JSON line."""
        if self._file is not None:
            _write(self._file, json.dumps({"event": event, "at": time.time(), **fields}) + "\n")


def _write(file: TextIO, line: str) -> None:
    try:
        file.write(line)
        file.flush()
    except OSError:
        pass
