"""Checks one device: every number format with every pattern, repeatedly, and its memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import msgspec

from understudy_selfcheck.backend import WORDS_PATTERNS, Backend
from understudy_selfcheck.patterns import PATTERNS

ROUNDS_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is tested. Each format and pattern is multiplied at least twice, however long that takes."""

    seconds: float = 3.0
    memory_share: float = 0.25


class KindResult(msgspec.Struct, frozen=True):
    kind: str
    passes: int
    wrong_elements: int
    seconds: float  # of one multiplication: the median
    tflops: float


class Result(msgspec.Struct, frozen=True):
    """The result of one device."""

    passes: int
    wrong_elements: int  # of all products together
    memory_bytes: int
    wrong_words: int
    seconds: float  # of the whole check
    digest: str  # of all first products: the same on every good device of a model
    kinds: list[KindResult]

    @property
    def good(self) -> bool:
        return self.wrong_elements == 0 and self.wrong_words == 0


def check(backend: Backend, extent: Extent, clock: Callable[[], float]) -> Result:
    begun = clock()
    digest = hashlib.sha256()
    kinds = [_multiply(backend, kind, extent.seconds / len(backend.kinds), clock, digest) for kind in backend.kinds]
    size = backend.memory_bytes(extent.memory_share)
    wrong_words = sum(backend.wrong_words(size, pattern) for pattern in WORDS_PATTERNS) if size else 0
    return Result(
        passes=sum(one.passes for one in kinds),
        wrong_elements=sum(one.wrong_elements for one in kinds),
        memory_bytes=size,
        wrong_words=wrong_words,
        seconds=clock() - begun,
        digest=digest.hexdigest(),
        kinds=kinds,
    )


def _multiply(
    backend: Backend, kind: str, seconds: float, clock: Callable[[], float], digest: hashlib._Hash
) -> KindResult:
    problems = [backend.prepare(pattern, kind) for pattern in PATTERNS]
    wrong, times = 0, []
    begun = clock()
    for problem in problems:  # each once, checked by the host; the first of a format is slow, and not timed
        counted, checksum = backend.fetch(problem, backend.multiply(problem))
        wrong += counted
        digest.update(checksum.encode())
    for turn in range(ROUNDS_MAX):
        if turn >= len(problems) and clock() - begun >= seconds:
            break
        problem = problems[turn % len(problems)]
        started = clock()
        product = backend.multiply(problem)
        times.append(clock() - started)
        wrong += backend.wrong(problem, product)
    middle = median(times)
    tflops = problems[0].flops / middle / 1e12 if middle > 0 else 0.0
    return KindResult(kind, len(problems) + len(times), wrong, middle, tflops)
