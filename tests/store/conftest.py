from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.new_database import new_database
from understudy_controlplane.store.database import open_database


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    yield engine
    engine.dispose()
