"""What a piece of work leaves that only a search for reference cycles can free: an exception that is kept in a local
name keeps its frame, and with it all that the frame has read.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress


def garbage_of(work: Callable[[], object]) -> int:
    """Objects that it leaves the second time, when all that is made once is there."""
    with suppress(Exception):
        work()
    gc.collect()
    gc.disable()
    try:
        with suppress(Exception):
            work()
        return gc.collect()
    finally:
        gc.enable()
