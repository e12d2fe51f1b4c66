"""One call to Slurm that changes something. It may take long, and nothing else waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Effect:
    """Runs in a thread of its own, which does not keep the process alive: its outcome is read back from Slurm."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._run, name="effect", daemon=True).start()

    def is_over(self, within_seconds: float) -> bool:
        return self._over.wait(within_seconds)

    def check(self) -> None:
        """Raises what the call has raised."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            self._act()
        except BaseException as error:  # noqa: BLE001 - `check` raises it again, in the thread of the loop
            self._error = error
        finally:
            self._over.set()
