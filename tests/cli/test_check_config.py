"""`understudy check-config` tries what the configuration names. A problem has cause, remedy and exit code 2."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests import builders as b
from tests.cli.conftest import Served
from tests.new_database import new_database
from tests.simulator.slurm import VirtualSlurm
from understudy_controlplane.cli.check_config import tried
from understudy_controlplane.cli.main import root
from understudy_controlplane.config import Config, ConfigError, parse_config
from understudy_controlplane.config import Slurm as Policy
from understudy_controlplane.config.section import Section
from understudy_controlplane.slurm.choose import Choice
from understudy_controlplane.slurm.protocol import SlurmUnavailable


def test_where_a_key_of_the_whole_file_belongs_is_named_if_it_is_below_a_section() -> None:
    with pytest.raises(ConfigError, match=r"'spares\.mode'; 'mode' belongs above the first \[section\]"):
        parse_config('cluster = "c"\n[spares]\nmode = "act"', "controlplane.toml")


class OtherCluster(VirtualSlurm):
    def cluster_name(self) -> str:
        return "production"


class SilentSlurm(VirtualSlurm):
    def cluster_name(self) -> str:
        raise SlurmUnavailable("slurmctld does not answer")


def chosen(slurm: VirtualSlurm | None = None) -> Callable[[Policy], Choice]:
    return lambda _policy: Choice(slurm or VirtualSlurm(["n1"]), "cli", "a test")


def problems(config: Config, slurm: VirtualSlurm | None = None) -> dict[str, str]:
    return {check.name: check.detail for check in tried(config, chosen(slurm)) if not check.ok}


@pytest.fixture
def usable(tmp_path: Path) -> dict[str, Any]:
    return {"port": 0, "database": new_database(tmp_path / "fleet.db")}


def test_a_configuration_that_can_be_used_has_no_problem(usable: dict[str, Any]) -> None:
    config = b.config(server=usable | {"node_addresses": {"n1": ["127.0.0.1"]}})
    found = {check.name: check.detail for check in tried(config, chosen())}
    assert problems(config) == {}
    assert found["slurm"] == "cluster testbed, 1 node, by cli"
    assert "can be opened" in found["server.database"]


def test_the_file_alone_is_checked_before_a_reload_and_nothing_is_tried(tmp_path: Path) -> None:
    path = tmp_path / "controlplane.toml"
    path.write_text('cluster = "testbed"\n[server]\ndatabase = "sqlite:////nowhere/fleet.db"\n')
    done = CliRunner().invoke(root, ["check-config", "--file-only", "--config", str(path)])
    assert (done.exit_code, done.output) == (0, f"good  {path}: cluster testbed, mode observe\n")
    path.write_text("cluster = 7\n")
    assert CliRunner().invoke(root, ["check-config", "--file-only", "--config", str(path)]).exit_code == 2


DATABASES = [
    ("nonsense", "the URL cannot be read"),
    ("oracle://host/x", "its driver"),
    ("sqlite:////etc/passwd/fleet.db", "/etc/passwd is no folder"),
    ("postgresql+psycopg://me:correct-horse@127.0.0.1:1/x", "refused"),
]


@pytest.mark.parametrize(("url", "cause"), DATABASES)
def test_a_database_that_cannot_be_used_is_named_with_its_real_error_and_no_password(
    usable: dict[str, Any], url: str, cause: str
) -> None:
    detail = problems(b.config(server=usable | {"database": url}))["server.database"]
    assert cause in detail
    assert "; " in detail
    assert "correct-horse" not in detail
    assert "sqlalche.me" not in detail


def test_a_file_that_is_no_database_is_refused(usable: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is no database\n" * 100)
    detail = problems(b.config(server=usable | {"database": f"sqlite:///{tmp_path}/text.db"}))["server.database"]
    assert "file is not a database" in detail
    assert (tmp_path / "text.db").read_text().startswith("this is no database"), "it is left as it was"


def test_a_database_that_this_user_may_not_write_is_refused(
    usable: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _mode: path != tmp_path)
    assert (
        f"this user may not write {tmp_path}; run this as the" in problems(b.config(server=usable))["server.database"]
    )


def test_a_database_that_is_not_there_yet_is_not_made(usable: dict[str, Any], tmp_path: Path) -> None:
    assert problems(b.config(server=usable | {"database": f"sqlite:///{tmp_path}/new/fleet.db"})) == {}
    assert not (tmp_path / "new").exists()


def test_files_of_receivers_are_read_and_nothing_is_sent(usable: dict[str, Any], tmp_path: Path) -> None:
    def found(url: str, key: str = "0123456789abcdef", mode: int = 0o600) -> dict[str, str]:
        for name, text in (("url", url), ("key", key)):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(mode)
        hook = {"kind": "webhook", "url_file": tmp_path / "url", "secret_file": tmp_path / "key"}
        notify = {"receivers": {"hook": hook}, "owners_url_file": tmp_path / "url"}
        return problems(b.config(server=usable, notify=notify))

    assert found("https://tickets.example.org/x") == {}
    assert "has no address of HTTP" in found("mailto://x")["notify.receivers.hook.url_file"]
    assert "has 2 addresses" in found("https://a.example\nhttps://b.example")["notify.owners_url_file"]
    assert "is empty" in found("https://a.example", key=" ")["notify.receivers.hook.secret_file"]
    assert "is open to all users" in found("https://a.example", mode=0o604)["notify.receivers.hook.secret_file"]


def test_a_port_that_is_taken_is_named(usable: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        other.settimeout(5.0)

        def disconnect() -> None:
            other.accept()[0].close()

        thread = threading.Thread(target=disconnect)
        thread.start()
        detail = problems(b.config(server=usable | {"port": port}))["server.host, server.port"]
        thread.join()
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use; `ss -ltnp" in detail


def test_a_port_of_every_address_may_be_free(usable: dict[str, Any]) -> None:
    assert problems(b.config(server=usable | {"host": "::", "port": 0})) == {}


def test_a_host_that_can_have_no_address_is_named(usable: dict[str, Any]) -> None:
    found = problems(b.config(server=usable | {"host": "no..name"}))
    assert "'no..name' is no host name; set an address of this host" in found["server.host, server.port"]


@pytest.mark.integration
def test_the_control_plane_itself_may_have_the_port(usable: dict[str, Any], observing: Served) -> None:
    port = int(observing.url.rpartition(":")[2])
    assert problems(b.config(server=usable | {"port": port})) == {}


def test_slurm_is_read(usable: dict[str, Any]) -> None:
    config = b.config(server=usable)
    assert "this host's Slurm is the cluster 'production', not 'testbed'" in problems(config, OtherCluster([]))["slurm"]
    assert "slurmctld does not answer; `scontrol ping`" in problems(config, SilentSlurm([]))["slurm"]


@pytest.mark.parametrize(
    ("addresses", "cause"),
    [
        ({"n9": ["127.0.0.1"]}, "Slurm has no node 'n9'"),
        ({"n1": ["no..name"]}, "'no..name' of n1 has no address; write an IP address"),
    ],
)
def test_addresses_of_nodes_are_looked_up(usable: dict[str, Any], addresses: dict[str, list[str]], cause: str) -> None:
    assert cause in problems(b.config(server=usable | {"node_addresses": addresses}))["slurm"]


def test_files_and_receivers_that_are_not_there_are_named(usable: dict[str, Any], tmp_path: Path) -> None:
    missing = {"tls_certificate": str(tmp_path / "a.pem"), "tls_key": str(tmp_path / "a.key")}
    server = usable | missing | {"munge_socket": str(tmp_path / "munge")}
    found = problems(b.config(server=server))
    assert "No such file" in found["server.tls_certificate"]
    assert "is no socket of munged; start munged" in found["server.munge_socket"]


@pytest.mark.integration  # it looks for a Python with pyslurm
def test_the_command_prints_each_check_and_ends_with_2(tmp_path: Path, usable: dict[str, Any]) -> None:
    path = tmp_path / "controlplane.toml"
    path.write_text(
        f'cluster = "c"\n[server]\nport = 0\ndatabase = "{usable["database"]}"\n[slurm]\ngateway = "pyslurm"\n'
        'pyslurm_python = "/nowhere/python"\n'
    )
    printed = CliRunner().invoke(root, ["check-config", "--config", str(path)])
    assert printed.exit_code == 2
    assert f"good  {path}: cluster c, mode observe" in printed.output
    assert "WRONG slurm: cannot be read: " in printed.output
    checks = json.loads(CliRunner().invoke(root, ["check-config", "--json", "--config", str(path)]).output)
    assert [check["ok"] for check in checks] == [True, True, True, True, False]


def settings(section: type[BaseModel]) -> dict[str, FieldInfo]:
    fixed = section.FIXED if issubclass(section, Section) else frozenset()
    return {name: field for name, field in section.model_fields.items() if name not in fixed}


def fields(section: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in settings(section).items():
        key = (*prefix, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields(field.annotation, key)
        else:
            yield key


def bounds(section: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Each setting with limits, with a number outside of them."""
    for name, field in settings(section).items():
        key = (*prefix, field.alias or name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from bounds(field.annotation, key)
        for limit in field.metadata:
            low, high = (
                getattr(limit, "ge", getattr(limit, "gt", None)),
                getattr(limit, "le", getattr(limit, "lt", None)),
            )
            if isinstance(low, int | float):
                yield key, str(low - 1)
            if isinstance(high, int | float):
                yield key, str(high + 1)


KEYS = list(fields(Config))


@pytest.mark.parametrize("key", KEYS, ids=".".join)
@pytest.mark.parametrize("value", ["{ wrong = { wrong = [] } }", "[[]]"], ids=["table", "list"])
def test_each_key_with_a_value_of_another_kind_is_named_with_cause_and_remedy(key: tuple[str, ...], value: str) -> None:
    cluster = "" if key == ("cluster",) else 'cluster = "c"\n'
    with pytest.raises(ConfigError) as caught:
        parse_config(f"{cluster}{section_of(key)}{key[-1]} = {value}\n", "site.toml")
    lines = str(caught.value).splitlines()
    assert all(line.startswith("site.toml: ") and ".".join(key) in line and "; " in line for line in lines), lines


def section_of(key: tuple[str, ...]) -> str:
    return f"[{'.'.join(key[:-1])}]\n" if key[1:] else ""


@pytest.mark.parametrize(
    ("key", "value"), list(bounds(Config)), ids=lambda one: ".".join(one) if isinstance(one, tuple) else one
)
def test_each_number_outside_its_bounds_is_named_with_them(key: tuple[str, ...], value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(f'cluster = "c"\n{section_of(key)}{key[-1]} = {value}\n', "site.toml")
    assert f"site.toml: {'.'.join(key)} = {value}: has to be " in str(caught.value)
    assert "; set another value" in str(caught.value)


def test_a_value_that_may_hold_a_password_is_not_shown() -> None:
    with pytest.raises(ConfigError, match=r"server\.database: has to be a valid string") as caught:
        parse_config('cluster = "c"\n[server]\ndatabase = ["postgresql://me:correct-horse@x"]', "site.toml")
    assert "correct-horse" not in str(caught.value)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("/nowhere/provider", "there is no such program; install it there"),
        ("no-such-program-of-a-provider", "there is no such program"),
        ("{}/folder", "there is no such program"),
        ("{}/plain", "this user may not run it; `chmod +x {}/plain`"),
        ("{}/whole", ""),
        ("sh", ""),
    ],
)
def test_the_providers_program_is_looked_for_and_not_run(
    usable: dict[str, Any], tmp_path: Path, program: str, problem: str
) -> None:
    (tmp_path / "folder").mkdir()
    for name, mode in (("plain", 0o644), ("whole", 0o755)):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        (tmp_path / name).chmod(mode)
    command = program.format(tmp_path)
    found = problems(b.config(server=usable, provider={"command": f"{command} --token=secret"}))
    assert found.keys() == ({"provider.command"} if problem else set())
    assert problem.format(tmp_path) in found.get("provider.command", "")
    assert "secret" not in str(found)
    assert not (tmp_path / "ran").exists()
