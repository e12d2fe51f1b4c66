"""The revisions of the schema."""

from __future__ import annotations

import pytest
from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, inspect, text

from understudy_controlplane.store import tables
from understudy_controlplane.store.database import MIGRATIONS, StoreError, can_use, migrate, newest_revision

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


@pytest.mark.parametrize("revision", ["0001", "0042", "9999"])
def test_a_database_of_another_release_or_an_earlier_build_says_what_to_do(engine: Engine, revision: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    with pytest.raises(
        StoreError, match=r"by another release, or by a build before 0\.3\.0 .*begin with a new database"
    ):
        migrate(engine)


@pytest.mark.parametrize(
    ("revision", "usable"),
    [
        ("0100", True),
        ("0200from0100", True),
        ("0300from0100", True),
        ("0300from0200", False),
        ("0200", False),
        ("0200from", False),
    ],
)
def test_a_newer_schema_is_used_where_it_only_adds_to_the_one_of_this_release(
    engine: Engine, revision: str, usable: bool
) -> None:
    assert newest_revision() == "0100", "the revisions of this test are newer ones"
    assert can_use(revision) is usable
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :revision"), {"revision": revision})
    if not usable:
        with pytest.raises(StoreError, match="by another release"):
            migrate(engine)
        return
    migrate(engine)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == revision


def test_a_command_upgrades_no_database_on_which_a_control_plane_may_work(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0099'"))
    with pytest.raises(StoreError, match="the control plane of this one upgrades it"):
        migrate(engine, upgrades=False)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar() == "0099"
