"""Readers, recorded outputs and tests of the inputs of the world exist, and every input has one."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.world import WORLD, Input, input_kinds

KINDS = input_kinds()
INPUTS = [one for kind in KINDS for one in kind.input]
CASES = [one for kind in KINDS for one in kind.case]


@pytest.mark.parametrize("one", INPUTS, ids=lambda one: one.what[:40])
def test_an_input_has_a_reader_and_what_is_recorded_of_it_exists(one: Input) -> None:
    module, _, name = one.reader.partition(":")
    attrgetter(name)(import_module(module))
    assert [place for place in one.recorded.values() if not _exists(place)] == []
    assert one.read or one.recorded or one.imagined


def test_a_case_has_a_file_a_source_and_a_test() -> None:
    assert [one.file for one in CASES if not ((WORLD / one.file).exists() and one.source)] == []
    assert [one.test for one in CASES if not ("::" in one.test and _exists(one.test))] == []


def test_every_input_of_the_world_is_a_case_or_a_recorded_output() -> None:
    named = [WORLD / one.file for one in CASES]
    named += [REPOSITORY / place for one in INPUTS for place in one.recorded.values()]
    files = [path for path in WORLD.rglob("*") if path.is_file() and path.parent != WORLD]
    assert [str(path) for path in files if not any(path == one or one in path.parents for one in named)] == []


def _exists(place: str) -> bool:
    """A place is a file, or a test as pytest names it."""
    file, _, test = place.partition("::")
    path: Path = REPOSITORY / file
    return path.exists() and (not test or f"def {test.rpartition('::')[2]}(" in path.read_text())
