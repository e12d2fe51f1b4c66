"""What computes: one protocol, implemented by `numpy_backend` and `torch_backend`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol

from understudy_selfcheck.patterns import Pattern

WORDS_PATTERNS = (0x0000000000000000, 0x5555555555555555, -0x5555555555555556, -1)
"""Written over memory and read back, exclusive-or'ed with each word's own address: none, 01…, 10… and all bits."""


HOST_MEMORY_BYTES_MAX = 2**28
"""Other processes need the host's memory, too."""


class CannotRun(Exception):
    """The check cannot run here, which is no fault of the device. The message has what is missing."""


class Problem(Protocol):
    """Two matrices on the device, and what their product must be."""

    @property
    def flops(self) -> float: ...


class Backend(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def device_name(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Number formats, such as "float32"."""

    def prepare(self, pattern: Pattern, kind: str) -> Problem: ...

    def multiply(self, problem: Any) -> Any:
        """Returns when the product is complete."""

    def wrong(self, problem: Any, product: Any) -> int:
        """How many elements of the product are wrong, as the device itself counts them."""

    def fetch(self, problem: Any, product: Any) -> tuple[int, str]:
        """The same, counted by the host, and a checksum of all bytes of the product."""

    def memory_bytes(self, share: float) -> int:
        """How much of the memory that is free now may be tested."""

    def wrong_words(self, size_bytes: int, pattern: int) -> int:
        """Writes `size_bytes` of memory and reads them back; returns how many words of eight bytes were wrong."""


def host_memory_bytes(share: float) -> int:
    """How much of the host's free memory may be tested."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(free * share, HOST_MEMORY_BYTES_MAX))


def stretches(words: int, at_once: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the ranges that cover `words`, each of at most `at_once`."""
    for begin in range(0, words, at_once):
        yield begin, min(begin + at_once, words)
