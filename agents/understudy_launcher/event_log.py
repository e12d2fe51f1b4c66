"""What happened, written twice: a line for people on stderr, a JSON object a line for programs (`--events`)."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from understudy_launcher.slow_files import LateText


class Events:
    def __init__(self, path: Path | None) -> None:
        """Raises OSError where the file cannot be written."""
        self._file = LateText(path.open("a", encoding="utf-8")) if path else None
        self.stderr = LateText(sys.stderr)

    def report(self, event: str, message: str, **fields: object) -> None:
        """Never waits, and never fails (`slow_files.py`)."""
        now = time.time()
        at = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        self.stderr.write(f"understudy: {at} {message}\n")
        self.note(event, at=now, message=message, **fields)

    def note(self, event: str, **fields: object) -> None:
        """Writes only the JSON line."""
        if self._file is not None:
            self._file.write(json.dumps({"event": event, "at": time.time(), **fields}) + "\n")

    def close(self) -> None:
        """Waits a little until all is written."""
        for one in (self.stderr, self._file):
            if one is not None:
                one.close()
