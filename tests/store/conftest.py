from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine

from tests.new_database import new_database
from understudy_controlplane.store.database import open_database

if TYPE_CHECKING:
    from tests.testbed.postgres import Postgres


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.integration)])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database of the newest schema, of each kind that is supported."""
    if request.param == "sqlite":
        yield new_database(tmp_path / "fleet.db")
        return
    yield request.getfixturevalue("postgres_url")


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    engine = open_database(database)
    yield engine
    engine.dispose()
