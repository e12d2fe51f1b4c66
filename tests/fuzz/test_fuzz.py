"""No input that a user, a rank, a launcher, a kernel or an agent sends breaks what reads it.

Inputs that once reached new lines, or broke a target, are kept in tests/data/fuzz and tried each time, with some
changed ones. `python -m tests.fuzz` goes on for as long as one likes; `make long` gives each target ten minutes.
"""

from __future__ import annotations

import pytest

from tests.fuzz.fuzzer import DefectError, Fuzzer, Target
from tests.fuzz.targets import TARGETS

EXECUTIONS = 150


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_what_reads_it(name: str) -> None:
    fuzzer = Fuzzer(TARGETS[name], seed=1)
    fuzzer.run(executions=EXECUTIONS)
    assert fuzzer.executions >= EXECUTIONS


def test_a_defect_behind_a_condition_is_found_and_named() -> None:
    """A fuzzer without coverage does not find it within these executions."""

    def fragile(content: bytes) -> None:
        depth = _depth(content)
        assert depth < 4, "too deep"

    target = Target("fragile", fragile, (b"....",), ("tests/fuzz/test_fuzz.py",))
    with pytest.raises(DefectError, match="AssertionError: too deep"):
        Fuzzer(target, seed=3).run(executions=20_000)


def _depth(content: bytes) -> int:
    if content[:1] != b"[":
        return 0
    if content[1:2] != b'"':
        return 1
    if b"\xff" not in content:
        return 2
    if b"999" not in content:
        return 3
    return 4
