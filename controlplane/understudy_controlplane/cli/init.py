"""`understudy init`: sets up the host of the control plane, and prints what remains to be done."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from understudy_controlplane.cli.options import DEFAULT_CONFIG
from understudy_controlplane.cli.output import Exit, fail
from understudy_controlplane.config import Config, ConfigError, load_config, parse_config
from understudy_wire.addresses import EVERY, with_port

SERVICE = "understudy-controlplane.service"
SERVICE_USER = "understudy"
UNITS = Path("/etc/systemd/system")


@click.command()
@click.option("--cluster", required=True, help="ClusterName of slurm.conf.")
@click.option("--address", default="", help="Name or address by which agents reach this host; default: its name.")
@click.option("--port", type=click.IntRange(1, 65535), default=7117, show_default=True, help="Port to listen on.")
@click.option("--tls", is_flag=True, help="Make a certificate, and encrypt all requests.")
@click.option("--user", default="", help="User of the service; default: one that Slurm lets change nodes.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIG.parent,
    show_default=True,
    help="Directory of the configuration.",
)
def init(cluster: str, address: str, port: int, tls: bool, user: str, directory: Path) -> None:
    """Write the configuration, the first administrator's token and the files for the nodes. Overwrites nothing."""
    if os.geteuid() != 0:
        fail("this needs root: it writes below /etc and for the user of the service; run it with sudo", Exit.USAGE)
    address = address.removeprefix("[").removesuffix("]") or socket.getfqdn()  # an IPv6 address as in a URL
    try:
        settings = _slurm_settings(cluster)
        site = Site(cluster, address, listens_at(settings, address), port, tls, directory)
        account = _account(user or service_user(settings))
        site.write(account)
        config = _config_of(cluster, directory / DEFAULT_CONFIG.name)
        _make_database(config, directory, account)
    except ConfigError as error:
        fail(str(error), Exit.USAGE)
    except OSError as error:
        fail(
            f"{error.filename}: cannot be written: {error.strerror}; see the lines above for what was written",
            Exit.FAILED,
        )
    click.echo(site.next_steps(settings, account.pw_name))


@dataclass(frozen=True, slots=True)
class Site:
    cluster: str
    address: str
    host: str
    port: int
    tls: bool
    directory: Path

    def write(self, account: pwd.struct_passwd) -> None:
        """Raises ConfigError, OSError."""
        self.directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        for_nodes = self.directory / "nodes"
        for_nodes.mkdir(mode=0o755, exist_ok=True)
        group = _group(account)
        if self.tls:
            self._certificate(for_nodes, group)
        text = self.control_plane(account.pw_name)
        parse_config(text, "--cluster, --port")
        create(self.directory / DEFAULT_CONFIG.name, text, 0o640, group)
        create(for_nodes / "agent.toml", self.agent(), 0o644)
        if account.pw_name != SERVICE_USER:
            drop_in = UNITS / f"{SERVICE}.d" / "user.conf"
            drop_in.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            create(
                drop_in, f"# Slurm lets this user change nodes and jobs.\n[Service]\nUser={account.pw_name}\n", 0o644
            )

    def _certificate(self, for_nodes: Path, group: int) -> None:
        from understudy_controlplane.own_certificate import make_certificate

        certificate, key = self.directory / "tls.pem", self.directory / "tls.key"
        if certificate.exists() or key.exists():
            click.echo(f"kept: {certificate}, {key}")
        else:
            old = os.umask(0o077)
            try:
                make_certificate(self.address, certificate, key)
            finally:
                os.umask(old)
            certificate.chmod(0o644)
            os.chown(key, 0, group)
            key.chmod(0o640)
            click.echo(f"written: {certificate}, {key}")
        create(for_nodes / "ca.pem", certificate.read_text(), 0o644)

    def control_plane(self, user: str) -> str:
        files = (
            f'tls_certificate = "{self.directory}/tls.pem"\ntls_key = "{self.directory}/tls.key"\n' if self.tls else ""
        )
        return (
            f"# `understudy help configuration` lists all settings.\ncluster = {_toml(self.cluster)}\n"
            'mode = "observe"    # decides and records, changes nothing; "act" carries it out\n\n'
            f'[server]\nhost = "{self.host}"\nport = {self.port}\n{files}\n'
            "[spares]\ncount = 0    # nodes that are kept free for gangs that lose one\n\n"
            f"[validation]\nuser = {_toml(user)}    # of jobs on repaired nodes, which need this user as well\n"
        )

    def agent(self) -> str:
        scheme, trusted = ("https", f'ca_file = "{DEFAULT_CONFIG.parent}/ca.pem"\n') if self.tls else ("http", "")
        return (
            f"cluster = {_toml(self.cluster)}\n"
            f"control_plane_urls = [{_toml(f'{scheme}://{with_port(self.address, self.port)}')}]\n{trusted}"
            'spool = "/var/lib/understudy-agent/facts.spool"\n'
        )

    def next_steps(self, settings: Mapping[str, str] | None, user: str) -> str:
        lines = ["", "Here:", f"  systemctl enable --now {SERVICE}"]
        lines += ["  understudy doctor    # which of Slurm's settings cost recovery time or safety"]
        if settings is None:
            lines += ["  Slurm did not answer: whether the service's user may change nodes was not checked"]
        elif user == SERVICE_USER:
            lines += [f"  sacctmgr add user {user} account=root adminlevel=Admin    # before mode act"]
        lines += ["On every node, after the installation of understudy-agent:"]
        lines += [f"  the files of {self.directory}/nodes, copied to /etc/understudy"]
        if shutil.which("munge") is None:
            lines += [
                "  `understudy agent --enroll`, with the code that `understudy token enroll NODE` prints here: no MUNGE"
            ]
        lines += ["  systemctl enable --now understudy-agent.service"]
        lines += ["  understudy install-hooks    # then, on the host of slurm.conf, with --edit-slurm-conf"]
        return "\n".join(lines)


def service_user(settings: Mapping[str, str] | None) -> str:
    """User of the service. If Slurm has accounting, any user can be made its administrator; otherwise only root and
    SlurmUser are.
    """
    if settings is None or "slurmdbd" in settings.get("AccountingStorageType", ""):
        return SERVICE_USER
    return settings.get("SlurmUser", SERVICE_USER).partition("(")[0]


def create(path: Path, text: str, mode: int, group: int = 0) -> None:
    """A file that is there stays as it is. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        click.echo(f"kept: {path}")
        return
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        os.fchown(descriptor, 0, group)
        os.fchmod(descriptor, mode)
    click.echo(f"written: {path}")


def listens_at(settings: Mapping[str, str] | None, address: str) -> str:
    """IPv6 as well only where Slurm uses it: an agent is refused that comes from an address other than its NodeAddr."""
    uses_ipv6 = settings is not None and "enableipv6" in settings.get("CommunicationParameters", "").lower()
    return EVERY if uses_ipv6 or ":" in address else "0.0.0.0"  # noqa: S104 - nodes have to reach it


def _slurm_settings(cluster: str) -> Mapping[str, str] | None:
    """None: slurmctld does not answer now. Raises ConfigError."""
    from understudy_controlplane.slurm.cli import CommandLineGateway
    from understudy_controlplane.slurm.protocol import SlurmError, SlurmMissing

    try:
        settings = CommandLineGateway().config()
    except SlurmMissing as error:
        raise ConfigError(str(error)) from error
    except SlurmError as error:
        click.echo(f"Slurm does not answer: {error}", err=True)
        return None
    name = settings["ClusterName"]
    if name.casefold() != cluster.casefold():
        raise ConfigError(f"--cluster: this host's Slurm is the cluster {name!r}; give that name")
    return settings


def _config_of(cluster: str, path: Path) -> Config:
    """Raises ConfigError where the file was there already and is for another cluster."""
    config = load_config(path)
    if config.cluster != cluster:
        raise ConfigError(
            f"{path}: is there already, for the cluster {config.cluster!r}; name that one, or move it away"
        )
    return config


def _account(user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(user)
    except KeyError as error:
        raise ConfigError(
            f"there is no user {user!r}; install the package understudy-controlplane, or set --user"
        ) from error


def _group(account: pwd.struct_passwd) -> int:
    """The service runs with the group of its package, as whichever user."""
    try:
        return pwd.getpwnam(SERVICE_USER).pw_gid
    except KeyError:
        return account.pw_gid


def _make_database(config: Config, directory: Path, account: pwd.struct_passwd) -> None:
    """Makes the database with the first administrator's token, for the user of the service."""
    from understudy_controlplane.cli.token import create as create_token

    _, _, path = config.server.database.partition("sqlite:///")
    state = Path(path).parent if path else None
    if state is not None:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = directory / "operator.token"
    if token.exists():
        click.echo(f"kept: {token}")
    else:
        file = directory / DEFAULT_CONFIG.name
        given = ["--role=admin", f"--label={getpass.getuser()}", f"--file={token}", f"--config={file}"]
        create_token.main(given, "understudy token create", standalone_mode=False)
        click.echo(f"written: {token}")
    if state is not None:
        for one in (state, *state.glob(f"{Path(path).name}*")):
            os.chown(one, account.pw_uid, _group(account))


def _toml(text: str) -> str:
    import json

    return json.dumps(text)  # TOML's basic strings have the same escapes
