"""What is multiplied: matrices of small whole numbers, made from a seed, the same on every machine.

All products and all sums on the way are whole numbers below 2**22. Every floating-point format in use keeps them
exactly, in whatever order they are added: every good machine gets the same bits, and a single wrong bit is a fault.
Results in sixteen bits are that exact number, rounded once.

The left matrix repeats its rows and the right one its columns every TILE, so the product repeats a tile that the host
can compute by itself with whole numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

TILE = 64


@dataclass(frozen=True, slots=True)
class Pattern:
    """Numbers from -`most` to `most` on either side."""

    name: str
    left_most: int
    right_most: int

    def left(self, depth: int) -> bytearray:
        """TILE rows of `depth` signed bytes."""
        return _numbers(f"{self.name} left", TILE * depth, self.left_most)

    def right(self, depth: int) -> bytearray:
        """`depth` rows of TILE signed bytes."""
        return _numbers(f"{self.name} right", TILE * depth, self.right_most)


PATTERNS = (
    Pattern("signs", 1, 1),
    Pattern("small", 8, 8),
    Pattern("wide", 127, 3),  # seven bits and a sign, as in bfloat16
)

DEPTH_MAX = 8192
"""127 * 3 * 8192 is below 2**22."""


def _numbers(seed: str, count: int, most: int) -> bytearray:
    """Bytes of a hash, brought into range: two's complement."""
    span = 2 * most + 1
    table = bytes((value % span - most) & 0xFF for value in range(256))
    return bytearray(hashlib.shake_256(seed.encode()).digest(count).translate(table))
