"""The revisions of the schema."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect

from understudy_controlplane.store import tables
from understudy_controlplane.store.database import MIGRATIONS, migrate, newest_revision

pytestmark = pytest.mark.integration


def test_the_newest_revision_is_alembics_head() -> None:
    assert newest_revision() == ScriptDirectory(str(MIGRATIONS)).get_current_head()


def test_each_revision_can_be_undone_and_made_again(engine: Engine) -> None:
    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert set(inspect(engine).get_table_names()) == {"alembic_version"}
    migrate(engine)
    assert set(inspect(engine).get_table_names()) == {*tables.metadata.tables, "alembic_version"}
