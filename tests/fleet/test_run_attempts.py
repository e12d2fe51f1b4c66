"""What of a training is other than in the attempt before."""

from __future__ import annotations

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
