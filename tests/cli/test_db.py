"""`understudy db` checks, prunes and copies the database while a control plane works on it."""

from __future__ import annotations

import json
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests import builders as b
from tests.new_database import new_database
from understudy_controlplane.cli.main import root
from understudy_controlplane.ingest.answers import refuse_for_error
from understudy_controlplane.store.database import StoreError, cause_of, open_database
from understudy_controlplane.store.facts import FactStore

YEARS_AGO = 1_000_000.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Configuration of a database with three kernel events of years ago."""
    url = new_database(tmp_path / "fleet.db")
    engine = open_database(url)
    for sequence in range(3):
        event = b.xid_event("n1", 79, YEARS_AGO, sequence).event
        FactStore(engine).record("n1", [event], YEARS_AGO, lambda _: None)
    engine.dispose()
    file = tmp_path / "controlplane.toml"
    file.write_text(f'cluster = "c"\n[server]\ndatabase = "{url}"\n')
    return file


def db(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(root, ["db", *arguments, "--config", str(config)])


def events(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM kernel_event").fetchone()[0])


class TestPrune:
    def test_counts_and_deletes_nothing_in_a_dry_run(self, config: Path) -> None:
        result = db(config, "prune", "--dry-run", "--json")
        assert json.loads(result.stdout) == {"dry_run": True, "rows": {"kernel_event": 2}}
        assert events(config.with_name("fleet.db")) == 3

    def test_deletes_what_it_counted(self, config: Path) -> None:
        assert json.loads(db(config, "prune", "--json").stdout)["rows"] == {"kernel_event": 2}
        assert events(config.with_name("fleet.db")) == 1
        assert "no record is old enough" in db(config, "prune").stdout


class TestCheck:
    def test_a_whole_database_is_found_whole(self, config: Path) -> None:
        result = db(config, "check")
        assert (result.exit_code, result.stdout) == (0, "the database is whole\n")

    def test_a_reference_to_nothing_is_found(self, config: Path) -> None:
        with closing(sqlite3.connect(config.with_name("fleet.db"))) as connection:
            connection.execute("INSERT INTO suspicion VALUES ('n1', 'slow', 0)")
            connection.commit()
        result = db(config, "check", "--json")
        (found,) = json.loads(result.stdout)["problems"]
        assert (result.exit_code, "of suspicion names a row of node that does not exist" in found) == (1, True)

    def test_a_damaged_page_is_found(self, config: Path) -> None:
        file = config.with_name("fleet.db")
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            page, size = connection.execute(
                "SELECT rootpage, 4096 FROM sqlite_master WHERE name = 'ix_decision_at'"
            ).fetchone()
        content = bytearray(file.read_bytes())
        content[(page - 1) * size : page * size] = b"\xff" * size
        file.write_bytes(content)
        result = db(config, "check")
        assert (result.exit_code, "integrity: " in result.stdout) == (1, True), result.output

    def test_a_schema_of_another_release_is_found_and_left_alone(self, config: Path) -> None:
        file = config.with_name("fleet.db")
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '0000'")
            connection.commit()
        result = db(config, "check")
        assert (result.exit_code, "schema 0000, and this release has" in result.stdout) == (1, True)
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("0000",)

    def test_a_database_that_is_not_there_is_not_made(self, config: Path) -> None:
        config.with_name("fleet.db").unlink()
        assert (db(config, "check").exit_code, config.with_name("fleet.db").exists()) == (1, False)


class TestBackup:
    def test_is_whole_while_the_database_is_written(self, config: Path, tmp_path: Path) -> None:
        """Each transaction writes two rows: a copy with one of them would not be of one moment."""
        file, stop = config.with_name("fleet.db"), threading.Event()
        with closing(sqlite3.connect(file)) as connection:
            connection.execute("CREATE TABLE pair (n INTEGER)")

        def write() -> None:
            with closing(sqlite3.connect(file)) as connection:
                for number in range(100_000):
                    if stop.is_set():
                        return
                    connection.executemany("INSERT INTO pair VALUES (?)", [(number,), (number,)])
                    connection.commit()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            results = [db(config, "backup", str(tmp_path / f"copy{number}.db")) for number in range(5)]
        finally:
            stop.set()
            thread.join()
        assert [result.exit_code for result in results] == [0] * 5
        for number in range(5):
            copy = tmp_path / f"copy{number}.db"
            assert stat.S_IMODE(copy.stat().st_mode) == 0o600
            with closing(sqlite3.connect(copy)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                assert connection.execute("SELECT COUNT(*) % 2 FROM pair").fetchone() == (0,)
            assert events(copy) == 3

    def test_never_replaces_a_file(self, config: Path, tmp_path: Path) -> None:
        target = tmp_path / "copy.db"
        target.write_text("of last week")
        result = db(config, "backup", str(target))
        assert (result.exit_code, target.read_text()) == (1, "of last week")
        assert "exists; name a new file" in result.stderr

    def test_that_cannot_be_written_leaves_nothing(self, config: Path, tmp_path: Path) -> None:
        result = db(config, "backup", str(tmp_path / "missing" / "copy.db"))
        assert (result.exit_code, "no backup was written" in result.stderr) == (1, True)

    def test_of_postgresql_is_made_by_its_own_program(self, config: Path, tmp_path: Path) -> None:
        config.write_text('cluster = "c"\n[server]\ndatabase = "postgresql+psycopg://a@h/n"\n')
        result = db(config, "backup", str(tmp_path / "copy.db"))
        assert (result.exit_code, "pg_dump" in result.stderr) == (1, True)


def test_a_full_disk_is_named_with_what_to_do_and_no_other_error_shows_what_the_database_reported(
    tmp_path: Path,
) -> None:
    engine = open_database(new_database(tmp_path / "fleet.db"))
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")  # as much as it has: no page more
        with pytest.raises(StoreError) as full:
            connection.exec_driver_sql("CREATE TABLE one (a)")
        with pytest.raises(StoreError) as other:
            connection.exec_driver_sql("SELECT a FROM none")
    engine.dispose()
    assert cause_of(full.value) == "the database: database or disk is full; make room where `server.database` lies"
    assert cause_of(other.value) == "the database: no such table: none"
    refused, failed = refuse_for_error(full.value), refuse_for_error(other.value)
    assert (refused.status_code, failed.status_code) == (503, 500)
    assert b"disk of the database is full" in refused.body
    assert b"none" not in failed.body
