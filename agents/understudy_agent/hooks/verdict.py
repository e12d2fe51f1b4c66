"""The verdict file: whether the control plane allows a new job to start here. The Prolog reads it.

One line, `good TIME` or `bad TIME REASON`; TIME is when the control plane answered, in whole seconds. The Prolog
ignores a verdict that is older than half a minute: without an agent or a control plane every job starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

REFRESH_SECONDS = 2.0
REASON_CHARACTERS_MAX = 200


class VerdictFile:
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._written: tuple[str, float] | None = None
        self._problem = ""

    def note(self, unfit: str) -> None:
        """Called with each answer of the control plane; `unfit` is why no new job may start here, empty: no objection.

        Writes a new verdict at once, and the same one again every REFRESH_SECONDS.
        """
        now = self._clock()
        if self._written is not None:
            written, at = self._written
            if written == unfit and 0 <= now - at < REFRESH_SECONDS:
                return
        try:
            self._write(_line(unfit, int(now)).encode())
        except OSError as error:
            self._problem = f"the verdict for the Prolog cannot be written: {error}; jobs start without one"
        else:
            self._written, self._problem = (unfit, now), ""

    def _write(self, line: bytes) -> None:
        unfinished = self._path.with_name(f".{self._path.name}.new")
        try:
            unfinished.write_bytes(line)
        except FileNotFoundError:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(line)
        unfinished.replace(self._path)

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []


def _line(unfit: str, at: int) -> str:
    if not unfit:
        return f"good {at}\n"
    reason = " ".join("".join(character if character.isprintable() else " " for character in unfit).split())
    ascii_reason = reason.encode("ascii", "replace").decode()
    return f"bad {at} {ascii_reason[:REASON_CHARACTERS_MAX]}\n"
