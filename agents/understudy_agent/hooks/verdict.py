"""The verdict file: whether the control plane allows a new job to start here. The Prolog reads it.

One line, `good TIME` or `bad TIME REASON`; TIME is when the control plane answered, in whole seconds. The Prolog
ignores a verdict that is older than half a minute: without an agent or a control plane every job starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from understudy_agent.own_files import replace_file

REFRESH_SECONDS = 2.0
MODE = 0o644
"""The Prolog runs as slurmd's user, which need not be root. There is nothing secret in it."""
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
            replace_file(self._path, _line(unfit, int(now)).encode(), MODE)
        except OSError as error:
            self._problem = f"the verdict for the Prolog cannot be written: {error}; jobs start without one"
        else:
            self._written, self._problem = (unfit, now), ""

    def problems(self) -> list[str]:
        return [self._problem] if self._problem else []


def _line(unfit: str, at: int) -> str:
    if not unfit:
        return f"good {at}\n"
    reason = " ".join("".join(character if character.isprintable() else " " for character in unfit).split())
    ascii_reason = reason.encode("ascii", "replace").decode()
    return f"bad {at} {ascii_reason[:REASON_CHARACTERS_MAX]}\n"
