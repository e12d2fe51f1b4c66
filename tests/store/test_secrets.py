"""The database file belongs to its owner alone, and its password appears in no message."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests import builders as b
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.app import Outside
from understudy_controlplane.config import ConfigError
from understudy_controlplane.serve import compose_alone
from understudy_controlplane.store.database import open_database, without_secrets

PASSWORD = "correct-horse-battery"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_its_owner_reads_the_database(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        engine = open_database(f"sqlite:///{tmp_path}/new/fleet.db")
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE t (x)")
            files = {path.name: mode(path) for path in (tmp_path / "new").iterdir()}
        engine.dispose()
    finally:
        os.umask(before)
    assert set(files.values()) == {0o600}
    assert "fleet.db-wal" in files
    assert mode(tmp_path / "new") == 0o700


def test_a_database_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "fleet.db"
    open_database(f"sqlite:///{path}").dispose()
    path.chmod(0o644)
    open_database(f"sqlite:///{path}").dispose()
    assert mode(path) == 0o600


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://understudy:{PASSWORD}@127.0.0.1:1/fleet?connect_timeout=1",
        f"postgresql+psycopg://understudy@127.0.0.1:1/fleet?password={PASSWORD}",
        f"postgresql://understudy:{PASSWORD}@127.0.0.1:one/fleet",
        f"nosuchdatabase://understudy:{PASSWORD}@127.0.0.1/fleet",
    ],
)
def test_a_database_that_cannot_be_used_does_not_print_its_password(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = b.config(server={"database": url})
    with pytest.raises(ConfigError, match=r"server\.database") as refused:
        compose_alone(config, Outside(VirtualSlurm(["n1"]), lambda _node: True))
    printed = capfd.readouterr()
    assert PASSWORD not in f"{refused.value}{printed.out}{printed.err}"


def test_the_rest_of_the_url_is_shown() -> None:
    assert without_secrets(f"postgresql://me:{PASSWORD}@db:5432/fleet") == "postgresql://me:***@db:5432/fleet"
    assert without_secrets("sqlite:////var/lib/x.db") == "sqlite:////var/lib/x.db"
