"""A whole site under attack at every inlet, for seconds; `make fuzz` goes on for as long as one likes, and is strict
about time. See tests/fuzz/whole.py.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.fuzz.whole import attack

pytestmark = pytest.mark.integration

SECONDS = 6.0
PATIENCE = 10.0
"""Other tests run beside this one: an answer may take ten times as long as it may otherwise."""


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True)
def test_a_site_under_attack_serves_all_others(database: str) -> None:
    with tempfile.TemporaryDirectory(prefix="understudy-fuzz-") as name:  # the paths of sockets are short
        folder = Path(name)
        folder.chmod(0o755)
        assert "clean" in attack("test", database, folder, 38, SECONDS, PATIENCE)
