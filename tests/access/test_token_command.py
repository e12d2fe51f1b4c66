"""`understudy token` works on the database, where no control plane runs yet."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select

from understudy_controlplane.access.secret import digest_of
from understudy_controlplane.cli.main import root
from understudy_controlplane.fleet.identity import Role
from understudy_controlplane.store import tables
from understudy_controlplane.store.database import open_database
from understudy_controlplane.store.tokens import NewToken, TokenStore


@pytest.fixture
def config(tmp_path: Path, database: str) -> Path:
    path = tmp_path / "controlplane.toml"
    path.write_text(f'cluster = "c"\n[server]\ndatabase = "{database}"\n')
    return path


def run(*arguments: str | Path, status: int = 0) -> str:
    done = CliRunner().invoke(root, ["token", *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.stdout


def listed(config: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("list", "--json", "--config", config))
    return found


def test_a_token_is_shown_once_and_stored_as_its_digest(config: Path, database: str, tmp_path: Path) -> None:
    secret = run("create", "--role", "operator", "--label", "alice", "--config", config).strip()
    assert len(secret) > 43
    engine = open_database(database)
    with engine.connect() as connection:
        rows = [connection.execute(select(table)).all() for table in (tables.token, tables.audit)]
    engine.dispose()
    files = b"".join(path.read_bytes() for path in tmp_path.glob("fleet.db*"))
    assert secret not in str(rows) and secret.encode() not in files
    assert digest_of(secret) in str(rows)
    (token,) = listed(config)
    assert (token["role"], token["label"], token["node"], token["revoked_at"]) == ("operator", "alice", "", None)
    assert secret not in run("list", "--config", config)


def test_sessions_are_listed_and_end_with_their_token(config: Path, database: str) -> None:
    run("create", "--role", "viewer", "--label", "alice", "--config", config)
    (token,) = listed(config)
    session = NewToken("x", Role.VIEWER, "alice", "", token["made_at"], "login", token["expires_at"], token["id"])
    engine = open_database(database)
    TokenStore(engine).add([session])
    engine.dispose()
    assert f"viewer, session of {token['id']}" in run("list", "--config", config)
    run("revoke", token["id"], "--config", config)
    assert all(one["revoked_at"] for one in listed(config))


def test_a_token_of_a_node_names_it_and_no_other_does(config: Path) -> None:
    run("create", "--role", "node", "--label", "x", "--config", config, status=2)
    run("create", "--role", "viewer", "--label", "x", "--node", "n1", "--config", config, status=2)
    run("create", "--role", "viewer", "--config", config, status=2)
    assert listed(config) == []
    run("create", "--role", "node", "--node", "n1", "--config", config)
    assert [(one["node"], one["label"]) for one in listed(config)] == [("n1", "n1")]


def test_the_file_of_a_token_is_its_owners_and_replaces_none(config: Path, tmp_path: Path) -> None:
    file = tmp_path / "operator.token"
    options = ("--role", "operator", "--label", "alice", "--file", file, "--config", config)
    assert run("create", *options) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_text()
    run("create", *options, status=2)
    assert (file.read_text(), len(listed(config))) == (before, 1)


def test_tokens_are_revoked_by_id_by_label_and_by_node(config: Path) -> None:
    for role, label in (("viewer", "alice"), ("operator", "alice"), ("viewer", "bob")):
        run("create", "--role", role, "--label", label, "--config", config)
    run("create", "--role", "node", "--node", "n1", "--config", config)
    run("revoke", "--config", config, status=2)
    run("revoke", "--label", "carol", "--config", config, status=1)
    run("revoke", "--label", "alice", "--config", config)
    run("revoke", "3", "--config", config)
    run("revoke", "--node", "n1", "--config", config)
    assert all(one["revoked_at"] and one["revoked_by"] for one in listed(config))


def test_a_database_that_cannot_be_used_is_named_without_its_password(tmp_path: Path) -> None:
    config = tmp_path / "controlplane.toml"
    config.write_text('cluster = "c"\n[server]\ndatabase = "postgresql://me:correct-horse@127.0.0.1:one/x"\n')
    done = CliRunner().invoke(root, ["token", "list", "--config", str(config)])
    assert done.exit_code == 1
    assert "correct-horse" not in done.output
    assert "cannot be used" in done.output


def test_programs_get_json(config: Path, tmp_path: Path) -> None:
    made = json.loads(run("create", "--role", "viewer", "--label", "x", "--json", "--config", config))
    assert (made["role"], made["label"], len(made["token"]) > 43) == ("viewer", "x", True)
    file = tmp_path / "a.token"
    made = json.loads(run("create", "--role", "viewer", "--label", "y", "--file", file, "--json", "--config", config))
    assert (made["file"], "token" in made) == (str(file), False)
    assert json.loads(run("enroll", "n1", "--json", "--config", config))["node"] == "n1"
    assert json.loads(run("revoke", "--label", "x", "--json", "--config", config)) == {"revoked": [1], "barred": None}
    assert json.loads(run("revoke", "--node", "n1", "--json", "--config", config))["barred"] == "n1"
    assert json.loads(run("allow", "n1", "--json", "--config", config)) == {"node": "n1", "was_barred": True}
