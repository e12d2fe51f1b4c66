"""The agent's configuration: one TOML file, checked whole at start, frozen. Unknown keys are refused."""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

SOCKET_PATH_BYTES_MAX = 107  # sun_path of unix(7), less its final zero byte

Word = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Url = Annotated[str, msgspec.Meta(pattern="^https?://[^/ ]+[^ ]*$")]


class ConfigError(Exception):
    """The configuration cannot be used; the message names file, key and remedy."""


class NvmlConfig(msgspec.Struct, frozen=True):
    enabled: bool = True
    interval_seconds: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 2.0
    """How often clocks, power and the driver's verdict are read; the rest is read each minute or rarer."""


class HostConfig(msgspec.Struct, frozen=True):
    enabled: bool = True
    """False: neither ports nor the host itself are looked at."""
    sys: Path = Path("/sys")
    proc: Path = Path("/proc")
    disks: tuple[Path, ...] = (Path("/"), Path("/tmp"), Path("/var"))  # noqa: S108 - looked at, not written to
    """File systems that jobs or Slurm need: their room, and whether they turned read-only."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    cluster: Word
    """ClusterName of slurm.conf."""
    control_plane_urls: Annotated[tuple[Url, ...], msgspec.Meta(min_length=1)]
    """Base addresses, such as "http://head1:7117". Reports go to the first that answers."""
    node: str = ""
    """NodeName in Slurm; empty: SLURMD_NODENAME from the environment, or the short host name."""
    token_file: Path = Path("/etc/understudy/agent.token")
    """Holds the bearer token that the control plane expects of agents."""
    report_interval_seconds: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 1.0
    """A new fact is reported at once, whatever this says."""
    request_timeout_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=60)] = 5.0
    kernel_log: Path = Path("/dev/kmsg")
    """/dev/kmsg, or a plain file of the same records."""
    socket: Path = Path("/run/understudy/agent.sock")
    """Where ranks on this node talk to the agent."""
    run_directory: Path = Path("/run/understudy")
    """Where the Slurm hooks find the verdict and leave their records. Gone after a boot: a tmpfs, as /run is."""
    boot_id_file: Path = Path("/proc/sys/kernel/random/boot_id")
    nvml: NvmlConfig = NvmlConfig()
    host: HostConfig = HostConfig()


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
    if len(os.fsencode(config.socket)) > SOCKET_PATH_BYTES_MAX:
        raise ConfigError(f"{origin}: socket: a path of at most {SOCKET_PATH_BYTES_MAX} bytes is possible for a socket")
    node = config.node or environment.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    urls = tuple(url.rstrip("/") for url in config.control_plane_urls)
    return msgspec.structs.replace(config, node=node, control_plane_urls=urls)


def load_config(path: Path) -> Config:
    """Raises ConfigError when the file is missing, unreadable or wrong."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give another with --config") from error
    return parse_config(text, str(path))


def read_token(config: Config) -> str:
    """Raises ConfigError when there is none."""
    return _read_word(config.token_file, "token_file", "write the token that the control plane expects of agents there")


def read_boot_id(config: Config) -> str:
    """What tells this boot of the machine from all others. Raises ConfigError."""
    return _read_word(config.boot_id_file, "boot_id_file", "the kernel's is /proc/sys/kernel/random/boot_id")


def _read_word(path: Path, key: str, remedy: str) -> str:
    try:
        word = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key}: {path} cannot be read ({error}); {remedy}") from error
    if not word or not word.isprintable() or " " in word:
        raise ConfigError(f"{key}: {path} does not hold exactly one word; {remedy}")
    return word


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
    """msgspec says "… - at `$.key`"; here the key comes first."""
    words, separator, place = error.rpartition(" - at `$.")
    return f"{place.rstrip('`')}: {words}" if separator else error
