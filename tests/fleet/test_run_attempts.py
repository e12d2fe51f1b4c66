"""What of a training is other than in the attempt before."""

from __future__ import annotations

import pytest

from tests import builders as b
from understudy_controlplane.fleet.job import Attempt
from understudy_controlplane.fleet.run_attempts import RunAttempt, changes


def test_what_is_not_known_of_an_attempt_has_not_changed() -> None:
    key = b.job().key
    attempts = [
        RunAttempt(key, Attempt(3), "commit b", "file 2", "corpus 3"),
        RunAttempt(key, Attempt(2), "commit a", "file 1", ""),
        RunAttempt(key, Attempt(1), "", "file 1", "corpus 2"),
    ]
    assert [changed for _, changed in changes(attempts)] == [("code", "config"), (), ()]
    assert changes([]) == []


@pytest.mark.parametrize(
    ("before", "now", "is_same"),
    [
        ("commit a", "commit a files 1", True),  # a file system was slow
        ("commit a files 1 changed", "commit b files 1", True),  # it is committed since
        ("commit a files 1 changed", "commit a files 1", True),
        ("commit a files 1", "commit b files 2", False),
        ("commit a files 1 changed", "commit a files 2 changed", False),
        ("commit a files 1", "commit b", False),
        ("script 1", "script 2", False),
        ("script 1", "commit 1 files 1", False),
    ],
)
def test_code_is_the_same_where_its_files_are_and_else_where_its_commit_is(
    before: str, now: str, is_same: bool
) -> None:
    for codes in ((before, now), (now, before)):
        attempts = [RunAttempt(b.job().key, Attempt(number), code, "", "") for number, code in enumerate(codes)]
        assert changes(attempts)[0][1] == (() if is_same else ("code",))
