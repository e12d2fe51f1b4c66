"""Host memory that a GPU reads and writes by itself, at the full speed of its link: the driver has pinned it, so that
its pages stay where they are (cudaHostRegister of the CUDA runtime).
"""

from __future__ import annotations

from typing import Any

import torch

from .never_raise import warn_once


class Pin:
    """Pins one memory at a time. Where the driver pins none, copies work all the same, slower."""

    def __init__(self, driver: Any = None) -> None:
        """`driver` stands for the CUDA runtime in tests."""
        self._driver = driver
        self._of: torch.Tensor | None = None  # keeps the memory mapped

    def hold(self, memory: memoryview) -> None:
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        before = self._of
        if before is not None and (before.data_ptr(), before.numel()) == (whole.data_ptr(), whole.numel()):
            return
        self.release()
        runtime: Any = torch.cuda  # its types lack cudart()
        driver = self._driver = self._driver or runtime.cudart()
        code = int(driver.cudaHostRegister(whole.data_ptr(), whole.numel(), 0))
        if code == 0:
            self._of = whole
        else:
            warn_once("pin", "the driver pins no memory for saves (CUDA error %d): they take longer", code)

    def release(self) -> None:
        if self._of is not None:
            self._driver.cudaHostUnregister(self._of.data_ptr())
            self._of = None
