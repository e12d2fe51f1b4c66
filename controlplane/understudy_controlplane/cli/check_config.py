"""`understudy check-config`: whether the control plane can use its configuration on this host. It changes nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from understudy_controlplane.cli.options import config_of, config_option, json_option
from understudy_controlplane.cli.output import Check, Exit, end_with
from understudy_controlplane.fleet.counted import counted
from understudy_wire.addresses import is_every

if TYPE_CHECKING:
    from understudy_controlplane.config import Config, Provider
    from understudy_controlplane.config import Slurm as SlurmPolicy
    from understudy_controlplane.slurm.choose import Choice

CONNECT_SECONDS = 3.0


class Wrong(Exception):
    """The message has cause and remedy."""


@click.command("check-config")
@config_option
@click.option("--file-only", is_flag=True, help="Check the file itself, and try nothing.")
@json_option
def check_config(config: Path, file_only: bool, as_json: bool) -> None:
    """Check the configuration, and try what it names: certificate, database, port, Slurm, addresses.

    Run it as the control plane's user. Exits with 2 where the control plane could not work with it.
    """
    from understudy_controlplane.slurm.choose import choose

    loaded = config_of(config)
    checks = [Check(str(config), True, f"cluster {loaded.cluster}, mode {loaded.mode.value}")]
    if not file_only:
        checks += tried(loaded, choose)
    end_with(checks, as_json, Exit.USAGE)


def tried(config: Config, choose: Callable[[SlurmPolicy], Choice]) -> Iterator[Check]:
    from understudy_controlplane.config import ConfigError

    tries: dict[str, Callable[[], str]] = {
        "server.tls_certificate": lambda: _certificate(config),
        "server.database": lambda: _database(config.server.database),
        "server.host, server.port": lambda: _port(config),
        "server.munge_socket": lambda: _munge(config.server.munge_socket),
        "slurm": lambda: _slurm(config, choose),
        "topology.file": lambda: _topology(config.topology.file),
        "topology.infiniband": lambda: _fabric(config.topology.infiniband),
        "provider.command": lambda: _provider(config.provider),
    }
    tries |= _notify(config)
    for name, attempt in tries.items():
        try:
            found = attempt()
        except (Wrong, ConfigError) as problem:
            yield Check(name, False, str(problem).removeprefix(f"{name}: "))
        else:
            if found:
                yield Check(name, True, found)


def _certificate(config: Config) -> str:
    from understudy_controlplane.serve import certificate_of

    files = certificate_of(config)
    return f"{files.certificate} and its key can be used" if files else "none: connections are not encrypted"


def _database(url: str) -> str:
    from understudy_controlplane.store.database import StoreError, look_at, read_url, without_secrets

    shown = without_secrets(url)
    try:
        parsed = read_url(url)
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            _writable(Path(parsed.database))
        return f"{shown} {look_at(url)}"
    except ModuleNotFoundError as error:
        raise Wrong(f"{shown}: its driver {error.name} is not installed; install slurm-understudy[postgres]") from error
    except (OSError, StoreError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        raise Wrong(f"{shown}: cannot be used: {cause}; set the URL of a database that this user may write") from error


def _writable(path: Path) -> None:
    """SQLite writes other files beside the database. A folder that is missing is made at the first start."""
    folder = next(one for one in path.absolute().parents if one.exists())
    if not folder.is_dir():
        raise Wrong(f"{path}: {folder} is no folder; set another path")
    for one in filter(Path.exists, (path, folder)):
        if not os.access(one, os.W_OK):
            raise Wrong(f"{path}: this user may not write {one}; run this as the control plane's user, or set another")


def _port(config: Config) -> str:
    from understudy_controlplane.config import ConfigError
    from understudy_controlplane.serve import listen

    address = f"{config.server.host} port {config.server.port}"
    try:
        sockets = listen(config.server)
    except ConfigError:
        if _control_plane_answers(config):
            return f"the control plane runs on {address}"
        raise
    for one in sockets:
        one.close()
    return f"{address} is free"


def _control_plane_answers(config: Config) -> bool:
    """True if the program on the port answers as a control plane does."""
    import httpx

    host = "localhost" if is_every(config.server.host) else config.server.host
    scheme = "https" if config.server.tls_certificate else "http"
    url = httpx.URL(scheme=scheme, host=host, port=config.server.port, path="/healthz")
    try:
        # It sends nothing and trusts nothing that it reads: the certificate may be for another name.
        answer = httpx.get(url, timeout=CONNECT_SECONDS, trust_env=False, verify=False)  # noqa: S501
        body = answer.json()
    except (httpx.HTTPError, ValueError):
        return False
    return isinstance(body, dict) and "slurm_error" in body


def _munge(path: Path | None) -> str:
    if path is None:
        return ""
    if not path.is_socket():
        raise Wrong(f"{path} is no socket of munged; start munged, or remove the key for MUNGE's default")
    return f"{path} is there"


def _slurm(config: Config, choose: Callable[[SlurmPolicy], Choice]) -> str:
    from understudy_controlplane.slurm.protocol import SlurmError

    try:
        choice = choose(config.slurm)
        name = choice.slurm.cluster_name()
        nodes = {node.name for node in choice.slurm.nodes()}
    except SlurmError as error:
        raise Wrong(f"cannot be read: {error}; `scontrol ping` must print UP here") from error
    if name.casefold() != config.cluster.casefold():  # Slurm ignores case here
        raise Wrong(f"cluster: this host's Slurm is the cluster {name!r}, not {config.cluster!r}; set the right one")
    _addresses(config, nodes)
    return f"cluster {name}, {counted(len(nodes), 'node')}, by {choice.name}"


def _addresses(config: Config, nodes: set[str]) -> None:
    from understudy_controlplane.access.addresses import addresses_of_host

    for node, hosts in config.server.node_addresses.items():
        if node not in nodes:
            raise Wrong(f"server.node_addresses: Slurm has no node {node!r}; write NodeName as slurm.conf has it")
        for host in hosts:
            if not addresses_of_host(host):
                raise Wrong(f"server.node_addresses: {host!r} of {node} has no address; write an IP address")


def _topology(path: Path | None) -> str:
    from understudy_controlplane.observe.site_topology import TopologyFileError
    from understudy_controlplane.observe.topology_reader import site_domains

    if path is None:
        return ""
    try:
        domains = site_domains(path)
    except TopologyFileError as error:
        raise Wrong(str(error)) from error
    nodes = {name for one in domains for name in one.nodes}
    found = f"{counted(len(domains), 'domain')} of {counted(len(nodes), 'node')}"
    return f"{path}: {found}; `understudy topology check` holds it against Slurm"


def _fabric(path: Path | None) -> str:
    from understudy_controlplane.observe.fabric_map import FabricMapError
    from understudy_controlplane.observe.site_topology import TopologyFileError
    from understudy_controlplane.observe.topology_reader import fabric_domains

    if path is None:
        return ""
    try:
        fabric_domains(path, ())
    except (TopologyFileError, FabricMapError) as error:
        raise Wrong(str(error)) from error
    return f"{path} names switches; `understudy topology check` holds it against Slurm"


def _provider(policy: Provider) -> str:
    """Runs nothing: a provider may take a question for a real one."""
    from understudy_controlplane.provider.client import program_of

    if not policy.command:
        return ""
    program = program_of(policy)
    found = shutil.which(program)
    if found is None:
        is_there = "/" in program and Path(program).is_file()
        remedy = f"`chmod +x {program}`" if is_there else "install it there, or write its whole path"
        cause = "this user may not run it" if is_there else "there is no such program"
        raise Wrong(f"{program}: {cause}; {remedy}")
    return f"{found} can be run"


def _notify(config: Config) -> dict[str, Callable[[], str]]:
    """Sends nothing: `understudy notify test` does."""
    tries: dict[str, Callable[[], str]] = {}
    for name, receiver in config.notify.receivers.items():
        tries[f"notify.receivers.{name}.url_file"] = partial(_address, receiver.url_file, receiver.kind.value)
        if receiver.secret_file is not None:
            tries[f"notify.receivers.{name}.secret_file"] = partial(_secret, receiver.secret_file)
    if config.notify.heartbeat_url_file is not None:
        tries["notify.heartbeat_url_file"] = partial(_address, config.notify.heartbeat_url_file, "webhook")
    if config.notify.owners_url_file is not None:
        tries["notify.owners_url_file"] = partial(_address, config.notify.owners_url_file, "apprise")
    for user, path in config.notify.owners_url_files.items():
        tries[f"notify.owners_url_files.{user}"] = partial(_address, path, "apprise")
    return tries


def _address(path: Path, kind: str) -> str:
    from importlib.util import find_spec

    from understudy_controlplane.access.secret_files import SecretError
    from understudy_controlplane.notify.addresses import one_url

    try:
        url = one_url(path)
    except SecretError as error:
        raise Wrong(str(error)) from error
    if kind == "apprise" and find_spec("apprise") is None:
        raise Wrong("apprise is not installed; install slurm-understudy[notify]")
    if kind != "apprise" and not url.startswith(("http://", "https://")):
        raise Wrong(f"{path} has no address of HTTP; write https://HOST/PATH")
    return f"{path} has an address; `understudy notify test` tries it"


def _secret(path: Path) -> str:
    from understudy_controlplane.access.secret_files import SecretError, read_secret

    try:
        read_secret(path)
    except SecretError as error:
        raise Wrong(str(error)) from error
    return f"{path} has a key"
