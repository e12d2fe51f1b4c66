"""Waits for what other threads and processes do. A test that waits here promises no time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

PATIENCE_SECONDS = 60.0 if os.nice(0) < 19 else 240.0
"""What takes an instant on a quiet machine may take seconds beside other tests. A wait that ends so late is a hang.
At the lowest priority, as the stage `patient` runs, it may take longer: others come first.
"""


def wait_until(
    condition: Callable[[], Result], what: str | Callable[[], str] = "", seconds: float = PATIENCE_SECONDS
) -> Result:
    """The first true result of `condition`. `what` says what was waited for, or shows why it did not come."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what if isinstance(what, str) else what()}"
        time.sleep(0.01)
    return result


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 - other threads and processes change it
            await asyncio.sleep(0.005)
