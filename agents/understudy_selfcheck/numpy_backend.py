"""The processor, with numpy: for a node without GPUs and without torch."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from understudy_selfcheck.backend import host_memory_bytes, stretches
from understudy_selfcheck.patterns import TILE, Pattern

WORDS_AT_ONCE = 2**20


@dataclass(frozen=True, slots=True)
class NumpyProblem:
    left: npt.NDArray[Any]
    right: npt.NDArray[Any]
    tile: npt.NDArray[Any]  # of the product, in its format
    flops: float


class NumpyBackend:
    name = "numpy"
    uuid = ""
    kinds = ("float32", "float64")

    def __init__(self, size: int = 512, depth: int = 1024) -> None:
        self._size, self._depth = size, depth
        self.device_name = f"CPU {platform.processor() or platform.machine()}"

    def prepare(self, pattern: Pattern, kind: str) -> NumpyProblem:
        left = np.frombuffer(pattern.left(self._depth), np.int8).reshape(TILE, self._depth)
        right = np.frombuffer(pattern.right(self._depth), np.int8).reshape(self._depth, TILE)
        tile = left.astype(np.int64) @ right.astype(np.int64)
        times = self._size // TILE
        return NumpyProblem(
            np.tile(left, (times, 1)).astype(kind),
            np.tile(right, (1, times)).astype(kind),
            tile.astype(kind),
            2.0 * self._size * self._size * self._depth,
        )

    def multiply(self, problem: NumpyProblem) -> npt.NDArray[Any]:
        return np.asarray(problem.left @ problem.right)

    def wrong(self, problem: NumpyProblem, product: npt.NDArray[Any]) -> int:
        # Not "differs": NaN differs from itself, and must count once.
        times = self._size // TILE
        blocks = product.reshape(times, TILE, times, TILE)
        return int((~(blocks == problem.tile[None, :, None, :])).sum())

    def fetch(self, problem: NumpyProblem, product: npt.NDArray[Any]) -> tuple[int, str]:
        return self.wrong(problem, product), hashlib.sha256(np.ascontiguousarray(product).tobytes()).hexdigest()

    def memory_bytes(self, share: float) -> int:
        return host_memory_bytes(share)

    def wrong_words(self, size_bytes: int, pattern: int) -> int:
        words = np.empty(size_bytes // 8, np.int64)
        for begin, end in stretches(len(words), WORDS_AT_ONCE):
            words[begin:end] = np.arange(begin, end) ^ np.int64(pattern)
        return sum(
            int((words[begin:end] ^ np.int64(pattern) != np.arange(begin, end)).sum())
            for begin, end in stretches(len(words), WORDS_AT_ONCE)
        )
