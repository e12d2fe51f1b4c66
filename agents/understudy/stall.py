"""The training thread's stack when no step has ended for minutes, or when the control plane asks because the gang
stands still: evidence that outlives the restart of a gang.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

STALL_SECONDS = 300.0
FRAMES_MAX = 12
STACK_CHARACTERS_MAX = 512


class StallWatch:
    """The training thread notes its steps; the link's thread looks at it."""

    def __init__(self) -> None:
        self.progressed()

    def progressed(self) -> None:
        """Called by the thread that is watched from then on."""
        self._thread = threading.get_ident()
        self.since = time.monotonic()
        self._looked = self._asked = False

    def ask(self) -> None:
        """The gang is about to be restarted: the stack is shown now, again if it was, once in each stall."""
        if not self._asked:
            self._asked, self._looked = True, False

    def stack(self, now: float) -> str:
        """The innermost frames of the training thread, once in each stall; empty: there is no stall, or it was shown.
        A thread that waits in a library has released the interpreter, and can be looked at.
        """
        if self._looked or (not self._asked and now - self.since < STALL_SECONDS):
            return ""
        self._looked = True
        return _shown(sys._current_frames().get(self._thread))


def _shown(frame: FrameType | None) -> str:
    frames: list[str] = []
    while frame is not None and len(frames) < FRAMES_MAX:
        code = frame.f_code
        frames.append(f"{os.path.basename(code.co_filename)}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return " < ".join(frames)[:STACK_CHARACTERS_MAX]
