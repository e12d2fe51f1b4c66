from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from understudy_controlplane.store.database import open_database


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = open_database(database)
    yield engine
    engine.dispose()
