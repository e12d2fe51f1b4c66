"""Looks at something again and again while a stage puts load on it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import TypeVar

END_SECONDS = 5.0
"""A look may hang on a device that fails: nothing waits for it for longer."""

Own = TypeVar("Own", bound="Watch")


class Watch(ABC):
    """Looks while it is entered, and once more at the end."""

    def __init__(self, look_seconds: float) -> None:
        self._look_seconds = look_seconds
        self._over = threading.Event()
        self._looking = threading.Thread(target=self._run, daemon=True)

    @abstractmethod
    def look(self) -> None: ...

    def __enter__(self: Own) -> Own:
        self._looking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._looking.join(END_SECONDS)

    def _run(self) -> None:
        over = False
        while not over:
            over = self._over.wait(self._look_seconds)
            self.look()
