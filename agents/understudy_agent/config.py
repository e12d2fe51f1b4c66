"""The agent's configuration: one TOML file, checked whole at start, frozen. Unknown keys are refused."""

from __future__ import annotations

import difflib
import os
import shutil
import socket
import ssl
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec

from understudy_wire.addresses import EVERY

DEFAULT_CONFIG = Path("/etc/understudy/agent.toml")

SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7), less its final zero byte

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Url = Annotated[str, msgspec.Meta(pattern="^https?://[^/ ]+[^ ]*$")]


class ConfigError(Exception):
    """The configuration cannot be used; the message names the file, the key and what to do."""


class NvmlConfig(msgspec.Struct, frozen=True):
    enabled: bool = True
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 2.0
    """Interval at which clocks, power and the driver's recovery action are read; the rest is read less often."""


class HostConfig(msgspec.Struct, frozen=True):
    enabled: bool = True
    """False: the agent reads neither fabric ports nor the host itself."""
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    disks: tuple[Path, ...] = (Path("/"), Path("/tmp"), Path("/var"))  # noqa: S108 - read, not written to
    """File systems that jobs or Slurm need. The agent reports their free space and whether they became read-only."""


Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**50)]


class KeeperConfig(msgspec.Struct, frozen=True):
    """Settings of `understudy keeper`, which the agent does not start."""

    memory_bytes: Bytes = 0
    """How much it holds at most; 0: a quarter of the node's memory."""
    user_bytes: Bytes = 0
    """How much of that one user's jobs get; 0: half of it."""
    listen: str = EVERY
    """Address on which it listens for other keepers; `::`: every one, of IPv4 and IPv6."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 7119
    """Port for other keepers, the same on every node."""
    address: str = ""
    """Name or address by which other nodes reach it; empty: the node's name."""
    socket: Path = Path("/run/understudy-keeper/keeper.sock")
    """Unix socket on which ranks of this node connect to it."""
    bytes_per_second: Annotated[float, msgspec.Meta(ge=1e6, le=1e12)] = 1e9
    """How fast it copies from other nodes at most, of all jobs together."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    cluster: Name
    """ClusterName of slurm.conf."""
    control_plane_urls: Annotated[tuple[Url, ...], msgspec.Meta(min_length=1)]
    """Base URLs, such as "http://head1:7117". Reports go to the first one that answers."""
    node: str = ""
    """NodeName in Slurm; empty: SLURMD_NODENAME from the environment, or the short host name."""
    token_file: Path | None = None
    """File with the node's own token. Without it the agent gets a token by MUNGE, as root."""
    ca_file: Path | None = None
    """Certificates (PEM) that may sign the control plane's, for URLs with https; without it the system's."""
    certificate: Path | None = None
    """Certificate (PEM) of this node, for a control plane that asks for one (`server.tls_client_ca`)."""
    key: Path | None = None
    """Key of the certificate (PEM, no passphrase); without it the key is in the certificate's file."""
    munge_socket: Path | None = None
    """Socket of munged; without it MUNGE's own default."""
    report_interval_seconds: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 1.0
    """Interval between reports. A new fact is reported at once."""
    kernel_log: Path = Path("/dev/kmsg")
    """/dev/kmsg, or a plain file with records of the same form."""
    socket: Path = Path("/run/understudy/agent.sock")
    """Unix socket on which ranks of this node connect to the agent."""
    run_directory: Path = Path("/run/understudy")
    """Directory in which the Slurm hooks read the verdict and leave their records. A tmpfs, as /run is: empty after a
    boot.
    """
    spool: Path | None = None
    """File of the facts that wait for the control plane while the agent restarts; without it `facts.spool` in the run
    directory. On a disk it also survives a reboot."""
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    nvml: NvmlConfig = NvmlConfig()
    host: HostConfig = HostConfig()
    keeper: KeeperConfig = KeeperConfig()


REQUIRED = ("cluster", "control_plane_urls")


def parse_config(text: str, origin: str, environment: Mapping[str, str] = os.environ) -> Config:
    """`text` is TOML; `origin` names it in errors. Raises ConfigError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{origin}: not valid TOML: {error}") from error
    unknown = _unknown_keys(data, Config, origin)
    if unknown:
        raise ConfigError("\n".join(unknown))
    try:
        config = msgspec.convert(data, Config, dec_hook=_decode_path)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {_readable(str(error))}") from error
    for key, path in (("socket", config.socket), ("keeper.socket", config.keeper.socket)):
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise ConfigError(
                f"{origin}: {key}: the path of a socket has at most {SOCKET_PATH_BYTES_MAX} bytes; choose a shorter one"
            )
    node = config.node or environment.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    urls = tuple(_checked(url.rstrip("/"), origin) for url in config.control_plane_urls)
    return msgspec.structs.replace(config, node=node, control_plane_urls=urls)


def _checked(url: str, origin: str) -> str:
    """Raises ConfigError."""
    remedy = "write an IPv6 address in brackets: http://[fd00::1]:7117"
    try:
        parts = urlsplit(url)
        host, _, _ = parts.netloc.rpartition("@")[2].rpartition(":")
        if ":" not in host or host.endswith("]"):
            remedy = "a port is a number from 1 to 65535: http://head1:7117"
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{origin}: control_plane_urls: {url}: {error}; {remedy}") from error
    return url


def load_config(path: Path) -> Config:
    """Raises ConfigError when the file is missing, unreadable or wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        remedy = "copy it from /etc/understudy/nodes of the control plane's host, or name another file with --config"
        raise ConfigError(f"{path}: cannot be read: {error}; {remedy}") from error
    return parse_config(text, str(path))


def read_token(path: Path) -> str:
    """Raises ConfigError when the file holds no token."""
    return _read_value(
        path,
        "token_file",
        "`understudy agent --enroll` writes the token of this node into it; without token_file MUNGE is used",
    )


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS of new connections. `renew` reads the agent's certificate again; it raises ConfigError."""

    context: ssl.SSLContext
    renew: Callable[[], None] = lambda: None


def tls_of(config: Config) -> Tls | None:
    """What the control plane's certificate is held against, and the agent's own; None: the system's certificates, and
    none. Raises ConfigError.
    """
    if config.ca_file is None and config.certificate is None:
        return None
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
    except (OSError, ssl.SSLError) as error:
        problem = f"ca_file: {config.ca_file} cannot be used: {error}"
        raise ConfigError(f"{problem}; it has to hold certificates in PEM") from error
    tls = Tls(context, lambda: _show_certificate(config, context))
    tls.renew()
    return tls


def _show_certificate(config: Config, context: ssl.SSLContext) -> None:
    """Raises ConfigError."""
    if config.certificate is None:
        return
    try:
        context.load_cert_chain(config.certificate, config.key, password=_no_passphrase)
    except (OSError, ssl.SSLError) as error:
        problem = f"certificate: {config.certificate} and its key cannot be used: {error}"
        raise ConfigError(f"{problem}; they have to be in PEM, without a passphrase") from error


def _no_passphrase() -> str:
    """OpenSSL would ask for it on the terminal."""
    return ""


def check_identity(config: Config) -> None:
    """Raises ConfigError where this agent cannot prove which node it is."""
    if config.token_file is not None:
        read_token(config.token_file)
    elif shutil.which("munge") is None:
        raise ConfigError("the program munge is not installed; install MUNGE, or give this node a token: token_file")


def read_boot_id(config: Config) -> str:
    """Identifies this boot of the machine. Raises ConfigError."""
    return _read_value(config.boot_id_file, "boot_id_file", "the kernel's file is /proc/sys/kernel/random/boot_id")


def _read_value(path: Path, key: str, remedy: str) -> str:
    try:
        value = path.read_text(encoding="utf-8-sig").strip()
    except PermissionError as error:
        raise ConfigError(
            f"{key}: {path} cannot be read: {error.strerror}; run this as the owner of the file"
        ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error}; {remedy}") from error
    if not value or not value.isprintable() or " " in value:
        raise ConfigError(f"{key}: {path} must hold exactly one word; {remedy}")
    return value


def _unknown_keys(data: Mapping[str, Any], struct: type[msgspec.Struct], origin: str, prefix: str = "") -> list[str]:
    known = {field.name: field.type for field in msgspec.structs.fields(struct)}
    found = []
    for key, value in data.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{prefix}{near[0]}'?" if near else f"known keys: {', '.join(known)}"
            found.append(f"{origin}: unknown key '{prefix}{key}'; {hint}")
        elif isinstance(known[key], type) and issubclass(known[key], msgspec.Struct) and isinstance(value, dict):
            found += _unknown_keys(value, known[key], origin, f"{prefix}{key}.")
    return found


def _decode_path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError("Expected the path of a file")


def _readable(error: str) -> str:
    """msgspec writes "… - at `$.key`"; here the key comes first, and a remedy is last."""
    problem, separator, place = error.rpartition(" - at `$.")
    if not separator:
        return f"{error}; set it: `understudy help configuration` describes each key"
    key = place.rstrip("`")
    remedy = "set another value" if key.partition("[")[0] in REQUIRED else "set another value, or remove the key"
    return f"{key}: {problem}; {remedy}"
