"""What several files of these tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.keeper.site import KeeperSite


@pytest.fixture
def site(tmp_path: Path) -> Iterator[KeeperSite]:
    made = KeeperSite(tmp_path)
    try:
        yield made
    finally:
        made.close()
