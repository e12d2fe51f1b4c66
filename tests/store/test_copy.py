"""A database moves from SQLite to PostgreSQL with all that is in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import create_engine, text

from tests import builders as b
from tests.recover.rehearsal import Rehearsal
from understudy_controlplane.cli.main import root
from understudy_controlplane.lease import Leadership
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.database_lock import take_file
from understudy_controlplane.store.facts import FactStore
from understudy_controlplane.store.stores import Stores

if TYPE_CHECKING:
    from tests.testbed.postgres import Postgres

pytestmark = pytest.mark.integration


def copied(source: str, target: str, folder: Path) -> Result:
    file = folder / "controlplane.toml"
    file.write_text(f'cluster = "c"\n[server]\ndatabase = "{source}"\n')
    return CliRunner().invoke(root, ["db", "copy", "--to", target, "--config", str(file), "--json"])


def nodes_in(url: str) -> int:
    engine = create_engine(url)
    with engine.connect() as connection:
        count = connection.execute(text("SELECT count(*) FROM node")).scalar_one()
    engine.dispose()
    return int(count)


@pytest.fixture
def source(tmp_path: Path) -> str:
    """After a recovery: incidents, decisions, plans and steps."""
    rehearsal = Rehearsal(tmp_path)
    rehearsal.fail("n3")
    rehearsal.run_until(rehearsal.ended)
    rehearsal.control_plane.close()
    return rehearsal.config.server.database


def test_a_control_plane_goes_on_with_what_was_copied(source: str, postgres_url: str, tmp_path: Path) -> None:
    result = copied(source, postgres_url, tmp_path)
    assert result.exit_code == 0, result.output
    tables = json.loads(result.stdout)["tables"]
    assert tables["recovery"]["rows"] == 2
    assert tables["node"]["rows"] == 8
    assert len({one["checksum"] for one in tables.values() if one["rows"]}) > 5
    old, new = open_database(source), open_database(postgres_url)
    assert Stores.of(new).fleet.nodes() == Stores.of(old).fleet.nodes()
    assert Stores.of(new).recoveries.newest(10) == Stores.of(old).recoveries.newest(10)
    assert Stores.of(new).incidents.open_incidents() == Stores.of(old).incidents.open_incidents()
    event = b.xid_event("n1", 79, b.NOW, 900).event
    assert FactStore(new).record("n1", [event], b.NOW, lambda _: None) == [], "ids go on after those that were copied"
    for engine in (old, new):
        engine.dispose()
    again = copied(source, postgres_url, tmp_path)
    assert again.exit_code == 1
    assert "the target is not empty" in again.stderr


def test_nothing_is_copied_while_a_control_plane_works_on_either(
    source: str, postgres_url: str, tmp_path: Path
) -> None:
    lock = take_file(source)
    assert "a control plane works on the database; stop it first" in copied(source, postgres_url, tmp_path).stderr
    lock.release()
    lead = Leadership(postgres_url, "a:7117")
    assert lead.wait(lambda _: False, lambda _: None)
    assert "a control plane leads on the target" in copied(source, postgres_url, tmp_path).stderr
    lead.give_up()
    assert nodes_in(postgres_url) == 0


def test_what_postgresql_does_not_take_leaves_the_target_empty(source: str, postgres: Postgres, tmp_path: Path) -> None:
    """SQLite stores a text that is longer than its column."""
    target = postgres.new_database()
    engine = open_database(source)
    with engine.begin() as connection:
        connection.execute(text("UPDATE recovery SET status = :long"), {"long": "x" * 300})
    engine.dispose()
    result = copied(source, target, tmp_path)
    assert result.exit_code == 1
    assert "recovery: PostgreSQL does not take its rows" in result.stderr
    assert nodes_in(target) == 0
    postgres.drop(target)
